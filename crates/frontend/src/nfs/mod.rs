//! NFS version 3 with MOUNT version 3, over TCP, and an answer to the port mapper's question.
//!
//! **Model.** Each pool has one namespace ([`forebay_files`]), with `/` as its export; a client can
//! mount any directory. `access` decides by the address of a client whether it may read and write, and
//! whether its root is root here. AUTH_SYS is the claim of a client: a client that reaches the port can claim
//! any user, so other machines can reach it only if that is configured.
//!
//! **Connections.** `connection` accepts a client whose first call is one of NFS. `session` finds the calls
//! in its stream and answers at once what is in memory; a task (`job`) performs the other calls, in any
//! order, since a client that needs an order waits for replies. `changes`, `data` and `lookups` are the
//! procedures, `mounts` is the protocol MOUNT, `portmap` the port mapper, `attributes` and `errors` map the
//! types of the namespace to those of NFS.
//!
//! **Durability.** Changes of names and attributes are durable when they are answered, and so is a WRITE that
//! requires it. An unstable WRITE is in the write buffers; COMMIT makes it durable. The write verifier is the
//! identity of the memory that holds the buffers, and changes when they may be lost.
//!
//! **Repeated calls.** A client repeats the calls that were not answered when its connection is lost, with
//! the same numbers (xid). Calls that change names or attributes have the address of the client, the number,
//! the procedure and a digest of the arguments as their identity, under which the namespace stores the reply
//! with the change. Other calls are idempotent.
//!
//! **The end.** A call that finds the pool closing, or lost to another server, is not answered, and its
//! connection ends: a client with a hard mount repeats it until a server answers.

mod access;
mod attributes;
mod changes;
mod connection;
mod context;
mod data;
mod errors;
mod job;
mod lookups;
mod mounts;
mod portmap;
mod session;

pub use access::{AccessRule, BadNetwork, Network};
pub use context::{ListenFailed, Settings, listen, refuse_remote};
