//! The services of the operating system that an engine and its front ends run on: threads, timers, clocks,
//! files of retained memory, and who else can read a file.

pub mod clock;
mod engine_thread;
pub mod modes;
pub mod name;
mod retained_directories;
mod retained_files;
mod timer;
mod workers;

pub use engine_thread::EngineThread;
pub use retained_directories::of_all_users;
pub use retained_files::{Location, PoolDirectory, pool_of_name, short_name};
