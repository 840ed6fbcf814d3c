//! The binary: start, stop, kill and restart, output and exit statuses.
//!
//! Timeouts only end a test that hangs; they are far above the usual times.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::disk_bytes;

const TIMEOUT: Duration = Duration::from_secs(120);

/// A directory with a pool, and commands on it.
pub struct PoolDir {
    dir: tempfile::TempDir,
    /// For retained memory, which killed servers leave behind.
    memory: tempfile::TempDir,
}

/// A running server, killed when dropped.
pub struct Server {
    child: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    pub fn signal(&self, signal: i32) {
        // SAFETY: the process is a child that was not waited for yet, so its id is not reused.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn exit_code(&mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < TIMEOUT, "the server does not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl PoolDir {
    pub fn new() -> PoolDir {
        let memory = tempfile::Builder::new().prefix("forebay-it-").tempdir_in("/dev/shm").unwrap();
        PoolDir { dir: tempfile::tempdir().unwrap(), memory }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(args).arg("--data").arg(self.path("pool")).current_dir(self.dir.path());
        command.env_remove("FOREBAY_SOCKET").env_remove("FOREBAY_DATA").stdin(Stdio::null());
        command.env("FOREBAY_MEMORY_DIR", self.memory.path());
        command
    }

    /// Starts a server and waits until it reports that it is ready.
    pub fn serve(&self, args: &[&str]) -> Server {
        self.serve_logging(args, Stdio::null())
    }

    /// The same, with a destination for its log.
    pub fn serve_logging(&self, args: &[&str], log: Stdio) -> Server {
        let mut all = vec!["serve", "--cache", "16M"];
        all.extend(args);
        let mut child = self.command(&all).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let server = Server { child };
        assert!(line.starts_with("forebay is ready: control "), "{line}");
        server
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command that must succeed, and returns its standard output.
    pub fn ok(&self, args: &[&str]) -> String {
        let out = self.run(args);
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// Runs a command that must fail with this status and print one line, and returns the line.
    pub fn fails(&self, args: &[&str], code: i32) -> String {
        let out = self.run(args);
        assert_eq!(out.status.code(), Some(code), "{args:?}");
        assert!(out.stdout.is_empty(), "{args:?}");
        let error = String::from_utf8(out.stderr).unwrap();
        assert_eq!(error.lines().count(), 1, "{args:?}: {error}");
        assert!(error.starts_with("forebay: "), "{error}");
        error
    }

    fn names(&self, kind: &str) -> Vec<String> {
        let list: Vec<Value> = serde_json::from_str(&self.ok(&[kind, "list", "--json"])).unwrap();
        list.iter().map(|d| d["name"].as_str().unwrap().to_owned()).collect()
    }
}

#[test]
fn commands_work_and_report_failures_in_one_line() {
    let place = PoolDir::new();
    assert!(place.fails(&["volume", "list"], 1).contains("forebay serve --data DIR"));
    let mut server = place.serve(&[]);
    place.ok(&["volume", "create", "a b", "--size", "1G"]);
    assert!(place.ok(&["volume", "list"]).contains("a b"));
    let shown: Value = serde_json::from_str(&place.ok(&["volume", "show", "a b", "--json"])).unwrap();
    assert_eq!(shown["size_bytes"], 1 << 30);
    place.ok(&["snapshot", "create", "a b", "s"]);
    assert_eq!(place.ok(&["volume", "clone", "a b@s", "c", "--count", "3", "--json"]).lines().count(), 1);
    assert_eq!(place.names("volume"), ["a b", "c-001", "c-002", "c-003"]);
    assert!(place.ok(&["stats"]).contains("guest reads"));
    assert!(place.ok(&["stats", "a b", "--json"]).contains("\"read\""));
    assert!(place.ok(&["gc"]).starts_with("freed "));
    assert!(place.fails(&["volume", "rm", "a b"], 1).contains("remove them first"));
    assert!(place.fails(&["image", "rm", "a b"], 1).contains("is a volume"));
    assert!(place.fails(&["volume", "create", "x", "--size", "0"], 1).contains("not a usable size"));
    assert!(place.fails(&["volume", "create", &"n".repeat(300), "--size", "1G"], 1).contains("255 bytes"));
    assert!(place.fails(&["volume", "create", "x"], 2).contains("--help"));
    assert!(place.fails(&["check"], 1).contains("stop the server first"));
    server.signal(libc::SIGTERM);
    assert_eq!(server.exit_code(), Some(0));
    assert!(!place.path("pool/forebay.sock").exists());
    let sound = place.ok(&["check"]);
    assert!(sound.starts_with("sound: 5 disks"), "{sound}");
    assert!(place.ok(&["inspect"]).contains("SUPERBLOCK"));
    let found: Value = serde_json::from_str(&place.ok(&["inspect", "--json"])).unwrap();
    let segment = found["segments"][0]["segment"].as_str().unwrap().to_owned();
    assert!(place.ok(&["inspect", &segment]).contains("CATALOGUE"));
}

/// Names that would forge a log line, or send escape sequences to the reader's terminal.
#[test]
fn names_are_escaped_in_the_log_and_on_the_terminal() {
    let place = PoolDir::new();
    let nbd = format!("unix:{}", place.path("nbd").display());
    let log = fs::File::create(place.path("log")).unwrap();
    let mut server = place.serve_logging(&["--nbd", &nbd], log.into());
    let name = "x\nERROR forged \u{1b}[2J\u{9b}1m\u{202e}";
    let mut client = UnixStream::connect(place.path("nbd")).unwrap();
    // Flags of the client, and NBD_OPT_EXPORT_NAME.
    let option =
        [&3_u32.to_be_bytes()[..], b"IHAVEOPT", &1_u32.to_be_bytes(), &(name.len() as u32).to_be_bytes()];
    client.write_all(&[option.concat().as_slice(), name.as_bytes()].concat()).unwrap();
    let _ = client.read_to_end(&mut Vec::new());

    let refused = place.fails(&["volume", "create", "a\u{202e}b", "--size", "1M"], 1);
    assert!(refused.contains("a\\u{202e}b") && !refused.contains('\u{202e}'), "{refused:?}");
    let error = place.fails(&["image", "import", "x", "/none/\u{1b}[2J"], 1);
    assert!(error.contains("/none/\\u{1b}[2J"), "{error:?}");

    server.signal(libc::SIGTERM);
    assert_eq!(server.exit_code(), Some(0));
    let log = fs::read_to_string(place.path("log")).unwrap();
    assert!(log.contains("ERROR forged"), "{log:?}");
    assert!(log.lines().all(|line| !line.starts_with("ERROR")), "{log:?}");
    assert!(!log.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{log:?}");
}

/// Returns the segment file and the offset of the batch that created a disk.
fn batch_that_created(place: &PoolDir, disk: &str) -> (PathBuf, u64) {
    let found: Value = serde_json::from_str(&place.ok(&["inspect", "--json"])).unwrap();
    for segment in found["segments"].as_array().unwrap() {
        let name = segment["segment"].as_str().unwrap();
        let batches: Vec<Value> = serde_json::from_str(&place.ok(&["inspect", name, "--json"])).unwrap();
        let created = |b: &&Value| b["catalogue"].to_string().contains(&format!("'{disk}'"));
        if let Some(batch) = batches.iter().find(created) {
            let file = walk(&place.path("pool")).into_iter().find(|p| p.ends_with(format!("{name}.seg")));
            return (file.unwrap(), batch["offset"].as_u64().unwrap());
        }
    }
    panic!("no batch creates {disk}");
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    entries.flat_map(|p| if p.is_dir() { walk(&p) } else { vec![p] }).collect()
}

fn flip_a_bit(file: &Path, at: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn a_damaged_log_is_not_opened_until_its_loss_is_accepted() {
    let place = PoolDir::new();
    let mut server = place.serve(&[]);
    for name in ["a", "b", "c", "d"] {
        place.ok(&["volume", "create", name, "--size", "1M"]);
    }
    server.signal(libc::SIGKILL);
    server.exit_code();
    assert!(place.ok(&["recover"]).contains("nothing is lost"));
    let (file, offset) = batch_that_created(&place, "b");
    flip_a_bit(&file, offset + 1000);

    let out = place.command(&["serve"]).env("FOREBAY_LOG", "error").output().unwrap();
    let error = String::from_utf8(out.stderr).unwrap();
    assert!(error.lines().count() == 1 && error.contains("forebay recover"), "{error}");
    assert!(error.contains(&format!("offset {offset}")), "{error}");
    let check = place.run(&["check"]);
    assert_eq!(check.status.code(), Some(1));
    assert!(String::from_utf8(check.stdout).unwrap().contains("the log is damaged"));

    let reported = place.run(&["recover", "--json"]);
    assert_eq!(reported.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&reported.stdout).unwrap();
    assert_eq!(report["accepted"], false);
    let id = report["damage"]["id"].as_u64().unwrap();
    assert!(report["damage"]["catalogue"].to_string().contains("'c'"), "{report}");
    let text = String::from_utf8(place.run(&["recover"]).stdout).unwrap();
    assert!(text.contains(&format!("offset {offset}: a batch is damaged")), "{text}");

    let other = place.fails(&["recover", "--accept-loss", &(id + 1).to_string()], 1);
    assert!(other.contains(&id.to_string()), "{other}");
    // After the damage is repaired, there is no loss to accept.
    flip_a_bit(&file, offset + 1000);
    assert!(place.fails(&["recover", "--accept-loss", &id.to_string()], 1).contains("not damaged"));
    flip_a_bit(&file, offset + 1000);
    assert!(place.ok(&["recover", "--accept-loss", &id.to_string()]).contains("accepted: the pool opens"));
    assert!(place.ok(&["recover"]).contains("nothing is lost"));
    let server = place.serve(&[]);
    assert_eq!(place.names("volume"), ["a"]);
    assert!(place.fails(&["recover"], 1).contains("stop the server first"));
    drop(server);
}

#[test]
fn a_second_server_on_a_pool_is_refused_without_effect_on_the_first() {
    let place = PoolDir::new();
    let _first = place.serve(&[]);
    place.ok(&["volume", "create", "v", "--size", "1M"]);
    let out = place.command(&["serve"]).env("FOREBAY_LOG", "error").output().unwrap();
    let error = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!((out.status.code(), error.lines().count()), (Some(1), 1), "{error}");
    assert!(error.contains("in use by another process"), "{error}");
    let elsewhere = place.path("other.sock").display().to_string();
    assert_eq!(place.run(&["serve", "--socket", &elsewhere]).status.code(), Some(1));
    place.ok(&["volume", "create", "w", "--size", "1M"]);
    assert_eq!(place.names("volume"), ["v", "w"]);
}

#[test]
fn a_data_directory_with_other_files_is_refused_and_unchanged() {
    let place = PoolDir::new();
    fs::create_dir(place.path("pool")).unwrap();
    fs::write(place.path("pool/other.txt"), "other").unwrap();
    let out = place.command(&["serve"]).env("FOREBAY_LOG", "error").output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("other files"));
    assert_eq!(fs::read_dir(place.path("pool")).unwrap().count(), 1);
}

/// SIGTERM during changes and an import: all changes that were acknowledged persist, and no partial import
/// remains.
#[test]
fn sigterm_under_load_loses_no_acknowledged_change() {
    let place = PoolDir::new();
    fs::write(place.path("disk"), disk_bytes(64 << 20, 3)).unwrap();
    let mut server = place.serve(&[]);
    let stop = AtomicBool::new(false);
    let (created, imported) = std::thread::scope(|scope| {
        let creators: Vec<_> = (0..3)
            .map(|thread| {
                let (place, stop) = (&place, &stop);
                scope.spawn(move || {
                    let names = (0..).map(|n| format!("v{thread}-{n}"));
                    let created = |name: &String| {
                        place.run(&["volume", "create", name, "--size", "1M"]).status.success()
                    };
                    names
                        .take_while(|_| !stop.load(Ordering::Relaxed))
                        .take_while(created)
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let importer = scope.spawn(|| place.run(&["image", "import", "disk", "disk"]).status.success());
        while place.names("volume").len() < 6 {
            std::thread::sleep(Duration::from_millis(20));
        }
        server.signal(libc::SIGTERM);
        assert_eq!(server.exit_code(), Some(0));
        stop.store(true, Ordering::Relaxed);
        let volumes: Vec<String> = creators.into_iter().flat_map(|c| c.join().unwrap()).collect();
        (volumes, importer.join().unwrap())
    });
    let _server = place.serve(&[]);
    let names = place.names("volume");
    for name in &created {
        assert!(names.contains(name), "{name} was created, but does not exist after the restart");
    }
    assert_eq!(place.names("image").len(), usize::from(imported));
    place.ok(&["volume", "rm", &names[0]]);
}

/// An import leaves nothing behind after `kill -9` of the server, and after Ctrl-C of the command.
#[test]
fn an_interrupted_import_leaves_nothing_behind() {
    let place = PoolDir::new();
    fs::write(place.path("disk"), disk_bytes(96 << 20, 3)).unwrap();
    let mut server = place.serve(&[]);
    let import = |name: &str| {
        let mut command = place.command(&["image", "import", name, "disk"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut client = import("first");
    std::thread::sleep(Duration::from_millis(30));
    server.signal(libc::SIGKILL);
    assert_eq!(server.exit_code(), None);
    let done = client.wait().unwrap().success();
    let _server = place.serve(&[]);
    assert_eq!(place.names("image").len(), usize::from(done));

    let mut client = import("second");
    std::thread::sleep(Duration::from_millis(30));
    // SAFETY: the process is a child that was not waited for yet, so its id is not reused.
    unsafe { libc::kill(client.id() as i32, libc::SIGINT) };
    let done = client.wait().unwrap().success();
    if !done {
        // The name is free as soon as the server has detected the disconnect.
        let begun = Instant::now();
        while !place.run(&["image", "import", "second", "disk"]).status.success() {
            assert!(begun.elapsed() < TIMEOUT);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    assert!(place.names("image").contains(&"second".to_owned()));
}

#[test]
fn a_second_signal_exits_at_once_and_a_stale_socket_is_replaced() {
    let place = PoolDir::new();
    let mut server = place.serve(&[]);
    server.signal(libc::SIGKILL);
    server.exit_code();
    assert!(place.path("pool/forebay.sock").exists(), "the socket exists after a kill");
    assert!(place.fails(&["volume", "list"], 1).contains("stale socket"));
    let mut server = place.serve(&["--http", "127.0.0.1:0"]);
    let pool: Value = serde_json::from_str(&place.ok(&["stats", "--json"])).unwrap();
    assert_eq!(pool["disks"], 0);
    server.signal(libc::SIGTERM);
    server.signal(libc::SIGINT);
    // The server may have stopped before the second signal.
    assert!(matches!(server.exit_code(), Some(0 | 1)));
}

#[test]
fn the_service_manager_is_notified_of_start_and_stop() {
    let place = PoolDir::new();
    let socket = std::os::unix::net::UnixDatagram::bind(place.path("notify")).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut command = place.command(&["serve"]);
    command.env("NOTIFY_SOCKET", place.path("notify")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Server { child: command.spawn().unwrap() };
    let receive = || {
        let mut buffer = [0; 64];
        let n = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..n]).into_owned()
    };
    assert_eq!(receive(), "READY=1");
    place.ok(&["volume", "list"]);
    server.signal(libc::SIGTERM);
    assert_eq!(receive(), "STOPPING=1");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn completions_and_manual_include_all_commands() {
    let place = PoolDir::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(place.ok(&["completions", shell]).contains("snapshot"), "{shell}");
    }
    let page = place.ok(&["man"]);
    assert!(page.contains("FOREBAY VOLUME CLONE") && page.contains("\\-\\-count"), "{page}");
}
