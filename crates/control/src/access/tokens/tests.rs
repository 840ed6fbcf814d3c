use std::os::unix::fs::PermissionsExt;

use forebay_api::{CreateToken, Role, Scope};

use super::*;

fn new(name: &str, role: Role) -> CreateToken {
    let scope = (role == Role::Operator).then(|| Scope::Tenant("acme".into()));
    CreateToken { name: name.into(), role, scope, expires_in_s: None, max_disks: None }
}

#[test]
fn a_token_is_kept_as_a_hash_and_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = Tokens::load(dir.path());
    assert!(!tokens.were_created());
    let made = tokens.create(new("a", Role::Operator)).unwrap();
    assert_eq!(made.secret.len(), PREFIX.len() + 64);
    let path = dir.path().join(FILE_NAME);
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains(&made.secret) && !text.contains(&made.secret[PREFIX.len()..]), "{text}");
    // The second file has the room for the next change.
    for file in [path.clone(), path.with_extension("new")] {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600, "{}", file.display());
    }

    let again = Tokens::load(dir.path());
    let found = again.verify(&made.secret).unwrap().principal(Via::Token, None);
    assert_eq!((&*found.name, found.role), ("a", Role::Operator));
    assert_eq!(found.scope, Some(Scope::Tenant("acme".into())));
    for bad in ["", "forebay_", &made.secret[1..], &format!("{} ", made.secret), &made.secret.to_uppercase()]
    {
        assert_eq!(again.verify(bad).err(), Some(Denied::Unknown), "{bad}");
    }
    again.flush().unwrap();
    assert!(Tokens::load(dir.path()).list().unwrap()[0].last_used_ms.is_some());

    again.revoke("a").unwrap();
    assert_eq!(again.verify(&made.secret).err(), Some(Denied::Unknown));
    assert!(Tokens::load(dir.path()).were_created(), "tokens stay demanded");
    assert!(matches!(again.revoke("a"), Err(TokenError::NotFound(_))));
}

#[test]
fn the_names_of_clients_without_a_token_are_reserved() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = Tokens::load(dir.path());
    for name in ["control socket", "loopback", "Control Socket"] {
        assert!(matches!(tokens.create(new(name, Role::Reader)), Err(TokenError::Bad(_))), "{name}");
    }
    tokens.create(new("loopback-2", Role::Reader)).unwrap();
}

#[test]
fn a_token_that_creates_disks_has_a_limit_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = Tokens::load(dir.path());
    let limit = |new: CreateToken| {
        let made = tokens.create(new).unwrap();
        let found = Tokens::load(dir.path()).verify(&made.secret).unwrap().principal(Via::Token, None);
        assert_eq!(found.max_disks, made.token.max_disks);
        found.max_disks
    };
    assert_eq!(limit(new("reader", Role::Reader)), None);
    assert_eq!(limit(new("administrator", Role::Administrator)), None);
    assert_eq!(limit(new("operator", Role::Operator)), Some(DEFAULT_MAX_DISKS));
    assert_eq!(limit(CreateToken { max_disks: Some(7), ..new("seven", Role::Operator) }), Some(7));
}

#[test]
fn an_expired_token_is_reported_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = Tokens::load(dir.path());
    let made = tokens.create(new("a", Role::Reader)).unwrap();
    if let Ok(all) = &mut tokens.state.lock().tokens {
        all[0].record.expires_ms = Some(unix_ms() - 1);
    }
    assert_eq!(tokens.verify(&made.secret).err(), Some(Denied::Expired));
    assert!(tokens.list().unwrap()[0].expired);
    let id = tokens.state.lock().tokens.as_ref().unwrap()[0].record.id.clone();
    assert!(tokens.by_id(&id).is_none());
}

#[test]
fn invalid_tokens_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = Tokens::load(dir.path());
    for name in ["", "a/b", "a\nb", ".", "..", "a\u{202e}b", &"n".repeat(65)] {
        assert!(matches!(tokens.create(new(name, Role::Reader)), Err(TokenError::Bad(_))), "{name:?}");
    }
    let with = |role, scope, expires_in_s| CreateToken { scope, expires_in_s, ..new("a", role) };
    for bad in [
        with(Role::Operator, None, None),
        with(Role::Provisioner, None, None),
        with(Role::Provisioner, Some(Scope::Tenant("acme".into())), None),
        with(Role::Administrator, Some(Scope::Tenant("t".into())), None),
        with(Role::Reader, Some(Scope::Disks(Vec::new())), None),
        with(Role::Reader, None, Some(0)),
        with(Role::Reader, None, Some(u64::MAX)),
        CreateToken { max_disks: Some(0), ..new("a", Role::Operator) },
        CreateToken { max_disks: Some(1), ..new("a", Role::Reader) },
        CreateToken { max_disks: Some(1), ..new("a", Role::Administrator) },
    ] {
        assert!(matches!(tokens.create(bad.clone()), Err(TokenError::Bad(_))), "{bad:?}");
    }
    assert!(!tokens.were_created());
    tokens.create(new("a", Role::Reader)).unwrap();
    assert!(matches!(tokens.create(new("a", Role::Reader)), Err(TokenError::Exists(_))));
}

#[test]
fn a_file_that_cannot_be_used_is_kept_and_grants_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE_NAME);
    let secret = Tokens::load(dir.path()).create(new("a", Role::Reader)).unwrap().secret;
    let good = fs::read_to_string(&path).unwrap();
    for bad in [
        "",
        "{",
        "[]",
        &good.replace("\"version\": 1", "\"version\": 2"),
        &good.replace("\"role\"", "\"rule\""),
        &good.replace("\"sha256\": \"", "\"sha256\": \"0"),
    ] {
        fs::write(&path, bad).unwrap();
        let tokens = Tokens::load(dir.path());
        assert!(tokens.were_created());
        assert_eq!(tokens.verify(&secret).err(), Some(Denied::Unknown), "{bad}");
        assert!(matches!(tokens.create(new("b", Role::Reader)), Err(TokenError::Unreadable { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), bad);
    }
    fs::write(&path, &good).unwrap();
    assert!(Tokens::load(dir.path()).verify(&secret).is_ok());
    fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    assert_eq!(Tokens::load(dir.path()).verify(&secret).err(), Some(Denied::Unknown));
}

#[test]
fn a_change_that_cannot_be_written_has_no_effect() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    let tokens = Tokens::load(&data);
    let made = tokens.create(new("a", Role::Reader)).unwrap();
    fs::remove_dir_all(&data).unwrap();
    assert!(matches!(tokens.revoke("a"), Err(TokenError::Write { .. })));
    assert!(tokens.verify(&made.secret).is_ok());
}
