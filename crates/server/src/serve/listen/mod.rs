//! The listening sockets, and the connections of the API.

pub(crate) mod connection_limit;
pub(crate) mod http;
pub(crate) mod https;
pub(super) mod inherited;
pub(super) mod requests;
pub(super) mod send_timeout;
pub(crate) mod socket;
pub(super) mod sockets;
