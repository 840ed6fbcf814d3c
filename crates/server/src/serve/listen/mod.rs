//! The listening sockets, and the connections of the API.

pub(super) mod connection_limit;
pub(super) mod http;
pub(super) mod https;
pub(super) mod inherited;
pub(super) mod requests;
pub(super) mod send_timeout;
pub(super) mod socket;
pub(super) mod sockets;
