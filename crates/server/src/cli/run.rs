//! Execution of a parsed command.

use std::io::IsTerminal;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use forebay_api::client::{Client, ClientError};
use forebay_api::import::Request;
use forebay_api::{
    CloneVolumes, CreateImage, CreateSnapshot, CreateVolume, DiskView, ErrorKind, Handover, Kind, Persist,
    Rename, Resize, Rollback, Upgrade, Upgraded,
};
use forebay_text::Size;
use serde::Serialize;

use super::args::{
    Cli, Command, Global, ImageCommand, PoolArgs, PoolCommand, RemoveArgs, ServeArgs, SnapshotCommand,
    VolumeCommand,
};
use super::{
    CliError, classes, clients, cluster, complete, config, connect, export, file, gc, import, job, limit,
    memory, nearest, offline, output, pool, profile, remove, reset, sizing, space, stats, status, target,
    token, top, transfer, upload,
};
use crate::config::{
    ConfigError, ConfigFile, DEFAULT_DATA, HttpFlags, NbdFlags, Overrides, PoolLocation, SERVICE_SOCKET,
    SOCKET_NAME, ServeConfig, StoreFlags, TlsSection,
};

/// Runs a parsed command line.
pub(super) fn run(cli: Cli) -> Result<(), CliError> {
    match cli.command {
        Command::Serve(args) => {
            let file = args.config.clone();
            let join = args.cluster.flags();
            let flags = overrides(&cli.global, *args);
            let read = file.as_deref().map(ConfigFile::load).transpose()?.unwrap_or_default();
            if let Some(node) = read.node(file.as_deref(), join, flags.clone())? {
                return Ok(crate::node::run(node, cli.global.json)?);
            }
            let load = move || {
                let file = file.as_deref().map(ConfigFile::load).transpose()?.unwrap_or_default();
                let memory_limit = crate::serve::memory_limit().map(|limit| limit.bytes);
                ServeConfig::resolve(file, Overrides { memory_limit, ..flags.clone() })
            };
            let config = load()?;
            Ok(crate::serve::run(&config, cli.global.json, Box::new(load))?)
        }
        Command::Completions { shell } => output::completions(shell),
        Command::Complete { words } => {
            complete::run(&cli.global, &words);
            Ok(())
        }
        Command::Man => output::man(),
        Command::Check(pool) => offline::check(&location(&cli.global, pool)?, cli.global.json),
        Command::Inspect { pool, segment } => {
            offline::inspect(&location(&cli.global, pool)?, segment, cli.global.json)
        }
        Command::Recover { pool, accept_loss } => {
            offline::recover(&location(&cli.global, pool)?, accept_loss, cli.global.json)
        }
        Command::Size(args) if !args.from_server => sizing::from_model(&args, cli.global.json),
        Command::Config(command) => config::run(command, &cli.global),
        Command::Memory(command) => memory::run(command, &data(&cli.global), cli.global.json),
        Command::Cluster(command) => cluster::run(command, cli.global.json),
        Command::Node(command) => cluster::run_node(command, cli.global.json),
        Command::Pool(PoolCommand::List { ceph_pool, ceph }) => pool::list(ceph_pool, ceph, cli.global.json),
        Command::Pool(PoolCommand::Show { pool, ceph }) => pool::show(pool, ceph, cli.global.json),
        command => {
            // A script expects one line on standard error, and only for a failure.
            let reports_wait = std::io::stderr().is_terminal();
            let client = Client::new(&socket_path(&cli.global)?).of_shard(cli.global.shard);
            let client = client.reporting_wait(reports_wait);
            let commands = ClientCommands { client, json: cli.global.json };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map_err(CliError::System)?.block_on(async {
                match commands.run(command).await {
                    Err(e) => Err(nearest::named(&commands.client, e).await),
                    done => done,
                }
            })
        }
    }
}

/// The options of `serve` that override the file.
pub(super) fn overrides(global: &Global, args: ServeArgs) -> Overrides {
    let tls = TlsSection {
        mode: args.tls,
        certificates: args.tls_certificates,
        verify_peer: args.tls_verify_peer.then_some(true),
    };
    Overrides {
        data: global.data.clone(),
        socket: global.socket.clone(),
        store: store_flags(args.pool, args.standby),
        nbd: NbdFlags { listen: args.nbd, allow_remote: args.nbd_allow_remote, tls },
        iscsi: args.iscsi,
        nfs: args.nfs.flags(),
        nvme: args.nvme.flags(),
        http: HttpFlags {
            listen: args.http,
            hosts: args.http_host,
            certificate: args.http_certificate,
            key: args.http_key,
            tokens: args.http_tokens,
        },
        audit: args.audit_log,
        import_max_size: args.import_max_size,
        import_allow_private: args.import_allow_private,
        cache: args.cache,
        memory_dir: args.memory_dir,
        memory_limit: None,
        cores: args.cores,
        remote_answers: args.remote_answers,
        on_memory_loss: args.on_memory_loss,
        log_format: args.log_format,
    }
}

fn store_flags(args: PoolArgs, standby: bool) -> StoreFlags {
    let PoolArgs { pool, ceph } = args;
    StoreFlags { pool, ceph_conf: ceph.ceph_conf, ceph_user: ceph.ceph_user, standby }
}

/// The pool of a command that needs no server.
fn location(global: &Global, args: PoolArgs) -> Result<PoolLocation, ConfigError> {
    PoolLocation::new(&data(global), store_flags(args, false))
}

fn data(global: &Global) -> PathBuf {
    global.data.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_DATA))
}

/// The path of the control socket: as given, or in the given data directory, or the first default path that
/// exists.
pub(super) fn socket_path(global: &Global) -> Result<PathBuf, ClientError> {
    match (&global.socket, &global.data) {
        (Some(socket), _) => Ok(socket.clone()),
        (None, Some(data)) => Ok(data.join(SOCKET_NAME)),
        (None, None) => existing([Path::new(DEFAULT_DATA).join(SOCKET_NAME), SERVICE_SOCKET.into()]),
    }
}

/// The first socket that exists, unless it is stale and the next one exists; otherwise the first that this
/// user may not look for, for its error.
fn existing(sockets: [PathBuf; 2]) -> Result<PathBuf, ClientError> {
    let is_there = |socket: &PathBuf| socket.try_exists();
    let is_stale = |socket: &PathBuf| {
        UnixStream::connect(socket).is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
    };
    let present = || sockets.iter().filter(|socket| is_there(socket).unwrap_or(false));
    let found = present().find(|socket| !is_stale(socket)).or_else(|| present().next());
    match found.or_else(|| sockets.iter().find(|socket| is_there(socket).is_err())) {
        Some(socket) => Ok(socket.clone()),
        None => Err(ClientError::NoServer(sockets)),
    }
}

/// Commands that are sent to a running server.
struct ClientCommands {
    client: Client,
    json: bool,
}

impl ClientCommands {
    async fn run(&self, command: Command) -> Result<(), CliError> {
        match command {
            Command::Image(c) => self.image(c).await,
            Command::Volume(c) => self.volume(c).await,
            Command::Tenant(c) => limit::tenant(&self.client, c, self.json).await,
            Command::File(c) => file::run(&self.client, c, self.json).await,
            Command::Snapshot(c) => self.snapshot(c).await,
            Command::Target(c) => target::target(&self.client, c, self.json).await,
            Command::Lun(c) => target::lun(&self.client, c, self.json).await,
            Command::Job(c) => job::run(&self.client, c, self.json).await,
            Command::Upload(c) => upload::run(&self.client, c, self.json).await,
            Command::Token(c) => token::run(&self.client, c, self.json).await,
            Command::Status => status::run(&self.client, self.json).await,
            Command::Stats(args) => stats::run(&self.client, &args, self.json).await,
            Command::Space(args) => space::run(&self.client, &args, self.json).await,
            Command::Top(args) => top::run(&self.client, &args, self.json).await,
            Command::Size(args) => sizing::from_server(&self.client, &args, self.json).await,
            Command::Gc => gc::run(&self.client, self.json).await,
            Command::Upgrade { binary, timeout } => self.upgrade(binary, timeout).await,
            Command::Pool(PoolCommand::Handover { to }) => {
                pool::hand_over(&self.client, Handover { to }, self.json).await
            }
            Command::Serve(_)
            | Command::Check(_)
            | Command::Pool(PoolCommand::List { .. } | PoolCommand::Show { .. })
            | Command::Cluster(_)
            | Command::Node(_)
            | Command::Config(_)
            | Command::Memory(_)
            | Command::Inspect { .. }
            | Command::Completions { .. }
            | Command::Complete { .. }
            | Command::Recover { .. }
            | Command::Man => unreachable!("run() handles commands without a server"),
        }
    }

    async fn image(&self, command: ImageCommand) -> Result<(), CliError> {
        match command {
            ImageCommand::Import { name, file, format, disk, max_size, dedup_domain } => {
                let (source, max_bytes) = (import::source(&file)?, max_size.map(|size| size.0));
                let request = Request { name, source, format, disk, max_bytes, dedup_domain };
                import::run(&self.client, &request, self.json).await
            }
            ImageCommand::Create { name, source } => {
                let image: DiskView = self.client.post(&["images", &name], &CreateImage { source }).await?;
                self.print(&image, |d| format!("created image '{}', {}", d.name, Size(d.size_bytes)))
            }
            ImageCommand::Export { name, export } => {
                export::run(&self.client, &name, &export, self.json).await
            }
            ImageCommand::List => self.list(&["images"], Kind::Image).await,
            ImageCommand::Show { name } => self.show(&["images", &name]).await,
            ImageCommand::Rm(args) => self.remove(Kind::Image, &["images"], &args).await,
            ImageCommand::Profile { name, change } => {
                profile::run(&self.client, &name, &change, self.json).await
            }
        }
    }

    async fn volume(&self, command: VolumeCommand) -> Result<(), CliError> {
        match command {
            VolumeCommand::Create { name, size, sync, dedup_domain, spread } => {
                let body = CreateVolume { name, size_bytes: size.0, sync, dedup_domain, spread };
                let volume: DiskView = self.client.post(&["volumes"], &body).await?;
                self.print(&volume, |d| format!("created volume '{}', {}", d.name, Size(d.size_bytes)))
            }
            VolumeCommand::Clone { source, name, count, more, sync, desktop, write_cache, reset } => {
                let write_cache_bytes = desktop.then_some(write_cache.0);
                let body = CloneVolumes { source, name, count, more, sync, write_cache_bytes, reset };
                let clones: Vec<DiskView> = self.client.post(&["clones"], &body).await?;
                self.print(&clones, |clones| clones_text(clones, &body.source))
            }
            VolumeCommand::List => self.list(&["volumes"], Kind::Volume).await,
            VolumeCommand::Show { name } => self.show(&["volumes", &name]).await,
            VolumeCommand::Rm { remove, snapshots } => {
                let among =
                    remove::Among { kind: Kind::Volume, path: &["volumes"], with_snapshots: snapshots };
                remove::run(&self.client, among, &remove, self.json).await
            }
            VolumeCommand::Resize { name, size, shrink } => {
                let before: DiskView = self.client.get(&["volumes", &name]).await?;
                let before = before.size_bytes;
                let size_bytes = size.bytes(before).ok_or_else(|| CliError::GrowsTooFar(name.clone()))?;
                if size_bytes < before && !shrink {
                    return Err(CliError::Shrinks(name, Size(before), Size(size_bytes)));
                }
                let body = Resize { size_bytes, from_size_bytes: Some(before) };
                let done: DiskView = self.client.post(&["volumes", &name, "resize"], &body).await?;
                self.print(&done, |d| format!("resized volume '{}' to {}", d.name, Size(d.size_bytes)))
            }
            VolumeCommand::Rename { name, new } => {
                let body = Rename { name: new };
                let done: DiskView = self.client.post(&["volumes", &name, "rename"], &body).await?;
                self.print(&done, |d| format!("renamed volume '{name}' to '{}'", d.name))
            }
            VolumeCommand::Export { name, export } => {
                export::run(&self.client, &name, &export, self.json).await
            }
            VolumeCommand::Transfer(command) => transfer::run(&self.client, command, self.json).await,
            VolumeCommand::Reset { names, to, yes } => {
                reset::run(&self.client, &names, to, yes, self.json).await
            }
            VolumeCommand::Resume { name } => {
                let path = ["volumes", &name, "resume"];
                let done: DiskView = self.client.post(&path, &serde_json::json!({})).await?;
                self.print(&done, |d| format!("volume '{}' admits all clients", d.name))
            }
            VolumeCommand::Clients { name } => clients::run(&self.client, &name, self.json).await,
            VolumeCommand::Connect { name, client } => {
                connect::run(&self.client, &name, client, self.json).await
            }
            VolumeCommand::Disconnect { name, client } => {
                clients::disconnect(&self.client, &name, &client, self.json).await
            }
            VolumeCommand::Classes { name, refresh } => {
                classes::run(&self.client, &name, refresh, self.json).await
            }
            VolumeCommand::Limit { name, tenant, limits } => {
                limit::volume(&self.client, &name, tenant, &limits, self.json).await
            }
            VolumeCommand::Persist { name, sync } => {
                let body = Persist { sync };
                let done: DiskView = self.client.post(&["volumes", &name, "persist"], &body).await?;
                self.print(&done, |d| format!("volume '{}' is persistent now", d.name))
            }
        }
    }

    async fn snapshot(&self, command: SnapshotCommand) -> Result<(), CliError> {
        match command {
            SnapshotCommand::Create { volume, name } => {
                let body = CreateSnapshot { name };
                let snapshot: DiskView = self.client.post(&["volumes", &volume, "snapshots"], &body).await?;
                self.print(&snapshot, |d| format!("created snapshot '{}'", d.name))
            }
            SnapshotCommand::List { volume } => {
                let snapshots = match volume {
                    Some(volume) => self.client.get(&["volumes", &volume, "snapshots"]).await?,
                    None => self.all_snapshots().await?,
                };
                self.print(&snapshots, |all: &Vec<DiskView>| output::disk_table(all, Kind::Snapshot))
            }
            SnapshotCommand::Rm { volume, remove } => {
                self.remove(Kind::Snapshot, &["volumes", &volume, "snapshots"], &remove).await
            }
            SnapshotCommand::Rollback { volume, name } => {
                let body = Rollback { snapshot: name };
                let done: DiskView = self.client.post(&["volumes", &volume, "rollback"], &body).await?;
                self.print(&done, |d| format!("rolled volume '{}' back to '{0}@{1}'", d.name, body.snapshot))
            }
        }
    }

    async fn upgrade(&self, binary: Option<PathBuf>, timeout_s: Option<u64>) -> Result<(), CliError> {
        // The server may run in another directory.
        let binary = binary.map(|path| {
            std::path::absolute(&path)
                .map_err(|e| CliError::FileName(path.display().to_string(), e.to_string()))
        });
        let body = Upgrade { binary: binary.transpose()?, timeout_s };
        let done: Upgraded = self.client.post(&["pool", "upgrade"], &body).await?;
        self.print(&done, |done| {
            format!(
                "upgraded: process {} runs release {}; pause {} ms, {} connections continue, {} were closed",
                done.pid, done.version, done.pause_ms, done.connections, done.closed
            )
        })
    }

    async fn list(&self, path: &[&str], kind: Kind) -> Result<(), CliError> {
        let disks: Vec<DiskView> = self.client.get(path).await?;
        self.print(&disks, |disks| output::disk_table(disks, kind))
    }

    /// The snapshots of all volumes. If a volume is removed until then, it counts as having none.
    async fn all_snapshots(&self) -> Result<Vec<DiskView>, CliError> {
        let volumes: Vec<DiskView> = self.client.get(&["volumes"]).await?;
        let mut all = Vec::new();
        for volume in volumes.iter().filter(|volume| volume.snapshots > 0) {
            match self.client.get::<Vec<DiskView>>(&["volumes", &volume.name, "snapshots"]).await {
                Ok(snapshots) => all.extend(snapshots),
                Err(ClientError::Refused { code, .. }) if code == ErrorKind::NotFound.code() => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(all)
    }

    async fn remove(&self, kind: Kind, path: &[&str], args: &RemoveArgs) -> Result<(), CliError> {
        let among = remove::Among { kind, path, with_snapshots: false };
        remove::run(&self.client, among, args, self.json).await
    }

    async fn show(&self, path: &[&str]) -> Result<(), CliError> {
        let disk: DiskView = self.client.get(path).await?;
        self.print(&disk, output::disk_details)
    }

    /// Prints a result as JSON, or as `text` renders it.
    fn print<T: Serialize>(&self, value: &T, text: impl FnOnce(&T) -> String) -> Result<(), CliError> {
        output::print_result(value, self.json, text)
    }
}

fn clones_text(clones: &[DiskView], source: &str) -> String {
    match clones {
        [] => format!("created no clone of '{source}'"),
        [one] => format!("created volume '{}', a clone of '{source}'", one.name),
        [first, .., last] => {
            format!("created {} clones of '{source}': '{}' to '{}'", clones.len(), first.name, last.name)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn global(socket: Option<&str>, data: Option<&str>) -> Global {
        Global { json: false, socket: socket.map(PathBuf::from), data: data.map(PathBuf::from), shard: None }
    }

    #[test]
    fn a_given_socket_or_data_directory_is_used_whether_it_exists_or_not() {
        let path = |socket, data| socket_path(&global(socket, data)).unwrap();
        assert_eq!(path(Some("/none/s"), Some("/none")), Path::new("/none/s"));
        assert_eq!(path(Some("/none/s"), None), Path::new("/none/s"));
        assert_eq!(path(None, Some("/none")), Path::new("/none/forebay.sock"));
        assert_eq!(path(None, Some(DEFAULT_DATA)), Path::new(DEFAULT_DATA).join(SOCKET_NAME));
    }

    #[test]
    fn the_first_default_socket_that_exists_and_is_not_stale_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let [data, service] = ["data", "service"].map(|name| dir.path().join(name));
        let found = || existing([data.clone(), service.clone()]);
        let message = found().unwrap_err().to_string();
        for expected in [data.to_str(), service.to_str(), Some("systemctl start forebay"), Some("--socket")] {
            assert!(message.contains(expected.unwrap()), "{message}");
        }
        let _service = UnixListener::bind(&service).unwrap();
        assert_eq!(found().unwrap(), service);
        let server = UnixListener::bind(&data).unwrap();
        assert_eq!(found().unwrap(), data);
        drop(server);
        assert_eq!(found().unwrap(), service);
        std::fs::remove_file(&service).unwrap();
        assert_eq!(found().unwrap(), data, "its error is reported");
    }

    #[test]
    fn a_directory_that_cannot_be_searched_hides_no_other_socket() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        // The name cannot be looked up, as in a directory of another user, but for root as well.
        let (hidden, service) = (file.join("x".repeat(300)), dir.path().join("service"));
        let found = || existing([hidden.clone(), service.clone()]);
        assert_eq!(found().unwrap(), hidden);
        std::fs::write(&service, "").unwrap();
        assert_eq!(found().unwrap(), service);
    }
}
