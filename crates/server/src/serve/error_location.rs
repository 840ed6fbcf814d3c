//! The value of the configuration file that is the cause of an error.
//!
//! The line is found by the text of the value. If a command-line option overrides the value, its text
//! differs, so its errors name no line.

use std::path::Path;

use forebay_frontend::nbd::{BindError, TlsError};
use forebay_frontend::plane::{ListenAddr, ListenError};
use forebay_frontend::{nfs, nvme};

use super::{HttpsError, ServeError};
use crate::config::Source;

const CERTIFICATES: &[&str] = &["nbd.tls.certificates"];
const ADDRESSES: &[&str] = &["nbd.listen", "nbd.listener.listen"];
const MODES: &[&str] = &["nbd.tls.mode", "nbd.listener.tls"];

/// Adds the file, line and key to an error of a value in the file.
pub(super) fn located(source: Option<&Source>, error: ServeError) -> ServeError {
    match source.and_then(|source| Some((source.path().to_owned(), cause(source, &error)?))) {
        Some((path, (key, line))) => ServeError::At { path, line, key, error: Box::new(error) },
        None => error,
    }
}

/// The key and the line of the value.
fn cause(source: &Source, error: &ServeError) -> Option<(&'static str, usize)> {
    let of_path = |keys, path: &Path| source.line_of_text(keys, &|text| Path::new(text) == path);
    let of_address = |keys, address: &ListenAddr| {
        source.line_of_text(keys, &|text| text.parse().is_ok_and(|found: ListenAddr| found == *address))
    };
    match error {
        ServeError::Https(HttpsError::File { path, .. }) => of_path(&["http.certificate", "http.key"], path),
        ServeError::Https(HttpsError::OpenKey { path, .. }) => of_path(&["http.key"], path),
        ServeError::Https(HttpsError::Unusable { path, .. } | HttpsError::Version1 { path }) => {
            of_path(&["http.certificate"], path)
        }
        ServeError::Nbd(BindError::Clear { listen, .. } | BindError::Listen(ListenError::NoHost(listen))) => {
            of_address(ADDRESSES, listen)
        }
        ServeError::Nvme(nvme::ListenFailed::Remote { listen, .. }) => {
            of_address(&["nvme.listen", "nvme.discovery"], listen)
        }
        ServeError::Nfs(nfs::ListenFailed::Remote { listen, .. }) => {
            of_address(&["nfs.listen", "nfs.portmap"], listen)
        }
        ServeError::Nbd(BindError::Tls(error)) => match error {
            TlsError::NoDirectory => source.line_of_text(MODES, &|text| text != "off"),
            TlsError::File { path, .. } | TlsError::OpenKey { path, .. } | TlsError::Version1 { path } => {
                of_path(CERTIFICATES, path.parent()?)
            }
            TlsError::Unusable { dir, .. } | TlsError::Authority { dir, .. } => of_path(CERTIFICATES, dir),
            TlsError::Thread(_) => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{ConfigFile, HttpFlags, NbdFlags, Overrides, ServeConfig};
    use crate::serve::check;

    /// Returns the message for a file that has these lines after its first line, and for options.
    fn message_of(text: &str, flags: Overrides) -> String {
        let file = ConfigFile::parse("f.toml", &format!("data = \"/pool\"\n{text}")).unwrap();
        check(&ServeConfig::resolve(file, flags).unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn values_of_the_file_are_named_with_their_lines() {
        for (text, begin, end) in [
            (
                "[http]\ncertificate = \"/none/c\"\nkey = \"/none/k\"",
                "f.toml, line 3: http.certificate: cannot read /none/c: ",
                "the API needs PEM files with its certificate chain and its key",
            ),
            (
                "[nbd]\nlisten = [\n  \"unix:/x\",\n  \"0.0.0.0:1\",\n]",
                "f.toml, line 5: nbd.listen: NBD cannot be served on 0.0.0.0:1 ",
                "or add --nbd-allow-remote",
            ),
            (
                "[[nbd.listener]]\nlisten = [\"unix:/x\"]\n[[nbd.listener]]\nlisten = [\"0.0.0.0:1\"]",
                "f.toml, line 5: nbd.listener.listen: NBD cannot be served on 0.0.0.0:1 ",
                "or add --nbd-allow-remote",
            ),
            (
                "nbd.tls = { certificates = \"/none\" }",
                "f.toml, line 2: nbd.tls.certificates: /none/",
                "ca-cert.pem, server-cert.pem and server-key.pem",
            ),
            (
                "[nbd.tls]\nmode = \"require\"",
                "f.toml, line 3: nbd.tls.mode: TLS needs a directory ",
                "certificates in [nbd.tls]",
            ),
            (
                "[[nbd.listener]]\nlisten = [\"unix:/x\"]\ntls = \"on\"",
                "f.toml, line 4: nbd.listener.tls: TLS needs a directory ",
                "certificates in [nbd.tls]",
            ),
        ] {
            let message = message_of(text, Overrides::default());
            assert!(message.starts_with(begin) && message.ends_with(end), "{text}: {message}");
        }
    }

    #[test]
    fn values_of_options_have_no_line() {
        let http = HttpFlags { certificate: Some("/option/c".into()), ..HttpFlags::default() };
        let text = "[http]\ncertificate = \"/none/c\"\nkey = \"/none/k\"";
        let message = message_of(text, Overrides { http, ..Overrides::default() });
        assert!(message.starts_with("cannot read /option/c: "), "{message}");
        let nbd = NbdFlags { listen: vec!["0.0.0.0:2".parse().unwrap()], ..NbdFlags::default() };
        let message =
            message_of("[nbd]\nlisten = [\"0.0.0.0:1\"]", Overrides { nbd, ..Overrides::default() });
        assert!(message.starts_with("NBD cannot be served on 0.0.0.0:2 "), "{message}");
    }

    #[test]
    fn a_key_that_others_can_read_is_named_with_its_line() {
        use std::os::unix::fs::PermissionsExt;

        let place = tempfile::tempdir().unwrap();
        let (certificate, key) = (place.path().join("c"), place.path().join("k"));
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
        let (certificate, key) = (certificate.display(), key.display());
        let text = format!("[http]\ncertificate = \"{certificate}\"\n\nkey = \"{key}\"");
        let message = message_of(&text, Overrides::default());
        assert!(message.starts_with(&format!("f.toml, line 5: http.key: {key} can be read")), "{message}");
    }
}
