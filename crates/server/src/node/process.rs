//! The process of one shard: a server with the pool of the shard, started by the node.
//!
//! A process ends with the node that started it, also if the node is killed: the kernel sends it SIGTERM then.
//! What it writes to standard error goes to the log of the node, marked with the number of the shard.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use forebay_api::client::{Client, ClientError};
use forebay_api::{ErrorDetail, Handover, NewOwner, ServerView};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::NodeConfig;
use super::decide::Claim;
use crate::config::SOCKET_NAME;
use crate::log::LogFormat;
use crate::serve::SILENT_OWNER;

/// Longest time for the orderly stop of a process, after which it is killed: as safe as a crash.
const STOP: Duration = Duration::from_secs(20);

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
    /// Starts a process. `budget` is its share of the node's read cache, in bytes.
    pub fn start(
        config: &NodeConfig,
        shard: u32,
        namespace: &str,
        claim: Claim,
        budget: u64,
    ) -> io::Result<ShardProcess> {
        let data = directory_of(&config.data, shard);
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
            command.arg("--nbd").arg(std::net::SocketAddr::new(address, 0).to_string());
            command.arg("--nbd-allow-remote");
        }
        if config.log.format == LogFormat::Json {
            command.arg("--log-format").arg("json");
        }
        command.arg("--cache").arg(budget.to_string());
        command.arg("--cores").arg(config.cores.to_string());
        if let Some(directory) = &config.memory_dir {
            command.arg("--memory-dir").arg(directory);
        }
        for variable in
            ["NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", SILENT_OWNER]
        {
            command.env_remove(variable);
        }
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
                if let Ok(found) = serde_json::from_str(line) {
                    said_ready.send_replace(Some(found));
                }
            }));
        }
        if let Some(errors) = child.stderr.take() {
            tokio::spawn(follow(errors, move |line| {
                let line = message_of(line);
                eprintln!("shard {shard:05}: {line}");
                said.send_replace(line);
            }));
        }
        Ok(ShardProcess { child, socket, ready, last_line })
    }

    /// Where the process serves NBD to other hosts; `None` before it serves clients.
    pub fn nbd(&self) -> Option<Vec<String>> {
        let ready = self.ready.borrow();
        ready.as_ref().map(|ready| ready.nbd.iter().filter(|at| !at.starts_with("unix:")).cloned().collect())
    }

    /// The status and the last line of a process that has ended; `None` while it runs.
    pub fn ended(&mut self) -> Option<(Option<ExitStatus>, String)> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some((Some(status), self.last_line.borrow().clone())),
            Err(e) => Some((None, e.to_string())),
        }
    }

    /// Whether another server waits for the pool and is alive.
    pub async fn has_standby(&self) -> bool {
        let shown: Result<ServerView, _> = Client::new(&self.socket).get(&["pool"]).await;
        let standbys = shown.ok().and_then(|server| server.owner?.standbys);
        standbys.is_some_and(|all| all.iter().any(|standby| standby.alive))
    }

    /// Hands the pool over to the server that waits for it.
    pub async fn hand_over(&self) -> Result<NewOwner, ClientError> {
        Client::new(&self.socket).post(&["pool", "handover"], &Handover { to: None }).await
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

/// A line of the log, or the message of the error with which the process ends.
fn message_of(line: &str) -> String {
    #[derive(Deserialize)]
    struct Failure {
        error: ErrorDetail,
    }
    serde_json::from_str(line).map_or_else(|_| line.to_owned(), |Failure { error }| error.message)
}

/// Calls `line` for each line of a stream.
async fn follow(stream: impl AsyncRead + Unpin, mut line: impl FnMut(&str)) {
    let mut lines = BufReader::new(stream).lines();
    while let Ok(Some(text)) = lines.next_line().await {
        line(&text);
    }
}
