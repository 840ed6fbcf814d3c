//! A server of Forebay, controlled by its command line.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::{Disk, Memory, Process, Server, WorkDir, answers, run, unusable};
use crate::error::{During, Error, Result};

/// The configuration of a Forebay server.
#[derive(Debug, Clone)]
pub struct ForebayConfig {
    /// Name that distinguishes the server's files from the files of other servers.
    pub name: &'static str,
    /// Read cache in bytes.
    pub cache: u64,
    /// Additional text of its configuration file.
    pub settings: String,
    /// Additional options of `serve`.
    pub options: Vec<String>,
    /// A program and its arguments that run the server's command line in another environment; empty: none.
    pub wrapper: Vec<String>,
}

impl ForebayConfig {
    /// A server with default settings.
    pub fn new(name: &'static str, cache: u64) -> ForebayConfig {
        ForebayConfig { name, cache, settings: String::new(), options: Vec::new(), wrapper: Vec::new() }
    }

    /// The server with additional settings.
    pub fn with(self, settings: impl Into<String>) -> ForebayConfig {
        ForebayConfig { settings: settings.into(), ..self }
    }
}

/// The counters of a server at a moment.
pub struct Stats(Value);

impl Stats {
    /// A counter, by its JSON pointer.
    pub fn get(&self, pointer: &'static str) -> Result<u64> {
        let value = self.0.pointer(pointer).and_then(Value::as_u64);
        value.ok_or(Error::Output { command: "forebay stats --json".to_owned(), wanted: pointer })
    }
}

/// A running Forebay server.
pub struct Forebay {
    /// The server process and its NBD socket.
    pub server: Server,
    binary: PathBuf,
    control: PathBuf,
}

impl Forebay {
    /// Starts a server on the data directory for its name; an existing pool is opened.
    pub fn start(dir: &WorkDir, binary: &Path, config: &ForebayConfig) -> Result<Forebay> {
        let mut server = Forebay::launch(dir, binary, config)?;
        server.wait_ready()?;
        Ok(server)
    }

    /// Starts the server without waiting: a server that stands by is ready when it has the pool.
    pub fn launch(dir: &WorkDir, binary: &Path, config: &ForebayConfig) -> Result<Forebay> {
        let name = config.name;
        let (control, socket) = (dir.socket(&format!("{name}.ctl")), dir.socket(name));
        let file = dir.data(&format!("{name}.toml"));
        std::fs::write(&file, &config.settings).during(|| format!("cannot write {}", file.display()))?;
        let mut command = match config.wrapper.split_first() {
            None => Command::new(binary),
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments).arg(binary);
                command
            }
        };
        command.arg("serve").arg("--data").arg(dir.data(name)).arg("--config").arg(&file);
        command.arg("--socket").arg(&control);
        command.arg("--nbd").arg(format!("unix:{}", socket.display()));
        command.arg("--cache").arg(config.cache.to_string());
        command.arg("--memory-dir").arg(dir.memory()).args(&config.options);
        let process = Process::start("forebay", command, &dir.data(&format!("{name}.log")))?;
        Ok(Forebay { server: Server { process, socket }, binary: binary.to_owned(), control })
    }

    /// Waits until the server serves clients.
    pub fn wait_ready(&mut self) -> Result<()> {
        let (control, socket) = (&self.control, &self.server.socket);
        self.server.process.wait_until(|| answers(control) && answers(socket))
    }

    /// A volume, over NBD.
    pub fn disk(&self, volume: &str) -> Disk<'_> {
        self.server.disk(volume)
    }

    /// Creates a volume.
    pub fn create(&self, volume: &str, bytes: u64) -> Result<()> {
        self.cli(&["volume", "create", volume, "--size", &bytes.to_string()]).map(drop)
    }

    /// Runs a command of the command line and parses its JSON output.
    pub fn cli<S: AsRef<OsStr>>(&self, args: &[S]) -> Result<Value> {
        let mut command = Command::new(&self.binary);
        command.arg("--json").arg("--socket").arg(&self.control).args(args);
        let output = run(&mut command)?;
        serde_json::from_slice(&output.stdout).map_err(|_| unusable(&command, "JSON"))
    }

    /// Imports a raw image.
    pub fn import(&self, name: &str, file: &Path) -> Result<()> {
        let args = [OsStr::new("image"), OsStr::new("import"), OsStr::new(name), file.as_os_str()];
        let mut command = Command::new(&self.binary);
        // The command may print progress, which is not JSON.
        run(command.arg("--json").arg("--socket").arg(&self.control).args(args)).map(drop)
    }

    /// Clones a disk.
    pub fn clone_disk(&self, source: &str, name: &str) -> Result<()> {
        self.cli(&["volume", "clone", source, name]).map(drop)
    }

    /// Clones a disk this number of times, with additional options. Returns the names of the clones.
    pub fn clone_disks(&self, source: &str, name: &str, count: u32, options: &[&str]) -> Result<Vec<String>> {
        let count = count.to_string();
        let made = self.cli(&[&["volume", "clone", source, name, "--count", &count], options].concat())?;
        let name = |disk: &Value| Some(disk.get("name")?.as_str()?.to_owned());
        let disks = made.as_array().map_or(std::slice::from_ref(&made), Vec::as_slice);
        let names: Option<Vec<String>> = disks.iter().map(name).collect();
        names.ok_or(Error::Output { command: "forebay volume clone".to_owned(), wanted: "names" })
    }

    /// A counter of `forebay stats`, by its JSON pointer.
    pub fn stat(&self, pointer: &'static str) -> Result<u64> {
        self.stats()?.get(pointer)
    }

    /// Returns the present values of all counters.
    pub fn stats(&self) -> Result<Stats> {
        self.cli(&["stats"]).map(Stats)
    }

    /// Replaces the server by another process of the same binary.
    pub fn upgrade(&mut self) -> Result<()> {
        Process::expect_successor()?;
        let done = self.cli(&["upgrade"])?;
        let wanted = "the number of the new process";
        let pid = done.get("pid").and_then(Value::as_u64).and_then(|pid| u32::try_from(pid).ok());
        let pid = pid.ok_or(Error::Output { command: "forebay upgrade".to_owned(), wanted })?;
        self.server.process.adopt(pid)
    }

    /// Frees garbage.
    pub fn gc(&self) -> Result<()> {
        self.cli(&["gc"]).map(drop)
    }

    /// Path of the server's control socket.
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// Memory of the server.
    pub fn memory(&self) -> Result<Memory> {
        self.server.process.memory()
    }
}
