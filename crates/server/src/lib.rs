//! The binary `forebay`: its command line and configuration, and the running server, which connects the
//! engine and its store with the front ends and the control plane.

pub mod cli;
pub mod config;
pub mod log;
pub mod node;
pub mod serve;
pub mod sizing;
