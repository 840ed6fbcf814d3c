//! Tests of the gateway with a cluster in memory.

#![allow(clippy::unwrap_used)] // an error fails the test

mod cut;
mod driver;
mod fake;
mod negotiation;
mod outages;
mod random;
mod register;
