//! The servers that are compared, and how each is started and controlled.

use std::ffi::OsStr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use super::error::{BenchError, During, Result};
use super::process::{Memory, Process};
use super::workdir::WorkDir;
use crate::nbd::Target;

/// A running NBD server.
pub struct Server {
    /// Its name in reports.
    pub name: &'static str,
    /// The process.
    pub process: Process,
    socket: PathBuf,
}

impl Server {
    fn start(name: &'static str, command: Command, socket: PathBuf, log: &Path) -> Result<Server> {
        // The socket of a server that was killed remains.
        let _ = std::fs::remove_file(&socket);
        let mut process = Process::start(name, command, log)?;
        process.wait_until(|| answers(&socket))?;
        Ok(Server { name, process, socket })
    }

    /// Its address.
    pub fn target(&self) -> Target {
        Target::Unix(self.socket.clone())
    }

    /// The URI of an export, in libnbd's format.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }
}

fn answers(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// `nbdkit memory`: a disk in RAM, an upper bound for general NBD servers.
pub fn nbdkit(dir: &WorkDir, size: u64) -> Result<Server> {
    let socket = dir.socket("nbdkit");
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--unix"]).arg(&socket).args(["memory", &size.to_string()]);
    Server::start("nbdkit memory", command, socket, &dir.data("nbdkit.log"))
}

/// `qemu-nbd` on a qcow2 clone of the raw image `base`, the way a KVM host would export it.
pub fn qemu_nbd(dir: &WorkDir, base: &Path, name: &str) -> Result<Server> {
    let clone = dir.data(&format!("{name}.qcow2"));
    run(Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
        .arg(base)
        .arg(&clone))?;
    serve_by_qemu(dir, "qemu-nbd qcow2", name, "qcow2", clone.as_os_str())
}

/// `qemu-nbd` on an image, which is a file or a URL; `name` is that of its socket.
pub fn serve_by_qemu(
    dir: &WorkDir,
    label: &'static str,
    name: &str,
    format: &str,
    image: &OsStr,
) -> Result<Server> {
    let socket = dir.socket(name);
    let mut command = Command::new("qemu-nbd");
    command
        .args(["--persistent", "--shared=16", "--cache=writeback", "--discard=unmap", "--aio=threads"])
        .args(["--format", format, "--export-name=", "--socket"])
        .arg(&socket)
        .arg(image);
    Server::start(label, command, socket, &dir.data(&format!("{name}.log")))
}

/// `nbdkit file`: the files of a directory, each an export with its name.
pub fn nbdkit_files(dir: &WorkDir, files: &Path) -> Result<Server> {
    let socket = dir.socket("nbdkit");
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--unix"]).arg(&socket).arg("file");
    command.arg(format!("dir={}", files.display()));
    Server::start("nbdkit file", command, socket, &dir.data("nbdkit.log"))
}

/// The configuration of a Forebay server.
#[derive(Debug, Clone)]
pub struct ForebayConfig {
    /// Distinguishes its files from those of other servers.
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

    /// The same with additional settings.
    pub fn with(self, settings: impl Into<String>) -> ForebayConfig {
        ForebayConfig { settings: settings.into(), ..self }
    }
}

/// A running Forebay server.
pub struct Forebay {
    /// Its NBD server.
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

    /// The same without waiting: a server that stands by is ready when it has the pool.
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
        Ok(Forebay {
            server: Server { name: "forebay", process, socket },
            binary: binary.to_owned(),
            control,
        })
    }

    /// Waits until it serves.
    pub fn wait_ready(&mut self) -> Result<()> {
        let (control, socket) = (&self.control, &self.server.socket);
        self.server.process.wait_until(|| answers(control) && answers(socket))
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

    /// A counter of `forebay stats`, by its JSON pointer.
    pub fn stat(&self, pointer: &'static str) -> Result<u64> {
        self.cli(&["stats"])?
            .pointer(pointer)
            .and_then(Value::as_u64)
            .ok_or(BenchError::Output { command: "forebay stats --json".to_owned(), wanted: pointer })
    }

    /// Replaces the server by another process of the same binary.
    pub fn upgrade(&mut self) -> Result<()> {
        Process::expect_successor()?;
        let done = self.cli(&["upgrade"])?;
        let wanted = "the number of the new process";
        let pid = done.get("pid").and_then(Value::as_u64).and_then(|pid| u32::try_from(pid).ok());
        let pid = pid.ok_or(BenchError::Output { command: "forebay upgrade".to_owned(), wanted })?;
        self.server.process.adopt(pid)
    }

    /// Frees garbage.
    pub fn gc(&self) -> Result<()> {
        self.cli(&["gc"]).map(drop)
    }

    /// Its control socket.
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// Its memory.
    pub fn memory(&self) -> Result<Memory> {
        self.server.process.memory()
    }
}

/// Runs a command that must succeed.
pub fn run(command: &mut Command) -> Result<Output> {
    let output =
        command.output().during(|| format!("cannot run {}", command.get_program().to_string_lossy()))?;
    if output.status.success() {
        return Ok(output);
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " | ");
    Err(BenchError::Command { command: shown(command), stderr })
}

/// The error for output that is not in the expected format.
pub fn unusable(command: &Command, wanted: &'static str) -> BenchError {
    BenchError::Output { command: shown(command), wanted }
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// The first line of the output of `program --version`.
pub fn version(program: &'static str, package: &'static str) -> Result<String> {
    version_of(Path::new(program)).map_err(|_| BenchError::Missing { program, package })
}

/// The same for any program.
pub fn version_of(program: &Path) -> Result<String> {
    let output = Command::new(program).arg("--version").output();
    let output = output.during(|| format!("cannot run {}", program.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().trim().to_owned())
}
