//! The NBD server: connections of many clients, served from [`forebay_engine::DiskHandle`]s.
//!
//! A `connection` negotiates (`negotiate`), then transmits (`transmission`): it receives all available bytes
//! in one call, decodes each complete request, executes at once those that need no wait in the engine (cached
//! reads, buffered writes), passes the rest to tasks of the same thread (`job`), and sends all replies in one
//! call. The threads, and the state that their connections share, belong to [`crate::plane`].
//!
//! `access` decides which exports a client sees, by its listener and the names in its `certificate`.
//! `attachments` lets a new connection start only after those that are gone have ended; `traffic` is what the
//! kernel tells it of their sockets. `tls` holds the server's certificates; a `handshake` runs outside of the
//! data plane. `context` is the input of a connection and of its transmission, `peer` identifies clients,
//! `clients` lists them for administrators, `errors` maps engine errors to NBD, `handover` is the state of a
//! connection that is passed to another process, `config` is the configuration, `listen` starts it all.

mod access;
mod attachments;
mod certificate;
mod clients;
mod config;
mod connection;
mod context;
mod errors;
mod handover;
mod handshake;
mod listen;
mod negotiate;
mod peer;
mod reply;
mod stream;
mod tls;
mod traffic;
mod transmission;

pub use crate::plane::has_hung_up;
pub use access::{Access, BadSubject, SubjectPattern};
pub use clients::Clients;
pub use config::{ClientCertificates, Config, ListenerConfig, TlsConfig, TlsMode};
pub use listen::{BindError, Listening, ServedListener, check, listen};
pub use tls::{Certificates, TlsError};
pub use traffic::since_acknowledgement;
