//! The NVMe over TCP target: controllers and queues of hosts, served from the logical units of
//! [`crate::scsi`].
//!
//! **Model.** A target is an NVM subsystem, and its logical unit `n` is the namespace `n + 1`; access lists
//! admit hosts by their NVMe names ([`crate::targets`]). A controller has one nexus with each unit, like a
//! session of iSCSI. So reservations, tokens, write protection and aborts of either protocol hold for both,
//! and the rule when a change is durable is the same ([`crate::scsi::Nexus::durable`]).
//!
//! **Queues.** Each queue of a controller is one connection, possibly on another thread than the admin queue.
//! A connection is initialized and connected to a queue first (`connect`), and its host authenticated
//! (`authentication`, with the Diffie-Hellman groups of `exchange`). It then serves capsules: `queue`
//! is its protocol, `commands` has the I/O commands in progress, `run` executes them, `admin` answers admin
//! commands, `link` frames what is sent. `controller` is the state that the queues of a controller share,
//! `namespaces` are its namespaces, `registry` has all controllers, `watch` the events that a host does not
//! cause. `discovery` is the subsystem that lists the others. `errors` maps the responses of units to NVMe
//! statuses.
//!
//! **Order.** A queue ends only after its commands have ended, and a host whose sockets are closed can
//! connect again only after its former controllers have ended (`registry`): a write that was never answered
//! cannot change a namespace after newer writes of the host's next controller.
//!
//! **Fused operations.** The two commands of a Compare and Write are adjacent in their queue: after the first
//! command, only the second can follow; any other command makes the first one fail. Both become one request,
//! which the engine executes as one atomic change.

mod admin;
mod authentication;
mod commands;
mod connect;
mod connection;
mod context;
mod controller;
mod discovery;
mod errors;
mod exchange;
mod link;
mod namespaces;
mod notices;
mod queue;
mod registry;
mod run;
mod watch;

pub use context::{ControllerLimits, ListenFailed, Settings, listen, refuse_remote};
