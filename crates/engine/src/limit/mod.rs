//! Limits on the requests of clients: operations and bytes per second, for a disk and for a tenant.
//!
//! - [`rates`]: what an administrator sets.
//! - [`bucket`]: one limit: a token bucket, as a pure function of the time.
//! - [`limiter`]: the limits of a disk and of its tenant, and the requests that wait for them.
//! - [`usage`]: the quota of a tenant ([`crate::quota`]), and how much of it is used.

mod bucket;
mod limiter;
mod rates;
mod usage;

pub(crate) use limiter::{Kind, Limiter, Tenant, Tokens};
pub use rates::{Limits, Rate, RateLimits};
pub use usage::TenantUsage;
