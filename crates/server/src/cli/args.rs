//! The command line (DESIGN, section 16): the one table from which parsing, help, man page and shell
//! completions are made. It is a contract, because scripts rely on it.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser as Name;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::config::{DEFAULT_DATA, HttpAddr, parse_http_addr, parse_portal};
use crate::control::{Reset, Sync};
use crate::import::Format;
use crate::nbd::TlsMode;
use crate::plane::ListenAddr;
use crate::size::Size;

/// Serves clones of golden disk images from a crash-safe log.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, disable_help_subcommand = true, max_term_width = 100)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Args)]
pub struct Global {
    /// Print JSON for programs
    #[arg(long, global = true)]
    pub json: bool,
    /// Control socket of the server [default: forebay.sock in the data directory]
    #[arg(long, global = true, value_name = "PATH", env = "FOREBAY_SOCKET")]
    pub socket: Option<PathBuf>,
    /// Data directory
    #[arg(long, global = true, value_name = "DIR", env = "FOREBAY_DATA", help = format!(
        "Data directory; commands other than serve look there for the socket [default: {DEFAULT_DATA}]"
    ))]
    pub data: Option<PathBuf>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the server
    Serve(ServeArgs),
    /// Golden images: import, list, show, remove
    #[command(subcommand)]
    Image(ImageCommand),
    /// Volumes: create, clone, list, show, remove, resize, reset, classes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Snapshots of volumes: create, list, remove, roll back
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// iSCSI targets: create, list, show, remove, and who may come
    #[command(subcommand)]
    Target(TargetCommand),
    /// Disks of iSCSI targets: map, unmap, list
    #[command(subcommand)]
    Lun(LunCommand),
    /// Show what guests did and what it cost: operations, bytes, hit rates, memory, reduction, space
    Stats(StatsArgs),
    /// Free the space of what was removed, discarded or overwritten, now
    Gc,
    /// Verify a pool that no server has open: every checksum, every map
    Check,
    /// Look into a pool that no server has open: its superblocks and segments
    Inspect {
        /// Show the batches of this segment instead: its number as its file is named
        #[arg(value_name = "SEGMENT", value_parser = parse_segment)]
        segment: Option<u32>,
    },
    /// Report flushed writes that damage to the log has cut off, in a pool that no server has open
    Recover {
        /// Open the pool without the writes that the report names: the number of the damage, from the report
        #[arg(long, value_name = "ID")]
        accept_loss: Option<u64>,
    },
    /// Print the completion script of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page
    #[command(hide = true)]
    Man,
}

/// The number of a segment, in hexadecimal digits, as in `0000002a.seg`.
fn parse_segment(text: &str) -> Result<u32, String> {
    let digits = text.strip_suffix(".seg").unwrap_or(text);
    let number = digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16).ok());
    number.flatten().ok_or_else(|| format!("'{text}' is not a segment; 'forebay inspect' lists them"))
}

/// Options of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Configuration file (TOML); flags win over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Serve NBD here: unix:PATH or HOST:PORT; may be given more than once
    #[arg(long, value_name = "ADDRESS")]
    pub nbd: Vec<ListenAddr>,
    /// Let --nbd be an address that other machines can reach without TLS
    #[arg(long)]
    pub nbd_allow_remote: bool,
    /// Who has to use TLS over NBD [default: require, if --tls-certificates is given]
    #[arg(long, value_name = "MODE", requires = "tls_certificates")]
    pub tls: Option<TlsMode>,
    /// Directory with ca-cert.pem, server-cert.pem and server-key.pem
    #[arg(long, value_name = "DIR")]
    pub tls_certificates: Option<PathBuf>,
    /// Serve only clients with a certificate that the authority in ca-cert.pem signed
    #[arg(long, requires = "tls_certificates")]
    pub tls_verify_peer: bool,
    /// Serve iSCSI here: HOST:PORT; may be given more than once
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_portal)]
    pub iscsi: Vec<ListenAddr>,
    /// Serve the HTTP/JSON API here too, without authentication
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_http_addr)]
    pub http: Option<HttpAddr>,
    /// Let --http be an address that other machines can reach
    #[arg(long)]
    pub http_allow_remote: bool,
    /// Name in the URLs of HTTP clients, beside localhost and that of --http; may be given more than once
    #[arg(long, value_name = "NAME")]
    pub http_host: Vec<String>,
    /// Largest file that is fetched to import it from a URL [default: 1 TiB]
    #[arg(long, value_name = "SIZE")]
    pub import_max_size: Option<Size>,
    /// Let URLs that are imported lead to private addresses by redirects, and names to this machine
    #[arg(long)]
    pub import_allow_private: bool,
    /// Budget of the read cache [default: 1 GiB]
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<Size>,
    /// Data-plane threads [default: 2]
    #[arg(long, value_name = "N")]
    pub cores: Option<usize>,
}

/// `forebay image …`
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Make an image of a disk file: raw, qcow2, VMDK or VHDX
    Import {
        /// Name of the new image
        #[arg(value_parser = Name::new())]
        name: String,
        /// Path of the file, or http:// or https:// URL
        #[arg(value_name = "FILE|URL", value_parser = Name::new())]
        file: String,
        /// What the file is, if it is not to be found out
        #[arg(long, value_enum, default_value_t)]
        format: Format,
        /// Share blocks only with disks of this domain; clones have that of their source
        #[arg(long, value_name = "N", default_value_t)]
        dedup_domain: u32,
    },
    /// Make an image of what a volume or snapshot holds now
    Create {
        /// Name of the new image
        #[arg(value_parser = Name::new())]
        name: String,
        /// VOLUME or VOLUME@SNAPSHOT; of a desktop, after 'volume persist'
        #[arg(value_name = "SOURCE[@SNAPSHOT]", value_parser = Name::new())]
        source: String,
    },
    /// List all images
    List,
    /// Show one image
    Show {
        /// Name of the image
        #[arg(value_parser = Name::new())]
        name: String,
    },
    /// Remove an image that has no clones
    Rm {
        /// Name of the image
        #[arg(value_parser = Name::new())]
        name: String,
    },
    /// Show what the boot of an image's clones reads, or change that
    Profile {
        /// IMAGE or VOLUME@SNAPSHOT
        #[arg(value_parser = Name::new())]
        name: String,
        /// What is to be done; without, it is shown.
        #[command(flatten)]
        change: ProfileChange,
    },
}

/// What `forebay image profile` changes; one at a time.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct ProfileChange {
    /// Record the next boot of a clone, in the place of what is known
    #[arg(long)]
    pub record: bool,
    /// End a recording now; what was read so far is the profile
    #[arg(long)]
    pub stop: bool,
    /// Read it into the cache now, before clones start
    #[arg(long)]
    pub prefetch: bool,
    /// Forget it
    #[arg(long)]
    pub clear: bool,
}

/// `forebay volume …`
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Make an empty volume
    Create {
        /// Name of the new volume
        #[arg(value_parser = Name::new())]
        name: String,
        /// Its size: bytes, or with K, M, G, T (powers of two)
        #[arg(long)]
        size: Size,
        /// When its writes are durable
        #[arg(long, value_enum, default_value_t)]
        sync: Sync,
        /// Share blocks only with disks of this domain; clones have that of their source
        #[arg(long, value_name = "N", default_value_t)]
        dedup_domain: u32,
    },
    /// Make clones of an image, a volume or a snapshot
    Clone {
        /// IMAGE, VOLUME or VOLUME@SNAPSHOT
        #[arg(value_name = "SOURCE[@SNAPSHOT]", value_parser = Name::new())]
        source: String,
        /// Name of the clone; with --count, what the names begin with
        #[arg(value_parser = Name::new())]
        name: String,
        /// Make this many: NAME-001, NAME-002 and so on, all or none
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(crate::control::MAX_CLONES)))]
        count: Option<u32>,
        /// When their writes are durable
        #[arg(long, value_enum, default_value_t)]
        sync: Sync,
        /// Make desktops: their writes stay in RAM, and are gone after a reset or a restart
        #[arg(long, conflicts_with = "sync")]
        desktop: bool,
        /// RAM for the writes of each desktop; what does not fit goes to the store
        #[arg(long, value_name = "SIZE", requires = "desktop", default_value = "256M")]
        write_cache: Size,
        /// When desktops are reset by themselves
        #[arg(long, requires = "desktop", value_enum, default_value_t)]
        reset: Reset,
    },
    /// List all volumes
    List,
    /// Show one volume
    Show {
        /// Name of the volume
        #[arg(value_parser = Name::new())]
        name: String,
    },
    /// Remove a volume that nobody uses and that has no snapshots
    Rm {
        /// Name of the volume
        #[arg(value_parser = Name::new())]
        name: String,
    },
    /// Change the size of a volume; shrinking discards what lies beyond
    Resize {
        /// Name of the volume
        #[arg(value_parser = Name::new())]
        name: String,
        /// The new size
        size: Size,
    },
    /// Set clones back to the image or snapshot they came from, all or none
    Reset {
        /// Names of the volumes
        #[arg(value_name = "NAME", value_parser = Name::new(), required = true)]
        names: Vec<String>,
    },
    /// Show what a disk holds as its guest sees it (page file, programs, free), and how that is read and written
    Classes {
        /// VOLUME, IMAGE or VOLUME@SNAPSHOT
        #[arg(value_parser = Name::new())]
        name: String,
        /// Scan the disk first
        #[arg(long)]
        refresh: bool,
    },
    /// Make a desktop a persistent volume, with all that was written to it
    Persist {
        /// Name of the desktop
        #[arg(value_parser = Name::new())]
        name: String,
        /// When its writes are durable from then on
        #[arg(long, value_enum, default_value_t)]
        sync: Sync,
    },
}

/// `forebay snapshot …`
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Make a snapshot of a volume
    Create {
        /// The volume
        #[arg(value_parser = Name::new())]
        volume: String,
        /// Name of the snapshot
        #[arg(value_parser = Name::new())]
        name: String,
    },
    /// List the snapshots of a volume
    List {
        /// The volume
        #[arg(value_parser = Name::new())]
        volume: String,
    },
    /// Remove a snapshot that has no clones
    Rm {
        /// The volume
        #[arg(value_parser = Name::new())]
        volume: String,
        /// Name of the snapshot
        #[arg(value_parser = Name::new())]
        name: String,
    },
    /// Set a volume back to a snapshot
    Rollback {
        /// The volume
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
    /// Make a target; unless it is open, it admits nobody until initiators are allowed
    Create {
        /// Its name, such as iqn.2026-01.org.example:disks
        #[arg(value_name = "IQN", value_parser = Name::new())]
        name: String,
        /// Admit any initiator
        #[arg(long)]
        open: bool,
        /// With what initiators authenticate themselves that have nothing of their own.
        #[command(flatten)]
        chap: ChapArgs,
        /// User as which the target authenticates itself to initiators (mutual CHAP)
        #[arg(long, value_name = "USER", requires = "mutual_secret_file")]
        mutual_user: Option<String>,
        /// File with its secret, which must not be that of an initiator; - is standard input
        #[arg(long, value_name = "FILE", requires = "mutual_user")]
        mutual_secret_file: Option<PathBuf>,
    },
    /// List all targets
    List,
    /// Show one target: its LUNs, who may come, who is connected
    Show {
        /// Name of the target
        #[arg(value_name = "IQN", value_parser = Name::new())]
        name: String,
    },
    /// Remove a target; its disks stay
    Rm {
        /// Name of the target
        #[arg(value_name = "IQN", value_parser = Name::new(), required_unless_present = "all")]
        name: Option<String>,
        /// Remove all targets, also if the table of them cannot be read
        #[arg(long, conflicts_with = "name")]
        all: bool,
        /// Even if initiators are connected, which are cut off
        #[arg(long)]
        force: bool,
    },
    /// Let an initiator come; again, to change what it may
    Allow {
        /// Name of the target
        #[arg(value_name = "IQN", value_parser = Name::new())]
        target: String,
        /// Name of the initiator
        #[arg(value_parser = Name::new())]
        initiator: String,
        /// With what it authenticates itself, if not with what the target says.
        #[command(flatten)]
        chap: ChapArgs,
        /// Let it see only this LUN; may be given more than once
        #[arg(long, value_name = "N")]
        lun: Vec<u16>,
    },
    /// Take back what was allowed to an initiator
    Deny {
        /// Name of the target
        #[arg(value_name = "IQN", value_parser = Name::new())]
        target: String,
        /// Name of the initiator
        #[arg(value_parser = Name::new())]
        initiator: String,
    },
}

/// With what initiators authenticate themselves.
#[derive(Debug, Args)]
pub struct ChapArgs {
    /// User as which initiators authenticate themselves (CHAP)
    #[arg(long, value_name = "USER", requires = "chap_secret_file")]
    pub chap_user: Option<String>,
    /// File with the secret, 12 to 255 bytes; - is standard input
    #[arg(long, value_name = "FILE", requires = "chap_user")]
    pub chap_secret_file: Option<PathBuf>,
}

/// `forebay lun …`
#[derive(Debug, Subcommand)]
pub enum LunCommand {
    /// Show a disk to the initiators of a target; again, with its number, to change how
    Map {
        /// Name of the target
        #[arg(value_parser = Name::new())]
        target: String,
        /// VOLUME, or IMAGE or VOLUME@SNAPSHOT, which are read-only
        #[arg(value_parser = Name::new())]
        disk: String,
        /// Its number, 0 to 255 [default: the lowest that is free]
        #[arg(long, value_name = "N")]
        lun: Option<u16>,
        /// Refuse writes
        #[arg(long)]
        read_only: bool,
        /// Answer writes before they are durable; initiators flush what is to be safe
        #[arg(long, conflicts_with = "read_only")]
        write_back: bool,
    },
    /// Take a disk away from a target
    Unmap {
        /// Name of the target
        #[arg(value_parser = Name::new())]
        target: String,
        /// Number of the disk
        #[arg(value_name = "N")]
        lun: u16,
    },
    /// List the disks of a target
    List {
        /// Name of the target
        #[arg(value_parser = Name::new())]
        target: String,
    },
    /// Show reservations and registrations of a disk, or end them
    Reservations {
        /// Name of the target
        #[arg(value_parser = Name::new())]
        target: String,
        /// Number of the disk
        #[arg(value_name = "N")]
        lun: u16,
        /// End all reservations and remove all registrations: cluster nodes lose their fencing
        #[arg(long)]
        clear: bool,
    },
}

/// Options of `stats`.
#[derive(Debug, Args)]
pub struct StatsArgs {
    /// Only this volume, image or VOLUME@SNAPSHOT
    #[arg(value_parser = Name::new())]
    pub volume: Option<String>,
    /// Show the rates of each second until interrupted
    #[arg(long)]
    pub watch: bool,
}
