//! The messages between predecessor and successor. Each is a JSON object; bytes and descriptors that belong
//! to it follow separately ([`super::channel`]).

use forebay_frontend::plane::{ListenAddr, Parked, ParkedStream};
use forebay_frontend::scsi::UnitState;
use serde::{Deserialize, Serialize};

/// A message of either side.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(super) enum Message {
    /// The successor is asked to prepare itself. One descriptor for each listener follows.
    Start { listeners: Vec<ListenerState> },
    /// The successor is prepared to take over.
    Ready {
        release: String,
        formats: (u32, u32),
        /// The successor as the heir of a pool in Ceph.
        #[serde(default)]
        heir: Option<String>,
    },
    /// The successor cannot take over.
    Refused { reason: String },
    /// The pool is closed. The bytes of the connections follow one after another, and one descriptor for each
    /// connection.
    State {
        connections: Vec<ConnectionState>,
        units: Vec<UnitState>,
        /// Whether one more descriptor follows: that of a copy of the read cache.
        #[serde(default)]
        has_cache: bool,
    },
    /// The successor has opened the pool, and is able to serve the connections.
    Opened,
    /// The connections belong to the successor.
    Go,
    /// The successor serves clients.
    Serving { resumed: usize },
}

/// State of a listening socket that is handed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::serve) struct ListenerState {
    pub service: Service,
    /// Number of the group. Listeners with the same number belong to one address of the configuration.
    pub group: usize,
    /// Address of the listener in the configuration.
    pub address: String,
    /// Device and inode of the socket file, if the server removes the file when it stops.
    pub file: Option<(u64, u64)>,
}

/// For which service a listening socket is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::serve) enum Service {
    /// The listener serves NBD or iSCSI.
    Data,
    Http,
    Control,
}

/// State of a parked connection that is handed over.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ConnectionState {
    /// Bound address of the listener that accepted the connection.
    listener: String,
    protocol: serde_json::Value,
    input: usize,
    output: usize,
}

impl ConnectionState {
    /// Describes a connection, and appends its bytes to `bytes`.
    pub fn of(parked: &Parked, bytes: &mut Vec<u8>) -> ConnectionState {
        let stream = &parked.stream;
        bytes.extend_from_slice(&stream.input);
        bytes.extend_from_slice(&stream.output);
        ConnectionState {
            listener: parked.listener.to_string(),
            protocol: stream.protocol.clone(),
            input: stream.input.len(),
            output: stream.output.len(),
        }
    }

    /// The connection with its socket; removes the bytes of the message from `bytes`. `None` if they are too
    /// few, or the address is invalid.
    pub fn into_parked(self, socket: std::os::fd::OwnedFd, bytes: &mut &[u8]) -> Option<Parked> {
        let mut take = |len| {
            let (part, rest) = bytes.split_at_checked(len)?;
            *bytes = rest;
            Some(part.to_vec())
        };
        let (input, output) = (take(self.input)?, take(self.output)?);
        let listener: ListenAddr = self.listener.parse().ok()?;
        let stream = ParkedStream { socket, protocol: self.protocol, input, output };
        Some(Parked { listener, stream })
    }
}
