//! Limits on the requests of clients: operations and bytes per second, for a disk and for a tenant.
//!
//! - [`rates`]: what an administrator sets.
//! - [`bucket`]: one limit: a token bucket, as a pure function of the time.
//! - [`limiter`]: the limits of a disk and of its tenant, and the requests that wait for them.

mod bucket;
mod limiter;
mod rates;

pub(crate) use limiter::{Kind, Limiter, Tenant};
pub use rates::{Limits, Rate, RateLimits};
