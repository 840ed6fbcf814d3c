use std::time::Duration;

use forebay_engine::{CloneRequest, PoolConfig};
use forebay_host::EngineThread;
use forebay_store::{MemoryStore, Store};
use forebay_text::Secret;
use futures_util::FutureExt;

use super::session::OpenLuns;
use super::*;

const A: &str = "iqn.2026-01.org.example:a";
const B: &str = "iqn.2026-01.org.example:b";
const HOST: &str = "iqn.1993-08.org.debian:01:host";

fn name(text: &str) -> IqnName {
    text.parse().unwrap()
}

fn target(text: &str) -> Target {
    Target {
        name: name(text),
        number: 0,
        open: false,
        chap: None,
        mutual: None,
        dhchap: None,
        luns: BTreeMap::new(),
        initiators: Vec::new(),
    }
}

fn lun(disk: &str) -> Lun {
    Lun { disk: disk.into(), read_only: false, write_back: false }
}

fn chap(user: &str, secret: &str) -> Chap {
    Chap { user: user.into(), secret: Secret::new(secret.into()) }
}

fn initiator(text: &str, luns: Option<Vec<u16>>) -> Initiator {
    Initiator { name: name(text), chap: None, dhchap: None, luns }
}

fn error_text<T>(result: Result<T>) -> String {
    result.err().expect("the operation is refused").to_string()
}

/// A pool with volumes `v` and `w`, a snapshot `v@s`, an image, a desktop and a volume with sync mode
/// `never`.
struct Fixture {
    engine: EngineThread,
    store: Arc<MemoryStore>,
    pool: Arc<Pool>,
    targets: Targets,
}

impl Fixture {
    async fn new() -> Fixture {
        let (engine, store) = (EngineThread::start(1).unwrap(), Arc::new(MemoryStore::new()));
        let pool = open(&engine, &store).await;
        for name in ["v", "w"] {
            pool.create_volume(name, 1 << 20, SyncMode::Flush, 0).await.unwrap();
        }
        pool.create_volume("never", 1 << 20, SyncMode::Never, 0).await.unwrap();
        pool.create_snapshot("v", "s").await.unwrap();
        pool.create_image("image", "v").await.unwrap();
        let desktop =
            CloneRequest { name: "desktop".into(), write_cache: 1 << 20, ..CloneRequest::default() };
        pool.clone_disk("image", &[desktop]).await.unwrap();
        let targets = Targets::load(pool.clone()).await;
        Fixture { engine, store, pool, targets }
    }

    /// Restarts the server.
    async fn restart(self) -> Fixture {
        let Fixture { engine, store, pool, targets } = self;
        drop(targets);
        engine
            .run({
                let pool = pool.clone();
                async move { pool.close().await }
            })
            .await
            .unwrap();
        drop(pool);
        let pool = open(&engine, &store).await;
        let targets = Targets::load(pool.clone()).await;
        Fixture { engine, store, pool, targets }
    }
}

async fn open(engine: &EngineThread, store: &Arc<MemoryStore>) -> Arc<Pool> {
    let config = PoolConfig { read_cache: 4 << 20, map_cache: 4 << 20, ..PoolConfig::default() };
    let store: Arc<dyn Store> = store.clone();
    engine.run(Pool::open(store, engine.host(), config)).await.unwrap()
}

#[tokio::test]
async fn the_table_survives_a_restart_and_numbers_are_not_reused() {
    let fixture = Fixture::new().await;
    let t = &fixture.targets;
    assert_eq!(t.create(target(A)).await.unwrap().number, 1);
    assert_eq!(t.create(target(B)).await.unwrap().number, 2);
    assert!(error_text(t.create(target(A)).await).contains("exists already"));
    t.map(&name(A), None, lun("v")).await.unwrap();
    t.allow(&name(A), Initiator { chap: Some(chap("u", "twelve bytes")), ..initiator(HOST, Some(vec![0])) })
        .await
        .unwrap();
    t.remove(&name(B), false).await.unwrap();
    let before = t.snapshot();
    let fixture = fixture.restart().await;
    let t = &fixture.targets;
    assert_eq!(t.snapshot(), before);
    assert_eq!(t.create(target(B)).await.unwrap().number, 3);
    t.remove_all(false).await.unwrap();
    let fixture = fixture.restart().await;
    assert!(fixture.targets.snapshot().is_empty());
    assert_eq!(fixture.targets.create(target(A)).await.unwrap().number, 4);
}

#[tokio::test]
async fn a_disk_is_mapped_with_the_options_that_it_supports() {
    let fixture = Fixture::new().await;
    let (t, a) = (&fixture.targets, name(A));
    assert!(error_text(t.map(&a, None, lun("v")).await).contains("there is no target"));
    t.create(target(A)).await.unwrap();
    let mut changed = t.changed();
    assert_eq!(t.map(&a, None, lun("v")).await.unwrap(), (0, lun("v")));
    assert!(changed.has_changed().unwrap());
    changed.mark_unchanged();
    let read_only = |disk: &str| Lun { read_only: true, ..lun(disk) };
    let write_back = |disk: &str| Lun { write_back: true, ..lun(disk) };
    assert_eq!(t.map(&a, Some(2), lun("v@s")).await.unwrap(), (2, read_only("v@s")));
    assert_eq!(t.map(&a, None, write_back("image")).await.unwrap(), (1, read_only("image")));
    assert_eq!(t.map(&a, Some(255), write_back("w")).await.unwrap(), (255, write_back("w")));
    // Mapped again under the same number: new options.
    assert_eq!(t.map(&a, Some(255), read_only("w")).await.unwrap(), (255, read_only("w")));
    changed.mark_unchanged();
    t.map(&a, Some(255), read_only("w")).await.unwrap();
    for (at, disk, why) in [
        (None, "missing", "no volume, snapshot or image is named 'missing'"),
        (None, "v", "'v' is LUN 0 of target iqn.2026-01.org.example:a; unmap it first"),
        (Some(7), "v", "'v' is LUN 0"),
        (Some(0), "never", "--write-back"),
        (None, "desktop", "--write-back"),
        (Some(256), "never", "256 cannot be a LUN"),
    ] {
        let lun = if at == Some(256) { write_back(disk) } else { lun(disk) };
        let refused = error_text(t.map(&a, at, lun).await);
        assert!(refused.contains(why), "{disk}: {refused}");
    }
    assert!(error_text(t.map(&a, Some(0), write_back("never")).await).contains("LUN 0 of target"));
    assert!(!changed.has_changed().unwrap(), "a refused or identical mapping changes nothing");
    t.map(&a, None, write_back("desktop")).await.unwrap();
    t.unmap(&a, 255).await.unwrap();
    assert!(error_text(t.unmap(&a, 255).await).contains("has no LUN 255"));
    let luns: Vec<_> = t.get(&a).unwrap().luns.keys().copied().collect();
    assert_eq!(luns, [0, 1, 2, 3]);
}

#[tokio::test]
async fn a_mapped_disk_is_not_removed() {
    let fixture = Fixture::new().await;
    let t = &fixture.targets;
    t.create(target(A)).await.unwrap();
    t.map(&name(A), Some(9), lun("v@s")).await.unwrap();
    let refused = error_text(t.unmapped("v@s").await);
    assert_eq!(refused, format!("'v@s' is LUN 9 of target {A}; unmap it first"));
    let removing = t.unmapped("w").await.unwrap();
    let a = name(A);
    let mapping = t.map(&a, None, lun("w"));
    let waited = tokio::time::timeout(std::time::Duration::from_millis(20), mapping).await;
    assert!(waited.is_err(), "mapping waits for the removal");
    fixture.pool.delete("w").await.unwrap();
    drop(removing);
    assert!(error_text(t.map(&name(A), None, lun("w")).await).contains("is named 'w'"));
}

#[tokio::test]
async fn initiators_access_only_allowed_targets_and_luns() {
    let fixture = Fixture::new().await;
    let (t, a, host) = (&fixture.targets, name(A), name(HOST));
    let admits = |who: &IqnName| t.get(&a).unwrap().admission(who).is_some();
    t.create(Target { chap: Some(chap("all", "all of twelve")), ..target(A) }).await.unwrap();
    assert!(!admits(&host), "no initiator has access by default");
    t.map(&a, None, lun("v")).await.unwrap();
    t.map(&a, None, lun("w")).await.unwrap();
    assert!(error_text(t.allow(&a, initiator(HOST, Some(vec![0, 2]))).await).contains("has no LUN 2"));
    t.allow(&a, initiator(HOST, Some(vec![0, 1]))).await.unwrap();
    t.unmap(&a, 0).await.unwrap();
    t.map(&a, None, lun("v@s")).await.unwrap();
    {
        let target = t.get(&a).unwrap();
        let here = target.admission(&host).unwrap();
        assert_eq!(here.chap, target.chap.as_ref());
        let seen: Vec<u16> = target.luns.keys().copied().filter(|lun| here.sees(*lun)).collect();
        assert_eq!(seen, [1], "another disk under an old number is not accessible");
    }
    let own = Initiator { chap: Some(chap("own", "its own secret")), ..initiator(HOST, None) };
    t.allow(&a, own.clone()).await.unwrap();
    {
        let target = t.get(&a).unwrap();
        let here = target.admission(&host).unwrap();
        assert_eq!((here.chap, here.sees(0), target.initiators.len()), (own.chap.as_ref(), true, 1));
    }
    t.deny(&a, &host).await.unwrap();
    assert!(!admits(&host) && error_text(t.deny(&a, &host).await).contains("has no entry"));
    t.create(Target { open: true, ..target(B) }).await.unwrap();
    assert!(
        t.get(&name(B)).unwrap().admission(&host).is_some_and(|here| here.chap.is_none() && here.sees(9))
    );
}

#[tokio::test]
async fn secrets_must_be_long_enough_and_differ_between_both_sides() {
    let fixture = Fixture::new().await;
    let t = &fixture.targets;
    let with = |chap, mutual| Target { chap: Some(chap), mutual, ..target(A) };
    for (wrong, why) in [
        (with(chap("u", "eleven byte"), None), "shorter than 12"),
        (with(chap("u", &"x".repeat(256)), None), "longer than 255"),
        (with(chap("u", "twelve\nbytes"), None), "line ends"),
        (with(chap("", "twelve bytes"), None), "1 to 255 bytes"),
        (
            with(chap("u", "twelve bytes"), Some(chap("m", "twelve bytes"))),
            "must not be that of an initiator",
        ),
        (with(chap("u", "twelve bytes"), Some(chap("m", "short"))), "'m' cannot be used"),
    ] {
        let refused = error_text(t.create(wrong).await);
        assert!(refused.contains(why) && !refused.contains("eleven"), "{refused}");
    }
    let good = with(chap("u", "twelve bytes"), Some(chap("m", "other bytes.")));
    t.create(good).await.unwrap();
    let same = Initiator { chap: Some(chap("x", "other bytes.")), ..initiator(HOST, None) };
    assert!(error_text(t.allow(&name(A), same).await).contains("must not be"));
    let printed = format!("{:?}", t.snapshot());
    assert!(!printed.contains("bytes") && printed.contains("***"), "{printed}");
    let read = |bytes: &'static [u8]| Secret::read(bytes).map(|s| s.reveal().as_bytes().to_vec());
    assert_eq!(read(b" a b \r\n").unwrap(), b" a b ");
    assert_eq!(read(b"a\n\n").unwrap(), b"a\n");
    assert_eq!(read(b"\xef\xbb\xbfsecret\r\n").unwrap(), b"secret", "without the byte-order mark");
    assert!(read(&[0xff; 16]).is_err() && read(&[b'x'; 2000]).is_err());
}

#[tokio::test]
async fn keys_of_nvme_hosts_are_checked_and_kept() {
    const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    const NVME_HOST: &str = "nqn.2026-01.org.example:host";
    let key = |text: &str| Some(DhChapKey::new(Secret::new(text.into())));
    let fixture = Fixture::new().await;
    let t = &fixture.targets;
    t.create(target(A)).await.unwrap();
    let entry = |name: &str, text: &str| Initiator { dhchap: key(text), ..initiator(name, None) };
    assert!(
        error_text(t.allow(&name(A), entry(NVME_HOST, "DHHC-1:00:")).await).contains("no DH-HMAC-CHAP key")
    );
    assert!(error_text(t.allow(&name(A), entry(HOST, KEY)).await).contains("is no NVMe host"));
    t.allow(&name(A), entry(NVME_HOST, KEY)).await.unwrap();
    // The same key as that of a host, in another form.
    let same = key(&KEY.replace(":00:", ":01:"));
    let of_host = Target { dhchap: same, initiators: vec![entry(NVME_HOST, KEY)], ..target(B) };
    assert!(error_text(t.create(of_host).await).contains("must not be"));
    let table = document::decode(&document::encode(t.table.lock().await.as_ref().unwrap())).unwrap();
    let kept = table.targets[&name(A)].clone();
    assert_eq!(kept.admission(&name(NVME_HOST)).unwrap().dhchap, key(KEY).as_ref());
    assert!(!format!("{kept:?}").contains("AAEC"));
    let before = Target { initiators: vec![entry(NVME_HOST, KEY)], ..target(B) };
    let without = Target { initiators: vec![initiator(NVME_HOST, None)], ..target(B) };
    assert!(!without.permits_all_of(&before), "another key takes access away");
}

#[tokio::test]
async fn a_target_with_sessions_is_removed_only_by_force() {
    let fixture = Fixture::new().await;
    let (t, a) = (&fixture.targets, name(A));
    t.create(target(A)).await.unwrap();
    t.create(target(B)).await.unwrap();
    let applied = watch::Sender::new(0);
    let begin = |n| t.session_began(session(n, &a, &applied));
    let (first, second) = (begin(1), begin(2));
    let ids = |target: &IqnName| t.sessions(target).iter().map(|session| session.id).collect::<Vec<_>>();
    assert_eq!((ids(&a), ids(&name(B))), (vec![1, 2], vec![]));
    drop(first);
    assert_eq!(ids(&a), [2]);
    assert!(error_text(t.remove(&a, false).await).contains("has 1 session;"));
    assert!(error_text(t.remove_all(false).await).contains("--force"));
    t.remove(&name(B), false).await.unwrap();
    t.remove(&a, true).await.unwrap();
    drop(second);
    assert!(t.sessions(&a).is_empty() && error_text(t.remove(&a, true).await).contains("there is no target"));
}

/// A session that has no disk open.
struct NoLuns;

impl OpenLuns for NoLuns {
    fn has_open(&self, _: u16) -> bool {
        false
    }
}

fn session(n: u16, target: &IqnName, applied: &watch::Sender<u64>) -> SessionInfo {
    SessionInfo {
        id: n.into(),
        target: target.clone(),
        initiator: name(HOST),
        address: ([10, 0, 0, 1], n).into(),
        since_ms: 7,
        luns: std::sync::Weak::<NoLuns>::new(),
        end: Default::default(),
        applied: applied.subscribe(),
    }
}

#[tokio::test]
async fn a_revocation_waits_for_the_sessions_of_its_target() {
    let fixture = Fixture::new().await;
    let (t, a) = (&fixture.targets, name(A));
    t.create(Target { luns: (0..).zip([lun("v"), lun("v@s")]).collect(), ..target(A) }).await.unwrap();
    t.create(Target { luns: [(0, lun("v"))].into(), ..target(B) }).await.unwrap();
    let is_done = || t.served().revoked(|of| *of == a).now_or_never().is_some();
    let mut applied = Some(watch::Sender::new(0));
    let first = t.session_began(session(1, &a, applied.as_ref().unwrap()));
    // Nothing is taken away from it.
    t.unmap(&name(B), 0).await.unwrap();
    t.map(&a, Some(7), lun("v@s")).await.unwrap_err();
    t.allow(&a, initiator(HOST, None)).await.unwrap();
    assert!(is_done());
    // It waits until the session has applied it, or has ended.
    for ends in [false, true] {
        t.unmap(&a, ends.into()).await.unwrap();
        assert!(!is_done());
        match ends {
            false => drop(applied.as_ref().unwrap().send_replace(t.served().last_change())),
            true => drop(applied.take()),
        }
        assert!(is_done());
    }
    drop(first);
    // One that cannot apply a change does not delay it for ever.
    let applied = watch::Sender::new(0);
    let _second = t.session_began(session(2, &a, &applied));
    t.deny(&a, &name(HOST)).await.unwrap();
    tokio::time::pause();
    assert!(t.served().revoked(|of| *of != a).now_or_never().is_some(), "changes of others do not wait");
    t.served().revoked(|_| true).await;
}

#[tokio::test]
async fn a_change_of_a_target_wakes_the_sessions_of_this_target_only() {
    let fixture = Fixture::new().await;
    let t = &fixture.targets;
    for name in [A, B] {
        t.create(target(name)).await.unwrap();
    }
    let (a, b) = (t.served().changed_at(&name(A)), t.served().changed_at(&name(B)));
    t.map(&name(A), None, lun("v")).await.unwrap();
    assert_eq!(*a.borrow(), t.served().last_change());
    assert!(a.has_changed().unwrap() && !b.has_changed().unwrap());
    t.remove(&name(B), true).await.unwrap();
    assert!(b.has_changed().unwrap());
    // Of a standby, disks can have changed as well.
    let mut a = a;
    a.mark_unchanged();
    t.served().replace_with_disks((*t.snapshot()).clone());
    assert!(a.has_changed().unwrap());
}

#[tokio::test(start_paused = true)]
async fn administrators_wait_until_a_change_is_published() {
    let served = ServedTargets::new(TargetMap::new());
    let begun = tokio::time::Instant::now();
    served.published().await;
    assert_eq!(begun.elapsed(), Duration::ZERO, "nothing publishes");
    served.set_published(0);
    served.replace(TargetMap::new());
    let publishes = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        served.set_published(1);
    };
    tokio::join!(served.published(), publishes);
    assert_eq!(begun.elapsed(), Duration::from_secs(1));
    served.replace(TargetMap::new());
    served.published().await;
    assert!(begun.elapsed() > Duration::from_secs(2), "a bounded time");
}

#[test]
fn what_takes_access_away_is_known() {
    let before = Target {
        luns: [(0, lun("v"))].into(),
        initiators: vec![initiator(HOST, None)],
        chap: Some(chap("u", "0123456789ab")),
        ..target(A)
    };
    let one = |change: fn(&mut Target)| {
        let mut now = before.clone();
        change(&mut now);
        now.permits_all_of(&before)
    };
    assert!(one(|_| ()) && one(|t| t.open = true) && one(|t| drop(t.luns.insert(1, lun("v@s")))));
    assert!(one(|t| t.initiators.push(initiator(B, Some(vec![0])))));
    assert!(!one(|t| t.luns.clear()) && !one(|t| t.luns.get_mut(&0).unwrap().read_only = true));
    assert!(!one(|t| t.initiators.clear()) && !one(|t| t.initiators[0].luns = Some(vec![7])));
    assert!(!one(|t| t.chap = None) && !one(|t| t.luns.get_mut(&0).unwrap().disk = "w".into()));
    // An entry of an open target can restrict an initiator.
    let open = Target { open: true, ..target(A) };
    let restricted = Target { initiators: vec![initiator(HOST, Some(vec![]))], ..open.clone() };
    assert!(open.permits_all_of(&open) && !restricted.permits_all_of(&open));
    assert!(!target(A).permits_all_of(&open));
}

#[tokio::test]
async fn a_configuration_creates_its_targets_and_keeps_the_others() {
    let fixture = Fixture::new().await;
    let t = &fixture.targets;
    t.create(target(B)).await.unwrap();
    let wanted = |disks: &[&str]| Target {
        luns: (0..).zip(disks.iter().map(|disk| lun(disk))).collect(),
        initiators: vec![initiator(HOST, Some(vec![0, 1]))],
        ..target(A)
    };
    t.apply(&[wanted(&["v", "not yet", "v@s"])]).await.unwrap();
    let target = t.get(&name(A)).unwrap();
    let luns: Vec<_> = target.luns.iter().map(|(n, lun)| (*n, lun.disk.as_str(), lun.read_only)).collect();
    assert_eq!(luns, [(0, "v", false), (2, "v@s", true)]);
    assert_eq!((target.number, target.initiators[0].luns.as_deref()), (2, Some(&[0][..])));
    let changed = t.changed();
    t.apply(&[wanted(&["v", "not yet", "v@s"])]).await.unwrap();
    assert!(!changed.has_changed().unwrap(), "nothing is written");
    fixture.pool.create_volume("not yet", 1 << 20, SyncMode::Flush, 0).await.unwrap();
    t.unmap(&name(A), 0).await.unwrap();
    t.apply(&[wanted(&["v", "not yet", "v@s"])]).await.unwrap();
    let target = t.get(&name(A)).unwrap();
    assert_eq!((target.luns.len(), target.number), (3, 2));
    assert_eq!(target.initiators[0].luns.as_deref(), Some(&[0, 1][..]));
    assert!(t.get(&name(B)).is_some());
}

#[tokio::test]
async fn an_unreadable_table_is_kept_until_it_is_deleted() {
    let fixture = Fixture::new().await;
    fixture.targets.create(target(A)).await.unwrap();
    let newer = br#"{"version":2,"groups":[]}"#;
    fixture.pool.set_document(document::NAME, Some(newer)).await.unwrap();
    let fixture = fixture.restart().await;
    let t = &fixture.targets;
    assert!(t.snapshot().is_empty());
    let results = [
        t.check_readable().await,
        t.create(target(B)).await.map(drop),
        t.apply(&[target(B)]).await,
        t.remove(&name(A), true).await,
    ];
    for result in results {
        assert!(error_text(result).contains("it has version 2, this release supports version 1"));
    }
    // The contents of the table are unknown, so it cannot protect any disk.
    drop(t.unmapped("v").await.unwrap());
    let fixture = fixture.restart().await;
    let kept = fixture.pool.document(document::NAME).await.unwrap();
    assert_eq!(kept.as_deref(), Some(&newer[..]));
    fixture.targets.remove_all(false).await.unwrap();
    fixture.targets.check_readable().await.unwrap();
    fixture.targets.create(target(B)).await.unwrap();
    assert_eq!(fixture.restart().await.targets.snapshot().len(), 1);
}
