//! Tests of the namespace from outside.

mod crash;
mod semantics;
mod support;
