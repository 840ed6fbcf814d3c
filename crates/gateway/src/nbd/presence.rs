//! How the gateway determines whether a client is still connected.

use std::time::Duration;

/// What the caller of [`Gateway::serve`](super::Gateway::serve) can learn about the connection of a client,
/// of which `C` is the stream.
///
/// The gateway receives only what precedes the end of the stream. The end can be lost with the network, or be
/// queued behind bytes for which the gateway has no room.
pub trait Presence<C>: Send + Sync {
    /// Begins or ends to ask the host of the client for signs, which must not disturb the client.
    fn ask(&self, client: &C, is_asking: bool);
    /// Time since the last sign that the client is connected; it is never shorter than the actual time.
    /// `None` if the client has closed the connection or its sending side.
    fn last_sign(&self, client: &C) -> Option<Duration>;
}
