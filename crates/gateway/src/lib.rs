//! How a node of a cluster serves clients of any shard.
//!
//! A volume is in one shard, and a shard has one owner. A client connects to any node. The node finds the
//! shard of the volume in the directory of names, and forwards the client's requests to the owner of the
//! shard:
//!
//! ```text
//! client ── node ── link (TLS) ── node of the owner ── UNIX socket ── process of the shard
//!               └── UNIX socket ── process of the shard, if this node is the owner
//! ```

pub mod api;
pub mod link;
pub mod nbd;
mod places;

use std::io;
use std::pin::Pin;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

/// A future in a box.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A stream of bytes to the process of a shard.
pub type Stream = Box<dyn ByteStream>;

/// What a stream of bytes can do.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A connection of an NBD client, as the nodes identify it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NbdClient {
    /// Identity of the connection; no other connection of the cluster has it.
    pub id: String,
    /// Number of this attempt to reach the owner. A later attempt ends the streams of all earlier ones before
    /// its own stream begins.
    pub generation: u64,
    /// Milliseconds since the client first opened its export; 0 if this is the first attempt.
    #[serde(default)]
    pub age_ms: u64,
    /// The client for administrators: its address, or its process.
    pub name: String,
}

/// The cluster as a gateway sees it.
pub trait Shards: Send + Sync + 'static {
    /// The shard that has a volume or an image of this name; `None` if no shard has one. The name of a
    /// snapshot begins with the name of its volume.
    fn locate<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Option<u32>>>;

    /// The names of all volumes and images.
    fn names(&self) -> BoxFuture<'_, io::Result<Vec<String>>>;

    /// Opens a stream to the NBD service of the present owner of a shard. The stream begins with the greeting
    /// of the NBD server. It fails at once if the shard has no owner that answers; the caller repeats the
    /// attempt.
    fn connect_nbd<'a>(&'a self, shard: u32, client: &'a NbdClient) -> BoxFuture<'a, io::Result<Stream>>;
}
