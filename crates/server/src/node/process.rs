//! The process of one shard: a server with the pool of the shard, started by the node.
//!
//! A process ends with the node that started it, also if the node is killed: the kernel sends it SIGTERM
//! then. It is in a separate process group, so that a signal of a terminal reaches the node only, which
//! stops the process in order. What the process writes to standard error goes to the log of the node, marked
//! with the number of the shard.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use forebay_api::client::{Client, ClientError};
use forebay_api::{ErrorDetail, Handover, NewOwner, OwnerView, ServerView};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::decide::Claim;
use crate::config::{NodeConfig, SOCKET_NAME};
use crate::log::LogFormat;
use crate::serve::{SHARD_PROCESS, SILENT_OWNER, ShardOf};

/// Maximum time for the orderly stop of a process. After that the process is killed, which is as safe as a
/// crash.
const STOP: Duration = Duration::from_secs(20);
/// Maximum time for an answer of the process to a question, and for a handover.
const ANSWER: Duration = Duration::from_secs(2);
const HANDOVER: Duration = Duration::from_secs(60);
/// Maximum length of a line of the log of a process.
const MAX_LINE: usize = 64 << 10;
/// Minimum read cache of a shard, in bytes.
const LEAST_CACHE: u64 = 16 << 20;

/// The ready line of a server.
#[derive(Debug, Clone, Default, Deserialize)]
struct Ready {
    #[serde(default)]
    nbd: Vec<String>,
}

/// The process of a shard.
pub(super) struct ShardProcess {
    child: Child,
    socket: PathBuf,
    ready: watch::Receiver<Option<Ready>>,
    last_line: watch::Receiver<String>,
}

/// The directory of the files of a shard's process.
pub(super) fn directory_of(data: &Path, shard: u32) -> PathBuf {
    data.join("shards").join(format!("{shard:05}"))
}

impl ShardProcess {
    /// Starts a process for the pool in this namespace.
    pub fn start(
        config: &NodeConfig,
        namespace: &str,
        own: &ShardOf,
        claim: Claim,
    ) -> io::Result<ShardProcess> {
        let (shard, data) = (own.shard, directory_of(&config.data, own.shard));
        std::fs::create_dir_all(&data)?;
        let socket = data.join(SOCKET_NAME);
        let mut command = Command::new(&config.program);
        command.arg("serve").arg("--json").arg("--data").arg(&data).arg("--socket").arg(&socket);
        if let Some(file) = &config.file {
            command.arg("--config").arg(file);
        }
        command.arg("--pool").arg(format!("rados:{}/{namespace}", config.cluster.pool));
        if let Some(conf) = &config.ceph.conf {
            command.arg("--ceph-conf").arg(conf);
        }
        if let Some(user) = &config.ceph.user {
            command.arg("--ceph-user").arg(user);
        }
        command.arg("--nbd").arg(format!("unix:{}", data.join("nbd.sock").display()));
        if let Some(address) = config.address {
            let any_port = SocketAddr::new(address, 0).to_string();
            command.args(["--nbd", &any_port, "--nbd-allow-remote", "--iscsi", &any_port]);
        }
        if config.log.format == LogFormat::Json {
            command.arg("--log-format").arg("json");
        }
        let cache = (config.cache / own.processes.max(1)).max(LEAST_CACHE);
        command.arg("--cache").arg(cache.to_string());
        command.arg("--cores").arg(config.cores.to_string());
        if let Some(directory) = &config.memory_dir {
            command.arg("--memory-dir").arg(directory);
        }
        for variable in
            ["NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", SILENT_OWNER]
        {
            command.env_remove(variable);
        }
        command.env(SHARD_PROCESS, serde_json::to_string(own)?).process_group(0);
        match claim {
            Claim::Free => {}
            Claim::Silent(sign) => drop(command.env(SILENT_OWNER, sign.to_string())),
            Claim::Standby => drop(command.arg("--standby")),
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let node = std::process::id();
        // SAFETY: the closure only makes system calls that are safe between fork and exec.
        unsafe {
            command.pre_exec(move || {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) != 0 {
                    return Err(io::Error::last_os_error());
                }
                // The node may have ended before the call.
                match libc::getppid().cast_unsigned() == node {
                    true => Ok(()),
                    false => Err(io::ErrorKind::BrokenPipe.into()),
                }
            });
        }
        let mut child = command.spawn()?;
        let (said_ready, ready) = watch::channel(None);
        let (said, last_line) = watch::channel(String::new());
        if let Some(output) = child.stdout.take() {
            tokio::spawn(follow(output, move |line| {
                if let Ok(found) = serde_json::from_str(&line) {
                    said_ready.send_replace(Some(found));
                }
            }));
        }
        if let Some(errors) = child.stderr.take() {
            tokio::spawn(follow(errors, move |line| {
                log_line(shard, &line);
                said.send_replace(message_of(line));
            }));
        }
        Ok(ShardProcess { child, socket, ready, last_line })
    }

    /// Where the process serves NBD to other hosts; `None` before it serves clients.
    pub fn nbd(&self) -> Option<Vec<String>> {
        let ready = self.ready.borrow();
        ready.as_ref().map(|ready| ready.nbd.iter().filter(|at| !at.starts_with("unix:")).cloned().collect())
    }

    /// Completes when the process begins to serve clients.
    pub fn serves(&self) -> impl Future<Output = ()> + use<> {
        let mut ready = self.ready.clone();
        async move {
            if ready.wait_for(Option::is_some).await.is_err() {
                // It has ended before.
                std::future::pending::<()>().await;
            }
        }
    }

    /// The status and the last line of a process that has ended; `None` while it runs.
    pub fn ended(&mut self) -> Option<(Option<ExitStatus>, String)> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some((Some(status), self.last_line.borrow().clone())),
            Err(e) => Some((None, e.to_string())),
        }
    }

    /// The ownership of the pool as the process reports it; `None` if it does not answer.
    pub async fn owner(&self) -> Option<OwnerView> {
        let client = Client::new(&self.socket);
        let shown = tokio::time::timeout(ANSWER, client.get::<ServerView>(&["pool"])).await;
        shown.ok()?.ok()?.owner
    }

    /// Hands the pool over to the server that waits for it.
    pub async fn hand_over(&self) -> Result<NewOwner, String> {
        let client = Client::new(&self.socket);
        let request = Handover { to: None };
        match tokio::time::timeout(HANDOVER, client.post(&["pool", "handover"], &request)).await {
            Ok(done) => done.map_err(|e: ClientError| e.to_string()),
            Err(_) => Err(format!("its process has not answered within {HANDOVER:?}")),
        }
    }

    /// Stops the process in order: it makes everything durable and releases the pool.
    pub async fn stop(&mut self) {
        if let Some(pid) = self.child.id().and_then(|pid| libc::pid_t::try_from(pid).ok()) {
            // SAFETY: the call accesses no memory. The child was not waited for, so its number is its own.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
        if tokio::time::timeout(STOP, self.child.wait()).await.is_err() {
            tracing::warn!("a process does not stop within {STOP:?} and is killed");
            // Fails only if the process has ended.
            let _ = self.child.kill().await;
        }
    }
}

/// Writes a line of a process to the log of the node. A log that cannot be written is not an error.
fn log_line(shard: u32, line: &str) {
    let mut out = io::stderr().lock();
    // A line that is a JSON object gets the shard as a member, so that the line is still an object.
    let _ = match line.strip_prefix('{').filter(|rest| rest.ends_with('}')) {
        Some(rest) => writeln!(out, "{{\"shard\":{shard},{rest}"),
        None => writeln!(out, "shard {shard:05}: {line}"),
    };
}

/// A line of the log, or the message of the error with which the process ends.
fn message_of(line: String) -> String {
    #[derive(Deserialize)]
    struct Failure {
        error: ErrorDetail,
    }
    match serde_json::from_str(&line) {
        Ok(Failure { error }) => error.message,
        Err(_) => line,
    }
}

/// Calls `line` for each line of a stream.
async fn follow(stream: impl AsyncRead + Unpin, mut line: impl FnMut(String)) {
    let mut stream = BufReader::new(stream);
    let mut text = Vec::new();
    loop {
        text.clear();
        let read = (&mut stream).take(MAX_LINE as u64).read_until(b'\n', &mut text).await;
        if !read.is_ok_and(|len| len > 0) {
            return;
        }
        line(String::from_utf8_lossy(&text).trim_end().to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_followed_whatever_they_contain() {
        let long = [b'x'; MAX_LINE + 10];
        let stream = [b"one\n\xff two\n".as_slice(), &long, b"\nlast"].concat();
        let mut lines = Vec::new();
        follow(stream.as_slice(), |line| lines.push(line)).await;
        assert_eq!(lines[..2], ["one", "\u{fffd} two"]);
        assert_eq!((lines[2].len(), lines[3].len(), lines[4].as_str()), (MAX_LINE, 10, "last"));
    }

    #[test]
    fn the_reason_of_an_end_is_the_message() {
        let error = r#"{"error":{"code":"not_served","message":"cannot open","remedy":"x"}}"#;
        assert_eq!(message_of(error.to_owned()), "cannot open");
        assert_eq!(message_of("other".to_owned()), "other");
    }
}
