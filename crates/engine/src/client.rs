//! Clients of disks. A client on the same host dies with the host, and so do writes in the memory of the
//! host. A remote client outlives the host, and may have seen writes that are lost with its memory.

/// A client of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// A process of the host that serves the disk.
    Local {
        /// When the process started, in milliseconds since the boot of the host; `None` if unknown.
        started_ms: Option<u64>,
    },
    /// A client that may outlive this host.
    Remote,
    /// A remote client behind a node that connects to another server without the client's knowledge, and
    /// repeats its requests there. So its writes are durable when they are answered, with each setting of
    /// [`RemoteAnswers`](crate::RemoteAnswers).
    Relayed,
}

impl Client {
    /// Whether the client started after a time of the present boot, so that it cannot have seen an earlier
    /// answer.
    pub(crate) fn started_after(self, since_ms: u64) -> bool {
        matches!(self, Client::Local { started_ms: Some(started) } if started > since_ms)
    }

    pub(crate) fn clientele(self) -> Clientele {
        match self {
            Client::Local { .. } => Clientele::Local,
            Client::Remote | Client::Relayed => Clientele::Remote,
        }
    }
}

/// The clients to which a write is answered, in the order of their marks: a mark for remote clients covers
/// local ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Clientele {
    Local = 1,
    Remote = 2,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_local_client_with_a_known_later_start_is_new() {
        assert!(Client::Local { started_ms: Some(11) }.started_after(10));
        assert!(!Client::Local { started_ms: Some(10) }.started_after(10));
        assert!(!Client::Local { started_ms: None }.started_after(0));
        assert!(!Client::Remote.started_after(0));
    }
}
