//! The control plane from outside: the API's router, imports from real files, and the binary itself.

mod api;
mod common;
mod formats;
mod hostile;
mod import;
mod process;
