//! The command line: one table for parsing, help, man page and shell completions. Names and values are a
//! stable contract, because scripts rely on them.

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::NonEmptyStringValueParser as Name;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Parser, Subcommand};
use clap_complete::Shell;
use forebay_api::import::Format;
use forebay_api::{ClientKind, Reset, Role, SyncPolicy};
use forebay_frontend::nbd::TlsMode;
use forebay_frontend::plane::ListenAddr;
use forebay_store::rados::RadosAddress;
use forebay_text::{NamePattern, Size, SizeError};

use super::cluster::{ClusterCommand, JoinArgs, NodeCommand};
use super::export::ExportArgs;
use super::file::FileCommand;
use super::limit::{Change, LimitArgs};
use super::memory::MemoryCommand;
use super::nfs::NfsArgs;
use super::nvme::NvmeArgs;
use super::token::{self, Expiry};
use super::top::TopArgs;
use super::upload::UploadCommand;
use crate::config::{
    AnswerMode, DEFAULT_DATA, HttpAddr, LossMode, SERVICE_SOCKET, SOCKET_NAME, TokenMode, parse_http_addr,
    parse_portal,
};
use crate::log::LogFormat;
use crate::sizing::{ImageKind, Profile};

/// The values of `--tls`. The front end that has the type does not know the command line.
fn tls_mode() -> impl TypedValueParser<Value = TlsMode> {
    let value = |name: &'static str, help: &'static str| PossibleValue::new(name).help(help);
    let names = PossibleValuesParser::new([
        value("off", "TLS is not available"),
        value("on", "Clients can use TLS"),
        value("require", "Clients have to use TLS; without it they receive no information and no service"),
    ]);
    names.map(|name| match name.as_str() {
        "require" => TlsMode::Require,
        "on" => TlsMode::On,
        _ => TlsMode::Off,
    })
}

/// Serve virtual machine disks over NBD, iSCSI, NVMe/TCP and NFS, with snapshots and clones of golden images
#[derive(Debug, Parser)]
#[command(name = "forebay", version, disable_help_subcommand = true, max_term_width = 100)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Args)]
pub struct Global {
    /// Print the result as JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Control socket of the server
    #[arg(long, global = true, value_name = "PATH", env = "FOREBAY_SOCKET", help = format!(
        "Control socket of the server [default: {SOCKET_NAME} in the data directory; commands without --data also \
         look for {SERVICE_SOCKET}]"
    ))]
    pub socket: Option<PathBuf>,
    /// Data directory
    #[arg(long, global = true, value_name = "DIR", env = "FOREBAY_DATA", help = format!(
        "Data directory [default: {DEFAULT_DATA}; serve has no default]"
    ))]
    pub data: Option<PathBuf>,
    /// At a node of a cluster: the shard that the command concerns
    #[arg(long, global = true, value_name = "NUMBER")]
    pub shard: Option<u32>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the server
    Serve(Box<ServeArgs>),
    /// Manage golden images: import, create, list, show, remove, boot profile
    #[command(subcommand)]
    Image(ImageCommand),
    /// Manage volumes: create, clone, list, show, remove, resize, reset, persist, limits, block classes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Manage tenants: limits for several volumes together
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// List and clone the files that are served over NFS
    #[command(subcommand)]
    File(FileCommand),
    /// Manage snapshots: create, list, remove, roll back
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Manage iSCSI targets and their initiator ACLs
    #[command(subcommand)]
    Target(TargetCommand),
    /// Map disks to iSCSI targets; show and clear reservations
    #[command(subcommand)]
    Lun(LunCommand),
    /// Manage tokens for clients of the HTTP/JSON API over TCP
    #[command(subcommand)]
    Token(TokenCommand),
    /// List and end uploads of image files, which hold room until they are imported
    #[command(subcommand)]
    Upload(UploadCommand),
    /// Show and cancel jobs: imports, exports, reclaims, scans, recordings of boot profiles, upgrades
    #[command(subcommand)]
    Job(JobCommand),
    /// Show the server on one screen: health, room, clients, jobs, addresses; fails if there is a problem
    Status,
    /// Show I/O counters, cache hit rates, memory, data reduction and space
    Stats(StatsArgs),
    /// Show the room of the store: capacity, free, reserve, stored and reclaimable bytes
    #[command(alias = "df")]
    Space(SpaceArgs),
    /// Show the rates of the pool and of its busiest disks, until interrupted
    Top(TopArgs),
    /// Compute what a fleet of virtual desktops needs: memory, capacity, store operations, cores
    Size(SizeArgs),
    /// Reclaim the space of removed, discarded and overwritten data now
    Gc,
    /// Replace the running server by another binary without disconnecting clients
    Upgrade {
        /// The new binary [default: the path from which the server was started]
        #[arg(long, value_name = "PATH")]
        binary: Option<PathBuf>,
        /// Longest time in seconds for each step of the new process [default: 10]
        #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=3600))]
        timeout: Option<u64>,
    },
    /// Check a configuration file, and show the values in effect
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Create a cluster, and show its nodes and shards
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Manage the nodes of a cluster: list, drain, remove
    #[command(subcommand)]
    Node(NodeCommand),
    /// List the pools in Ceph; show which server holds one; hand one over
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Show the files in RAM that hold acknowledged writes, also those of servers that were killed
    #[command(subcommand)]
    Memory(MemoryCommand),
    /// Verify all checksums and block maps of a pool while its server is stopped
    Check(PoolArgs),
    /// Show the superblocks and segments of a pool while its server is stopped
    Inspect {
        /// The pool.
        #[command(flatten)]
        pool: PoolArgs,
        /// Show the batches of this segment instead, such as 0000002a (the name of its file)
        #[arg(value_name = "SEGMENT", value_parser = parse_segment)]
        segment: Option<u32>,
    },
    /// Report flushed writes that are lost to log damage, while the server is stopped
    Recover {
        /// The pool.
        #[command(flatten)]
        pool: PoolArgs,
        /// Accept the loss with this damage ID from the report, so that the pool opens without the lost
        /// writes
        #[arg(long, value_name = "ID")]
        accept_loss: Option<u64>,
    },
    /// Print a shell completion script
    Completions {
        /// Shell
        shell: Shell,
    },
    /// Print the names with which the last word of a command line can continue, for completion scripts
    #[command(hide = true, name = "__complete")]
    Complete {
        /// The words after the program; the last one is the one that is completed.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<std::ffi::OsString>,
    },
    /// Print the manual page
    #[command(hide = true)]
    Man,
}

/// Parses a segment number: hexadecimal digits, as in `0000002a.seg`.
fn parse_segment(text: &str) -> Result<u32, String> {
    let digits = text.strip_suffix(".seg").unwrap_or(text);
    let number = digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16).ok());
    number.flatten().ok_or_else(|| format!("'{text}' is not a segment; 'forebay inspect' lists the segments"))
}

/// Parses the name of a Ceph pool.
fn parse_ceph_pool(text: &str) -> Result<String, String> {
    // The same names as in the address of a pool.
    match format!("rados:{text}/name").parse::<RadosAddress>() {
        Ok(address) => Ok(address.pool),
        Err(_) => Err(format!("'{text}' is not the name of a Ceph pool; 'ceph osd pool ls' lists them")),
    }
}

/// The place of a pool. The group `place` holds the arguments that can name a pool in Ceph.
#[derive(Debug, Args)]
pub struct PoolArgs {
    /// Pool in a Ceph cluster, instead of one in the data directory
    #[arg(long, value_name = "rados:POOL/NAME", group = "place")]
    pub pool: Option<RadosAddress>,
    /// How to reach the cluster.
    #[command(flatten)]
    pub ceph: CephArgs,
}

/// How to reach a Ceph cluster.
#[derive(Debug, Args)]
pub struct CephArgs {
    /// Configuration file of Ceph [default: /etc/ceph/ceph.conf]
    #[arg(long, value_name = "FILE", requires = "place")]
    pub ceph_conf: Option<PathBuf>,
    /// Ceph user, without 'client.' [default: admin]
    #[arg(long, value_name = "NAME", requires = "place")]
    pub ceph_user: Option<String>,
}

/// `forebay pool …`
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// List the pools in a Ceph pool
    #[command(alias = "ls")]
    List {
        /// Name of the Ceph pool
        #[arg(value_name = "CEPHPOOL", group = "place", value_parser = parse_ceph_pool)]
        ceph_pool: String,
        /// How to reach the cluster.
        #[command(flatten)]
        ceph: CephArgs,
    },
    /// Hand the pool in Ceph of the running server over to a standby
    Handover {
        /// The standby: HOST, or HOST:PROCESS as 'pool show' names it [default: any one that is alive]
        #[arg(long, value_name = "HOST")]
        to: Option<String>,
    },
    /// Show which server holds a pool in Ceph, whether it is alive, and which ones wait; takes some seconds
    Show {
        /// The pool
        #[arg(value_name = "rados:POOL/NAME", group = "place")]
        pool: RadosAddress,
        /// How to reach the cluster.
        #[command(flatten)]
        ceph: CephArgs,
    },
}

/// Options of `serve`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("place").multiple(true)))]
pub struct ServeArgs {
    /// Configuration file (TOML); command-line options override it
    #[arg(long, value_name = "FILE", group = "place")]
    pub config: Option<PathBuf>,
    /// The pool.
    #[command(flatten)]
    pub pool: PoolArgs,
    /// The cluster that this server joins as a node.
    #[command(flatten)]
    pub cluster: JoinArgs,
    /// Listen only when no other server holds the pool in Ceph; until then, wait
    #[arg(long, requires = "place")]
    pub standby: bool,
    /// NBD listen address: unix:PATH or HOST:PORT (repeatable)
    #[arg(long, value_name = "ADDRESS")]
    pub nbd: Vec<ListenAddr>,
    /// Allow NBD without TLS on --nbd addresses that other machines can reach
    #[arg(long)]
    pub nbd_allow_remote: bool,
    /// TLS mode for NBD [default: require if certificates are configured, else off]
    #[arg(long, value_name = "MODE", value_parser = tls_mode(), requires = "tls_certificates")]
    pub tls: Option<TlsMode>,
    /// Directory with ca-cert.pem, server-cert.pem and server-key.pem
    #[arg(long, value_name = "DIR")]
    pub tls_certificates: Option<PathBuf>,
    /// Require NBD clients to present a certificate signed by the CA in ca-cert.pem
    #[arg(long, requires = "tls_certificates")]
    pub tls_verify_peer: bool,
    /// iSCSI listen address (portal): HOST:PORT (repeatable)
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_portal)]
    pub iscsi: Vec<ListenAddr>,
    #[command(flatten)]
    #[allow(missing_docs)] // they are in its type
    pub nfs: NfsArgs,
    #[command(flatten)]
    #[allow(missing_docs)] // they are in its type
    pub nvme: NvmeArgs,
    /// Additional listen address for the HTTP/JSON API
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_http_addr)]
    pub http: Option<HttpAddr>,
    /// PEM file with the certificate chain of the API; required for an address that other machines can reach
    #[arg(long, value_name = "FILE")]
    pub http_certificate: Option<PathBuf>,
    /// PEM file with the key of the API's certificate
    #[arg(long, value_name = "FILE")]
    pub http_key: Option<PathBuf>,
    /// When HTTP clients on loopback addresses need a token [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub http_tokens: Option<TokenMode>,
    /// Host name that HTTP clients may use, in addition to localhost and the host of --http (repeatable)
    #[arg(long, value_name = "NAME")]
    pub http_host: Vec<String>,
    /// File to which the audit log is appended, in addition to the log
    #[arg(long, value_name = "FILE")]
    pub audit_log: Option<PathBuf>,
    /// When writes over TCP, iSCSI and NVMe are acknowledged [default: durable]
    #[arg(long, value_name = "WHEN")]
    pub remote_answers: Option<AnswerMode>,
    /// What happens to clients if acknowledged writes are lost with the memory that held them
    /// [default: refuse]
    #[arg(long, value_name = "REACTION")]
    pub on_memory_loss: Option<LossMode>,
    /// Maximum size of a file imported from a URL [default: 1 TiB]
    #[arg(long, value_name = "SIZE")]
    pub import_max_size: Option<Size>,
    /// Let imports from URLs follow redirects to private addresses and names that resolve to this machine
    #[arg(long)]
    pub import_allow_private: bool,
    /// Size of the read cache [default: 1 GiB]
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<Size>,
    /// Directory on tmpfs for writes that are not in the log yet: they outlive the server. If other users can
    /// write to it, forebay-UID in it is used [default: /dev/shm]
    #[arg(long, value_name = "DIR", env = "FOREBAY_MEMORY_DIR")]
    pub memory_dir: Option<PathBuf>,
    /// Number of data-plane threads [default: 2]
    #[arg(long, value_name = "N")]
    pub cores: Option<usize>,
    /// Form of the log on standard error [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

/// `forebay image …`
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Import an image from a disk file: raw, qcow2, VMDK, VHD, VHDX, VDI or OVA, also compressed (gz, xz,
    /// zst, bz2)
    Import {
        /// Name of the new image
        #[arg(value_parser = Name::new())]
        name: String,
        /// Path of the file, or an http://, https:// or file:// URL; a file that the server cannot read is
        /// uploaded
        #[arg(value_name = "FILE|URL", value_parser = Name::new())]
        file: String,
        /// Image format (default: detect)
        #[arg(long, value_enum, default_value_t)]
        format: Format,
        /// The disk of an OVA with several disks: its number, its ID, or the name of its file
        #[arg(long, value_name = "NUMBER|NAME", value_parser = Name::new())]
        disk: Option<String>,
        /// Maximum size of the file that a URL may deliver, and of a decompressed file [default: the server's
        /// limit]
        #[arg(long, value_name = "SIZE")]
        max_size: Option<Size>,
        /// Deduplication domain: only disks of the same domain share blocks; clones inherit it
        #[arg(long, value_name = "N", default_value_t)]
        dedup_domain: u32,
    },
    /// Create an image from the current contents of a volume or snapshot
    Create {
        /// Name of the new image
        #[arg(value_parser = Name::new())]
        name: String,
        /// VOLUME or VOLUME@SNAPSHOT; run 'volume persist' on a desktop first
        #[arg(value_name = "SOURCE[@SNAPSHOT]", value_parser = Name::new())]
        source: String,
    },
    /// Write an image to a file, raw or qcow2
    Export {
        /// Name of the image
        #[arg(value_parser = Name::new())]
        name: String,
        /// The file.
        #[command(flatten)]
        export: ExportArgs,
    },
    /// List all images
    #[command(alias = "ls")]
    List,
    /// Show one image
    Show {
        /// Name of the image
        #[arg(value_parser = Name::new())]
        name: String,
    },
    /// Remove images that have no clones
    #[command(aliases = ["delete", "remove", "del"])]
    Rm(RemoveArgs),
    /// Show, record, prefetch or delete the boot profile of an image
    Profile {
        /// IMAGE or VOLUME@SNAPSHOT
        #[arg(value_parser = Name::new())]
        name: String,
        /// The change; without one, the profile is shown.
        #[command(flatten)]
        change: ProfileChange,
    },
}

/// The disks that `rm` removes.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Names, or patterns in quotes such as 'pc-*', in which * stands for any characters
    #[arg(value_name = "NAME", value_parser = Name::new(), required = true)]
    pub names: Vec<String>,
    /// Do not ask before removing all that a pattern matches
    #[arg(short, long)]
    pub yes: bool,
}

/// The size that `volume resize` sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewSize {
    /// This size.
    To(Size),
    /// The present size and this size.
    By(Size),
}

impl FromStr for NewSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<NewSize, SizeError> {
        match text.strip_prefix('+') {
            Some(more) => more.parse().map(NewSize::By),
            None => text.parse().map(NewSize::To),
        }
    }
}

impl NewSize {
    /// The size in bytes of a volume with `present` bytes; `None` beyond 64 bits.
    pub fn bytes(self, present: u64) -> Option<u64> {
        match self {
            NewSize::To(size) => Some(size.0),
            NewSize::By(more) => present.checked_add(more.0),
        }
    }
}

/// Changes of `forebay image profile`; at most one at a time.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct ProfileChange {
    /// Record the next boot of a clone, replacing the current profile
    #[arg(long)]
    pub record: bool,
    /// Stop recording now; the blocks read so far become the profile
    #[arg(long)]
    pub stop: bool,
    /// Read the blocks of the profile into the cache now
    #[arg(long)]
    pub prefetch: bool,
    /// Delete the profile
    #[arg(long)]
    pub clear: bool,
}

/// `forebay volume …`
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Create an empty volume
    Create {
        /// Name of the new volume
        #[arg(value_parser = Name::new())]
        name: String,
        /// Size in bytes, or with a suffix K, M, G or T (powers of two)
        #[arg(long)]
        size: Size,
        /// Durability of writes
        #[arg(long, value_enum, default_value_t)]
        sync: SyncPolicy,
        /// Deduplication domain: only disks of the same domain share blocks; clones inherit it
        #[arg(long, value_name = "N", default_value_t)]
        dedup_domain: u32,
        /// In a cluster: at any node, one after another, so that a machine with many disks uses many nodes
        #[arg(long)]
        spread: bool,
    },
    /// Create clones of an image, volume or snapshot
    Clone {
        /// IMAGE, VOLUME or VOLUME@SNAPSHOT
        #[arg(value_name = "SOURCE[@SNAPSHOT]", value_parser = Name::new())]
        source: String,
        /// Name of the clone; with --count, the prefix of the names
        #[arg(value_parser = Name::new())]
        name: String,
        /// Create N clones, NAME-001, NAME-002 and so on; all or none
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(forebay_control::resources::MAX_CLONES)))]
        count: Option<u32>,
        /// Number the clones after the highest existing number of NAME
        #[arg(long, requires = "count")]
        more: bool,
        /// Durability of writes
        #[arg(long, value_enum, default_value_t)]
        sync: SyncPolicy,
        /// Create desktops: writes stay in RAM and are discarded by a reset or a server restart
        #[arg(long, conflicts_with = "sync")]
        desktop: bool,
        /// RAM for the writes of each desktop; the rest overflows to the store
        #[arg(long, value_name = "SIZE", requires = "desktop", default_value = "256M")]
        write_cache: Size,
        /// When desktops are reset automatically
        #[arg(long, requires = "desktop", value_enum, default_value_t)]
        reset: Reset,
    },
    /// List all volumes
    #[command(alias = "ls")]
    List,
    /// Show one volume
    Show {
        /// Name of the volume
        #[arg(value_parser = Name::new())]
        name: String,
    },
    /// Remove volumes that have no clients and no snapshots
    #[command(aliases = ["delete", "remove", "del"])]
    Rm {
        /// The volumes.
        #[command(flatten)]
        remove: RemoveArgs,
        /// Remove the snapshots of the volumes, too; a volume is kept with all of its snapshots if one of
        /// them has clones or clients, or is mapped to a target
        #[arg(long)]
        snapshots: bool,
    },
    /// Resize a volume
    Resize {
        /// Name of the volume
        #[arg(value_parser = Name::new())]
        name: String,
        /// The new size, or +SIZE to grow by that much
        #[arg(value_name = "SIZE|+SIZE")]
        size: NewSize,
        /// Permit a smaller size, which discards the data beyond the new end
        #[arg(long)]
        shrink: bool,
    },
    /// Rename a volume that has no clients and is not mapped to a target; its snapshots stay with it
    Rename {
        /// Name of the volume
        #[arg(value_parser = Name::new())]
        name: String,
        /// The new name
        #[arg(value_name = "NEW", value_parser = Name::new())]
        new: String,
    },
    /// Write the contents of a volume as of now, or of a snapshot, to a file, raw or qcow2
    Export {
        /// VOLUME or VOLUME@SNAPSHOT
        #[arg(value_name = "NAME[@SNAPSHOT]", value_parser = Name::new())]
        name: String,
        /// The file.
        #[command(flatten)]
        export: ExportArgs,
    },
    #[command(flatten)]
    /// Differences, and copies in other pools.
    Transfer(super::transfer::TransferCommand),
    /// Reset clones to the image or snapshot they were created from, or to another one; all or none
    Reset {
        /// Names of the volumes, or patterns in quotes such as 'pc-*', which stand for clones
        #[arg(value_name = "NAME", value_parser = Name::new(), required = true)]
        names: Vec<String>,
        /// The image or VOLUME@SNAPSHOT from which they are clones from then on
        #[arg(long, value_name = "IMAGE", value_parser = Name::new())]
        to: Option<String>,
        /// Do not ask before resetting all that a pattern matches
        #[arg(short, long)]
        yes: bool,
    },
    /// Admit all clients again to a volume with lost writes, after its clients were stopped
    Resume {
        /// Name of the volume
        #[arg(value_parser = Name::new())]
        name: String,
    },
    /// List the clients of a disk: NBD connections, and iSCSI sessions that have it open
    Clients {
        /// VOLUME, IMAGE or VOLUME@SNAPSHOT
        #[arg(value_parser = Name::new())]
        name: String,
    },
    /// Show what a client needs in order to use a volume: URI, options of QEMU, XML of libvirt, commands
    Connect {
        /// VOLUME, IMAGE or VOLUME@SNAPSHOT
        #[arg(value_parser = Name::new())]
        name: String,
        /// Only what this kind of client needs
        #[arg(long = "for", value_enum, value_name = "CLIENT")]
        client: Option<ClientKind>,
    },
    /// Disconnect an NBD client of a disk, which may connect again
    Disconnect {
        /// VOLUME, IMAGE or VOLUME@SNAPSHOT
        #[arg(value_parser = Name::new())]
        name: String,
        /// Number of the client in 'volume clients'
        #[arg(value_name = "ID", value_parser = Name::new())]
        client: String,
    },
    /// Show how much of a disk its guest uses for page file, programs, free space and so on, with I/O
    /// counters
    Classes {
        /// VOLUME, IMAGE or VOLUME@SNAPSHOT
        #[arg(value_parser = Name::new())]
        name: String,
        /// Scan the disk first
        #[arg(long)]
        refresh: bool,
    },
    /// Convert a desktop into a persistent volume, keeping its writes
    Persist {
        /// Name of the desktop
        #[arg(value_parser = Name::new())]
        name: String,
        /// Durability of writes from then on
        #[arg(long, value_enum, default_value_t)]
        sync: SyncPolicy,
    },
    /// Show or change the limits, the weight and the tenant of a volume; effective at once
    Limit {
        /// Name of the volume
        #[arg(value_parser = Name::new())]
        name: String,
        /// Tenant to which the volume belongs, or none
        #[arg(long, value_name = "NAME|none")]
        tenant: Option<String>,
        /// The changes.
        #[command(flatten)]
        limits: LimitArgs,
    },
}

/// `forebay tenant …`
#[derive(Debug, Subcommand)]
pub enum TenantCommand {
    /// List all tenants
    #[command(alias = "ls")]
    List,
    /// Show one tenant
    Show {
        /// Name of the tenant
        #[arg(value_parser = Name::new())]
        name: String,
    },
    /// Change the limits of all volumes of a tenant together, its weight and its quota
    Limit {
        /// Name of the tenant
        #[arg(value_parser = Name::new())]
        name: String,
        /// Bytes that its volumes may occupy; writes beyond fail with ENOSPC
        #[arg(long, value_name = "SIZE|none")]
        quota: Option<Change<Size>>,
        /// The changes.
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// Remove the limits of a tenant
    #[command(aliases = ["delete", "remove", "del"])]
    Rm {
        /// Name of the tenant
        #[arg(value_parser = Name::new())]
        name: String,
    },
}

/// `forebay snapshot …`
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Create a snapshot of a volume
    Create {
        /// Name of the volume
        #[arg(value_parser = Name::new())]
        volume: String,
        /// Name of the snapshot
        #[arg(value_parser = Name::new())]
        name: String,
    },
    /// List the snapshots of a volume, or of all volumes
    #[command(alias = "ls")]
    List {
        /// Name of the volume [default: all volumes]
        #[arg(value_parser = Name::new())]
        volume: Option<String>,
    },
    /// Remove snapshots that have no clones
    #[command(aliases = ["delete", "remove", "del"])]
    Rm {
        /// Name of the volume
        #[arg(value_parser = Name::new())]
        volume: String,
        /// The snapshots.
        #[command(flatten)]
        remove: RemoveArgs,
    },
    /// Roll a volume back to a snapshot
    Rollback {
        /// Name of the volume
        #[arg(value_parser = Name::new())]
        volume: String,
        /// Name of the snapshot
        #[arg(value_parser = Name::new())]
        name: String,
    },
}

/// `forebay target …`
#[derive(Debug, Subcommand)]
pub enum TargetCommand {
    /// Create a target; without --open it admits only initiators added with 'target allow'
    Create {
        /// Name of the target, such as iqn.2026-01.org.example:disks
        #[arg(value_name = "IQN", value_parser = Name::new())]
        name: String,
        /// Admit any initiator
        #[arg(long)]
        open: bool,
        /// CHAP credentials of initiators whose ACL entry has none.
        #[command(flatten)]
        chap: ChapArgs,
        /// CHAP user name of the target, for mutual CHAP
        #[arg(long, value_name = "USER", requires = "mutual_secret_file")]
        mutual_user: Option<String>,
        /// File with the secret for mutual CHAP, different from the initiators' secrets; - for standard input
        #[arg(long, value_name = "FILE", requires = "mutual_user")]
        mutual_secret_file: Option<PathBuf>,
        /// File with the DH-HMAC-CHAP key of the target (DHHC-1:…), for NVMe hosts that authenticate it
        #[arg(long, value_name = "FILE")]
        dhchap_key_file: Option<PathBuf>,
        /// Disk that is to be mapped; a node of a cluster puts the target into the shard of this disk
        #[arg(long = "for", value_name = "DISK", value_parser = Name::new())]
        disk: Option<String>,
    },
    /// List all targets
    #[command(alias = "ls")]
    List,
    /// Show one target: LUNs, initiator ACL, sessions
    Show {
        /// Name of the target
        #[arg(value_name = "IQN", value_parser = Name::new())]
        name: String,
    },
    /// Remove a target; its disks are kept
    #[command(aliases = ["delete", "remove", "del"])]
    Rm {
        /// Name of the target
        #[arg(value_name = "IQN", value_parser = Name::new(), required_unless_present = "all")]
        name: Option<String>,
        /// Remove all targets, even if the target table cannot be read
        #[arg(long, conflicts_with = "name")]
        all: bool,
        /// Remove the target even if initiators are connected, and end their sessions
        #[arg(long)]
        force: bool,
        /// Do not ask; --all needs it without a terminal
        #[arg(short, long)]
        yes: bool,
    },
    /// End a session of an initiator, which may log in again
    Disconnect {
        /// Name of the target
        #[arg(value_name = "IQN", value_parser = Name::new())]
        target: String,
        /// Number of the session in 'target show'
        #[arg(value_name = "ID", value_parser = Name::new())]
        session: String,
    },
    /// Add or update an initiator's ACL entry
    Allow {
        /// Name of the target
        #[arg(value_name = "IQN", value_parser = Name::new())]
        target: String,
        /// Name of the initiator
        #[arg(value_parser = Name::new())]
        initiator: String,
        /// CHAP credentials of this initiator, instead of those of the target.
        #[command(flatten)]
        chap: ChapArgs,
        /// File with the DH-HMAC-CHAP key (DHHC-1:…) with which this NVMe host must authenticate itself;
        /// - for standard input
        #[arg(long, value_name = "FILE")]
        dhchap_key_file: Option<PathBuf>,
        /// Expose only this LUN to the initiator (repeatable) [default: all]
        #[arg(long, value_name = "N")]
        lun: Vec<u16>,
    },
    /// Remove an initiator's ACL entry
    Deny {
        /// Name of the target
        #[arg(value_name = "IQN", value_parser = Name::new())]
        target: String,
        /// Name of the initiator
        #[arg(value_parser = Name::new())]
        initiator: String,
    },
}

/// CHAP credentials of initiators.
#[derive(Debug, Args)]
pub struct ChapArgs {
    /// CHAP user name for initiators
    #[arg(long, value_name = "USER", requires = "chap_secret_file")]
    pub chap_user: Option<String>,
    /// File with the CHAP secret, 12 to 255 bytes; - for standard input
    #[arg(long, value_name = "FILE", requires = "chap_user")]
    pub chap_secret_file: Option<PathBuf>,
}

/// `forebay lun …`
#[derive(Debug, Subcommand)]
pub enum LunCommand {
    /// Map a disk to a target as a LUN, or change the options of a mapped LUN
    Map {
        /// Name of the target
        #[arg(value_parser = Name::new())]
        target: String,
        /// VOLUME, IMAGE or VOLUME@SNAPSHOT; images and snapshots are read-only
        #[arg(value_parser = Name::new())]
        disk: String,
        /// LUN, 0 to 255 [default: the lowest free number]
        #[arg(long, value_name = "N")]
        lun: Option<u16>,
        /// Refuse writes
        #[arg(long)]
        read_only: bool,
        /// Acknowledge writes before they are durable; initiators have to flush
        #[arg(long, conflicts_with = "read_only")]
        write_back: bool,
    },
    /// Unmap a LUN from a target
    Unmap {
        /// Name of the target
        #[arg(value_parser = Name::new())]
        target: String,
        /// LUN
        #[arg(value_name = "N")]
        lun: u16,
    },
    /// List the LUNs of a target
    #[command(alias = "ls")]
    List {
        /// Name of the target
        #[arg(value_parser = Name::new())]
        target: String,
    },
    /// Show or clear the reservations and registrations of a LUN
    Reservations {
        /// Name of the target
        #[arg(value_parser = Name::new())]
        target: String,
        /// LUN
        #[arg(value_name = "N")]
        lun: u16,
        /// Clear all reservations and registrations; cluster nodes lose their fencing
        #[arg(long)]
        clear: bool,
    },
}

/// `forebay config …`
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a configuration file, including its certificates
    Check {
        /// The file [default: /etc/forebay/forebay.toml]
        file: Option<PathBuf>,
    },
    /// Show the values that 'serve' uses with the same options, and their sources
    Show {
        /// The file, as --config [default: /etc/forebay/forebay.toml, if it exists]
        file: Option<PathBuf>,
        /// Options of serve.
        #[command(flatten)]
        args: Box<ServeArgs>,
    },
}

/// Options of `size`.
#[derive(Debug, Args)]
pub struct SizeArgs {
    /// Number of desktops that work at the same time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub desktops: u32,
    /// Image
    #[arg(long, value_enum, default_value_t)]
    pub image: ImageKind,
    /// Work of the users
    #[arg(long, value_enum, default_value_t)]
    pub profile: Profile,
    /// Hours of work before a desktop is reset
    #[arg(long, value_name = "H", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=720))]
    pub hours: u16,
    /// Memory of the read cache [default: as recommended]
    #[arg(long, value_name = "SIZE")]
    pub read_cache: Option<Size>,
    /// Memory for writes of all desktops [default: as recommended]
    #[arg(long, value_name = "SIZE")]
    pub desktop_memory: Option<Size>,
    /// Scale what the running server has measured, instead of published figures
    #[arg(long)]
    pub from_server: bool,
}

/// Options of `space`.
#[derive(Debug, Args)]
pub struct SpaceArgs {
    /// Also list the N volumes and images that use most [default of N: 10]
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "10")]
    pub top: Option<usize>,
}

/// `forebay job …`
#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// List the running jobs and the last that ended
    #[command(alias = "ls")]
    List,
    /// Show one job
    Show {
        /// Number of the job
        id: u64,
    },
    /// Cancel an import, an export or the recording of a boot profile
    Cancel {
        /// Number of the job
        id: u64,
    },
}

/// `forebay token …`
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token, and print its secret, which cannot be shown again
    Create {
        /// Name of the token, which the audit log shows
        #[arg(value_parser = Name::new())]
        name: String,
        /// What the token permits
        #[arg(long, value_enum)]
        role: Role,
        /// Restrict the token to disks that this pattern matches: NAME or VOLUME@SNAPSHOT, with * for any
        /// characters (repeatable)
        #[arg(long, value_name = "PATTERN", conflicts_with = "tenant")]
        disks: Vec<NamePattern>,
        /// Restrict the token to the disks of a tenant
        #[arg(long, value_name = "NAME")]
        tenant: Option<String>,
        /// Time until it expires, such as 12h or 90d, or never
        #[arg(long, value_name = "TIME|never", default_value = "365d", value_parser = token::parse_expiry)]
        expires: Expiry,
        /// Most disks in the scope of an operator or a provisioner, with their snapshots [default: 10000]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        max_disks: Option<u32>,
    },
    /// List all tokens
    #[command(alias = "ls")]
    List,
    /// Revoke a token; it is invalid at once
    Revoke {
        /// Name of the token
        #[arg(value_parser = Name::new())]
        name: String,
    },
}

/// Options of `stats`.
#[derive(Debug, Args)]
pub struct StatsArgs {
    /// Show only this volume, image or VOLUME@SNAPSHOT
    #[arg(value_parser = Name::new())]
    pub volume: Option<String>,
    /// Refresh every second and show rates, until interrupted
    #[arg(long)]
    pub watch: bool,
}
