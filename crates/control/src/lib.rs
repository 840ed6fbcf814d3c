//! The control plane: operations on the pool and the server, and the HTTP/JSON API that offers them.
//!
//! [`resources`] declares all operations, and [`operations`] runs them. [`http`] decides which requests are
//! served, and [`access`] by whom they are allowed. The control plane runs on separate threads and cannot
//! delay a guest.

pub mod access;
mod connect;
mod dashboard;
mod export;
mod fetch_policy;
pub mod front;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use import::fuzzing;
pub mod http;
pub mod import;
pub mod limits;
pub mod metrics;
pub mod operations;
pub mod resources;
mod view;
