//! The operations of RADOS, on a real cluster. The tests run if `FOREBAY_CEPH_CONF` names the configuration
//! of a cluster for tests, with a pool named `test`; one test creates and deletes another pool.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_store::rados::librados::LibradosCluster;
use forebay_store::rados::{Answer, Cluster, Errno, RadosAddress, RadosOptions, Step, Wanted, WhenFull};
use forebay_store::{IoBuf, StoreError};

use super::common::{block_on, pattern};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// A connection to a namespace without objects, which are deleted at the end.
struct Namespace {
    cluster: Arc<LibradosCluster>,
    address: RadosAddress,
}

fn write_step(offset: u64, bytes: IoBuf) -> Step {
    Step::Write(offset, Arc::new(bytes))
}

/// The configuration, or `None` if there is no cluster.
fn conf() -> Option<String> {
    let conf = std::env::var("FOREBAY_CEPH_CONF").ok();
    if conf.is_none() {
        println!("skipped: FOREBAY_CEPH_CONF does not name a ceph.conf");
    }
    conf
}

fn connect(address: &RadosAddress, conf: &str) -> Result<Arc<LibradosCluster>, StoreError> {
    LibradosCluster::connect(address, &RadosOptions { conf: Some(conf.into()), user: None })
}

impl Namespace {
    fn new(pool: &str, test: &str) -> Option<Namespace> {
        let conf = conf()?;
        let name = format!("{test}-{}", std::process::id());
        let address: RadosAddress = format!("rados:{pool}/{name}").parse().unwrap();
        Some(Namespace { cluster: connect(&address, &conf).unwrap(), address })
    }

    /// Another connection.
    fn again(&self) -> Arc<LibradosCluster> {
        connect(&self.address, &conf().unwrap()).unwrap()
    }

    async fn operate(&self, object: &str, steps: Vec<Step>) -> Answer<()> {
        self.cluster.operate(object, steps, WhenFull::Fail).await
    }

    async fn clear(&self) {
        for name in self.cluster.list().await.unwrap() {
            self.operate(&name, vec![Step::Remove]).await.unwrap();
        }
    }
}

fn failed<T>(errno: i32) -> Answer<T> {
    Err(Errno(errno))
}

fn set(name: &'static str, value: &str) -> Step {
    Step::Set(name, value.to_owned())
}

fn require(name: &'static str, value: &str) -> Step {
    Step::Require(name, value.to_owned())
}

fn at_most(name: &'static str, value: &str) -> Step {
    Step::RequireAtMost(name, value.to_owned())
}

#[test]
fn an_object_is_created_once_and_removed() {
    let Some(n) = Namespace::new("test", "create") else { return };
    block_on(async {
        let create = || vec![Step::Create, Step::Expect(32 << 20), set("t", "1")];
        assert_eq!(n.operate("a", create()).await, Ok(()));
        assert_eq!(n.operate("a", create()).await, failed(libc::EEXIST));
        assert_eq!(n.cluster.len_of("a").await, Ok(0));
        assert_eq!(n.operate("b", create()).await, Ok(()));
        let mut names = n.cluster.list().await.unwrap();
        names.sort();
        assert_eq!(names, ["a", "b"], "only those of the namespace");
        assert_eq!(n.operate("a", vec![Step::Remove]).await, Ok(()));
        assert_eq!(n.operate("a", vec![Step::Remove]).await, failed(libc::ENOENT));
        assert_eq!(n.operate("a", vec![Step::AssertExists, set("t", "2")]).await, failed(libc::ENOENT));
        assert_eq!(n.cluster.len_of("a").await, failed(libc::ENOENT));
        assert_eq!(n.cluster.read("a", 0, 10).await.err(), Some(Errno(libc::ENOENT)));
        assert_eq!(n.cluster.read("a", 0, 0).await.err(), Some(Errno(libc::ENOENT)));
        assert_eq!(n.cluster.contents("a", 10).await.err(), Some(Errno(libc::ENOENT)));
        assert_eq!(n.cluster.list().await.unwrap(), ["b"]);
        n.clear().await;
        assert_eq!(n.cluster.list().await.unwrap(), Vec::<String>::new());
    });
}

#[test]
fn comparisons_decide_whether_an_operation_takes_effect() {
    let Some(n) = Namespace::new("test", "compare") else { return };
    block_on(async {
        n.operate("a", vec![Step::Create, set("t", "00000000000000fe")]).await.unwrap();
        let canceled = failed(libc::ECANCELED);
        let write = |guard: Step| n.operate("a", vec![guard, set("w", "x"), write_step(0, pattern(1, 4096))]);
        assert_eq!(write(require("t", "00000000000000ff")).await, canceled);
        assert_eq!(write(require("t", "")).await, canceled);
        assert_eq!(write(require("t", "00000000000000f")).await, canceled, "a prefix");
        assert_eq!(write(require("missing", "x")).await, canceled);
        assert_eq!(write(at_most("t", "00000000000000fd")).await, canceled);
        assert_eq!(write(at_most("t", "")).await, canceled);
        assert_eq!(n.cluster.len_of("a").await, Ok(0), "nothing took effect");
        assert_eq!(n.cluster.contents("a", 1).await.unwrap().attribute("w"), "");
        assert_eq!(write(require("t", "00000000000000fe")).await, Ok(()));
        assert_eq!(write(require("missing", "")).await, Ok(()), "a missing attribute is empty");
        for greater in ["00000000000000fe", "00000000000000ff", "0000000000000100", "1"] {
            assert_eq!(write(at_most("t", greater)).await, Ok(()), "{greater}");
        }
        assert_eq!(write(at_most("missing", "")).await, Ok(()));
        // The first step that fails decides, and one after a change sees it.
        let steps = vec![set("t", "2"), require("t", "2"), require("t", "3")];
        assert_eq!(n.operate("a", steps).await, canceled);
        assert_eq!(n.cluster.contents("a", 1).await.unwrap().attribute("t"), "00000000000000fe");
        // Without the object.
        assert_eq!(n.operate("b", vec![require("t", "1"), set("t", "2")]).await, failed(libc::ENOENT));
        n.clear().await;
    });
}

#[test]
fn contents_are_attributes_keys_and_bytes() {
    let Some(n) = Namespace::new("test", "contents") else { return };
    block_on(async {
        n.operate("a", vec![Step::Create]).await.unwrap();
        let empty = n.cluster.contents("a", 100).await.unwrap();
        assert!(empty.attributes.is_empty() && empty.keys.is_empty() && empty.bytes.is_empty());
        let keys: Vec<String> = (0..5_000).map(|k| format!("key-{k:05}")).collect();
        let bytes = pattern(2, 8 * KIB);
        let steps = vec![
            set("owner", "a node"),
            set("empty", ""),
            Step::AddKeys(keys.clone()),
            Step::AddKeys(Vec::new()),
            write_step(0, IoBuf::from(&bytes[..])),
        ];
        n.operate("a", steps).await.unwrap();
        let contents = n.cluster.contents("a", 5000).await.unwrap();
        assert_eq!(contents.attribute("owner"), "a node");
        assert_eq!((contents.attribute("empty"), contents.attributes.len()), (String::new(), 2));
        assert_eq!(contents.keys, keys, "all pages, in order");
        assert_eq!(contents.bytes, bytes[..5000]);
        let removed = vec!["key-00000".to_owned(), "missing".to_owned()];
        n.operate("a", vec![Step::RemoveKeys(removed), Step::RemoveKeys(Vec::new())]).await.unwrap();
        let contents = n.cluster.contents("a", 0).await.unwrap();
        assert_eq!(contents.keys, keys[1..]);
        assert!(contents.bytes.is_empty());
        let whole = n.cluster.contents("a", MIB).await.unwrap();
        assert_eq!(whole.bytes, bytes[..], "shorter than requested");
        let wrong = vec![Step::AddKeys(vec!["zero\0byte".to_owned()])];
        assert_eq!(n.operate("a", wrong).await, failed(libc::EINVAL));
        assert_eq!(n.operate("zero\0byte", vec![Step::Create]).await, failed(libc::EINVAL));
        n.clear().await;
    });
}

#[test]
fn entries_are_compared_and_read() {
    let Some(n) = Namespace::new("test", "entries") else { return };
    block_on(async {
        let entry = |key: &str, value: &str| (key.to_owned(), value.as_bytes().to_vec());
        let requires = |key: &str, value: &str| Step::RequireEntry(key.to_owned(), value.into());
        let canceled = failed(libc::ECANCELED);
        let adds = || Step::SetEntries(vec![entry("k.a", "1"), entry("k.b", "2"), entry("l", "3")]);
        assert_eq!(n.operate("a", vec![requires("k.a", ""), adds()]).await, failed(libc::ENOENT));
        n.operate("a", vec![Step::Create, set("version", "1")]).await.unwrap();
        assert_eq!(n.operate("a", vec![requires("k.a", ""), adds()]).await, Ok(()), "a missing one is empty");
        assert_eq!(n.operate("a", vec![requires("k.a", ""), adds()]).await, canceled);
        let removes = || Step::RemoveKeys(vec!["l".to_owned()]);
        assert_eq!(
            n.operate("a", vec![requires("k.a", "1"), requires("k.b", "1"), removes()]).await,
            canceled
        );
        let read = async |wanted| n.cluster.entries("a", wanted).await.unwrap();
        assert_eq!(read(Wanted::Prefix(String::new())).await.entries.len(), 3, "nothing took effect");
        let swaps = vec![requires("k.a", "1"), Step::SetEntries(vec![entry("k.a", "x\0y")]), removes()];
        assert_eq!(n.operate("a", swaps).await, Ok(()));
        let found = read(Wanted::Prefix("k.".into())).await;
        assert_eq!(found.entries, [entry("k.a", "x\0y"), entry("k.b", "2")]);
        assert_eq!(found.attribute("version"), "1");
        assert_eq!(read(Wanted::Keys(vec!["k.b".into(), "m".into()])).await.entries, [entry("k.b", "2")]);
        let none = read(Wanted::Keys(Vec::new())).await;
        assert_eq!((none.entries.len(), none.attribute("version").as_str()), (0, "1"));
        assert_eq!(n.cluster.entries("b", Wanted::Keys(Vec::new())).await.err(), Some(Errno(libc::ENOENT)));
        // More than an OSD returns at a time.
        let many: Vec<_> = (0..5_000).map(|key| entry(&format!("m.{key:05}"), &"v".repeat(100))).collect();
        n.operate("a", vec![Step::SetEntries(many.clone())]).await.unwrap();
        assert_eq!(read(Wanted::Prefix("m.".into())).await.entries, many);
        assert_eq!(read(Wanted::Prefix("m.0499".into())).await.entries, many[4_990..]);
        n.clear().await;
    });
}

#[test]
fn namespaces_share_a_client() {
    let Some(n) = Namespace::new("test", "shared") else { return };
    block_on(async {
        let other = n.cluster.namespace(&format!("{}.other", n.address.name)).unwrap();
        n.operate("a", vec![Step::Create]).await.unwrap();
        other.operate("b", vec![Step::Create], WhenFull::Fail).await.unwrap();
        assert_eq!(n.cluster.list().await.unwrap(), ["a"]);
        assert_eq!(other.list().await.unwrap(), ["b"]);
        n.clear().await;
        // The one that was connected first is closed first.
        drop(n);
        other.sleep(Duration::from_millis(1)).await;
        assert_eq!(other.operate("b", vec![Step::Remove], WhenFull::Fail).await, Ok(()));
        assert_eq!(other.list().await.unwrap(), Vec::<String>::new());
    });
}

#[test]
fn reads_end_at_the_end_of_the_object() {
    let Some(n) = Namespace::new("test", "read") else { return };
    block_on(async {
        let bytes = pattern(3, 2 * MIB);
        n.operate("a", vec![Step::Create, write_step(0, IoBuf::from(&bytes[..]))]).await.unwrap();
        assert_eq!(n.cluster.len_of("a").await, Ok(2 * MIB as u64));
        let read = async |offset: usize, len| n.cluster.read("a", offset as u64, len).await.unwrap();
        assert_eq!(read(0, 2 * MIB).await[..], bytes[..]);
        assert_eq!(read(4096, 4096).await[..], bytes[4096..8192]);
        assert_eq!(read(2 * MIB - 4096, 64 * KIB).await[..], bytes[2 * MIB - 4096..]);
        assert_eq!(read(2 * MIB, 4096).await.len(), 0);
        assert_eq!(read(8 * MIB, 4096).await.len(), 0);
        assert_eq!(read(0, 0).await.len(), 0);
        n.clear().await;
    });
}

#[test]
fn concurrent_operations_on_an_object_take_effect_in_order() {
    const COUNT: usize = 1_000;
    let Some(n) = Namespace::new("test", "order") else { return };
    block_on(async {
        n.operate("a", vec![Step::Create, set("n", "0")]).await.unwrap();
        // Twice the bounds of what is in flight, in number and in bytes.
        let append = |k: usize| {
            let len = if k.is_multiple_of(10) { MIB } else { 4 * KIB };
            let steps = vec![
                require("n", &k.to_string()),
                set("n", &(k + 1).to_string()),
                write_step((k * 4 * KIB) as u64, pattern(k as u64, len)),
            ];
            n.cluster.operate("a", steps, WhenFull::Fail)
        };
        let small = |k: usize| {
            let steps = vec![require("n", &k.to_string()), set("n", &(k + 1).to_string())];
            n.cluster.operate("a", steps, WhenFull::Fail)
        };
        let mut answers: Vec<_> = (0..COUNT).map(append).collect();
        answers.extend((COUNT..2 * COUNT).map(small));
        let contents = n.cluster.contents("a", 0);
        for (k, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer.await, Ok(()), "operation {k}");
        }
        assert_eq!(contents.await.unwrap().attribute("n"), (2 * COUNT).to_string());
        for k in (0..COUNT - 1).filter(|k| !k.is_multiple_of(10)) {
            let read = n.cluster.read("a", (k * 4 * KIB) as u64, 4 * KIB).await.unwrap();
            assert_eq!(read[..], pattern(k as u64, 4 * KIB)[..], "append {k}");
        }
        n.clear().await;
    });
}

#[test]
fn operations_take_effect_if_their_futures_are_dropped() {
    let Some(n) = Namespace::new("test", "drop") else { return };
    block_on(async {
        let bytes = pattern(4, 64 * KIB);
        n.operate("a", vec![Step::Create]).await.unwrap();
        for k in 0..300 {
            let offset = (k * 64 * KIB) as u64;
            let write = vec![write_step(offset, IoBuf::from(&bytes[..]))];
            drop(n.cluster.operate("a", write, WhenFull::Fail));
            drop(n.cluster.read("a", 0, MIB));
            drop(n.cluster.contents("a", MIB));
            drop(n.cluster.len_of("a"));
        }
        drop(n.cluster.list());
        drop(n.cluster.capacity());
        let last = vec![Step::AddKeys(vec!["k".to_owned()]), set("done", "yes")];
        drop(n.cluster.operate("a", last, WhenFull::Fail));
    });
    let again = n.again();
    // The connection is closed when all that was begun has ended.
    drop(n);
    block_on(async {
        until("the last operation", async || {
            again.contents("a", 0).await.unwrap().attribute("done") == "yes"
        })
        .await;
        let contents = again.contents("a", 0).await.unwrap();
        assert_eq!(contents.keys, ["k"]);
        assert_eq!(again.len_of("a").await, Ok(300 * 64 * KIB as u64));
        again.operate("a", vec![Step::Remove], WhenFull::Fail).await.unwrap();
    });
}

#[test]
fn a_task_can_drop_the_connection() {
    let Some(n) = Namespace::new("test", "task") else { return };
    let (done, ended) = std::sync::mpsc::channel();
    let (go, gone) = tokio::sync::oneshot::channel();
    let cluster = n.cluster.clone();
    n.cluster.spawn(Box::pin(async move {
        let _ = gone.await;
        cluster.sleep(Duration::from_millis(1)).await;
        let answer = cluster.operate("a", vec![Step::Remove], WhenFull::Fail).await;
        let is_last = Arc::strong_count(&cluster) == 1;
        drop(cluster);
        let _ = done.send((answer, is_last));
    }));
    drop(n);
    go.send(()).unwrap();
    assert_eq!(ended.recv(), Ok((failed(libc::ENOENT), true)));
    // The thread of the connection ends, and with it all tasks.
    assert!(ended.recv().is_err());
}

/// Runs the client of Ceph for administrators.
fn ceph(arguments: &[&str]) {
    let conf = conf().unwrap();
    let out = Command::new("ceph").args(["-c", &conf]).args(arguments).output().unwrap();
    assert!(out.status.success(), "ceph {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Waits until a condition holds.
async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition().await {
        assert!(Instant::now() < end, "{what} was awaited for a minute");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_full_pool_refuses_data_but_not_what_must_proceed() {
    if conf().is_none() {
        return;
    }
    let pool = format!("forebay-full-{}", std::process::id());
    ceph(&["osd", "pool", "create", &pool, "1"]);
    let n = Namespace::new(&pool, "full").unwrap();
    block_on(async {
        let write = |k: u64| vec![write_step(k * MIB as u64, pattern(k, MIB))];
        n.operate("a", [vec![Step::Create], write(0), write(1)].into_iter().flatten().collect())
            .await
            .unwrap();
        n.operate("b", vec![Step::Create]).await.unwrap();
        until("the use of the pool", async || n.cluster.capacity().await.unwrap().free > 0).await;
        ceph(&["osd", "pool", "set-quota", &pool, "max_bytes", &MIB.to_string()]);
        // Only growth is refused.
        let mut end = 2;
        let mut grows = async || {
            end += 1;
            n.operate("a", write(end - 1)).await
        };
        until("the shortage", async || grows().await == failed(libc::EDQUOT)).await;
        assert_eq!(n.operate("a", write(0)).await, Ok(()), "the same place again");
        until("a capacity of 0", async || n.cluster.capacity().await.unwrap().free == 0).await;
        let total = n.cluster.capacity().await.unwrap().total;
        assert!(total >= 2 * MIB as u64, "what is stored: {total}");
        let proceed = |object: &str, steps| n.cluster.operate(object, steps, WhenFull::Proceed);
        assert_eq!(proceed("b", vec![write_step(0, pattern(9, 4096))]).await, Ok(()));
        assert_eq!(proceed("b", vec![Step::AddKeys(vec!["k".to_owned()]), set("t", "1")]).await, Ok(()));
        assert_eq!(n.operate("c", vec![Step::Create]).await, failed(libc::EDQUOT));
        assert_eq!(proceed("c", vec![Step::Create]).await, Ok(()));
        assert_eq!(n.operate("b", vec![require("t", "2"), set("t", "3")]).await, failed(libc::ECANCELED));
        let contents = n.cluster.contents("b", 4096).await.unwrap();
        assert_eq!(contents.bytes, pattern(9, 4096)[..], "reads are not affected");
        assert_eq!(n.cluster.len_of("b").await, Ok(4096));
        assert_eq!(proceed("a", vec![Step::Remove]).await, Ok(()));
        ceph(&["osd", "pool", "set-quota", &pool, "max_bytes", "0"]);
        until("the end", async || n.operate("b", write(0)).await == Ok(())).await;
    });
    drop(n);
    ceph(&["osd", "pool", "delete", &pool, &pool, "--yes-i-really-really-mean-it"]);
}

#[test]
fn capacity_is_that_of_the_data_and_is_kept() {
    let Some(n) = Namespace::new("test", "capacity") else { return };
    block_on(async {
        let first = n.cluster.capacity().await.unwrap();
        assert!(first.total >= first.free && first.free > 0, "{first:?}");
        let begun = Instant::now();
        for _ in 0..10_000 {
            n.cluster.capacity().await.unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    });
}

#[test]
fn errors_of_opening_say_what_to_do() {
    let Some(conf) = conf() else { return };
    let text = |address: &str, conf: &str| {
        connect(&address.parse().unwrap(), conf).err().map(|e| e.to_string()).unwrap_or_default()
    };
    let missing = text("rados:forebay-missing/x", &conf);
    let expected = "rados:forebay-missing/x cannot be opened: the Ceph pool forebay-missing does not exist; \
                    create it: ceph osd pool create forebay-missing; ceph osd pool application enable \
                    forebay-missing forebay";
    assert_eq!(missing, expected);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ceph.conf");
    let name = path.to_str().unwrap();
    assert!(
        text("rados:test/x", name).ends_with("ceph.conf does not exist; copy it from a node of the cluster")
    );
    std::fs::write(&path, "[global]\nauth_client_required = none\n").unwrap();
    assert!(text("rados:test/x", name).contains("check mon_host"), "{}", text("rados:test/x", name));
    // A monitor that accepts connections and does not answer.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    std::fs::write(
        &path,
        format!("[global]\nauth_client_required = none\nmon_host = [v2:127.0.0.1:{port}/0]\n"),
    )
    .unwrap();
    let begun = Instant::now();
    let silent = text("rados:test/x", name);
    assert!(silent.contains("monitors do not answer"), "{silent}");
    assert!(begun.elapsed() > Duration::from_secs(5), "{:?}", begun.elapsed());
}
