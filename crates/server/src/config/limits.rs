//! `[limits]`: limits on clients.

use std::time::Duration;

use forebay_frontend::plane::{ConnectionLimits, MIN_BUDGET, MemoryLimits};
use forebay_text::Size;
use serde::Deserialize;

use super::ConfigError;

/// Maximum of all timeouts, in seconds.
const MAX_TIMEOUT_S: u64 = 3600;

/// The section `[limits]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsSection {
    /// Maximum number of client connections.
    pub connections: Option<usize>,
    /// Maximum number of connections from one address.
    pub connections_per_address: Option<usize>,
    /// Maximum number of connections that have not chosen an export or logged in yet.
    pub negotiating: Option<usize>,
    /// Seconds after which connections that have not completed their negotiation are closed.
    pub negotiation_timeout_s: Option<u64>,
    /// Memory for requests and replies of all clients together.
    pub client_memory: Option<Size>,
    /// Seconds that a client may hold a part of this memory without progress while other clients wait for it.
    pub stall_timeout_s: Option<u64>,
}

impl LimitsSection {
    pub(super) fn connections(&self) -> Result<ConnectionLimits, ConfigError> {
        let default = ConnectionLimits::default();
        let count = |option, value: Option<usize>, default| match value {
            Some(0) => {
                let why = "use at least 1; to serve no clients, remove 'listen'";
                Err(ConfigError::Value { option, value: "0".into(), why })
            }
            value => Ok(value.unwrap_or(default)),
        };
        Ok(ConnectionLimits {
            all: count("limits.connections", self.connections, default.all)?,
            per_address: count(
                "limits.connections_per_address",
                self.connections_per_address,
                default.per_address,
            )?,
            negotiating: count("limits.negotiating", self.negotiating, default.negotiating)?,
            negotiation: seconds(
                "limits.negotiation_timeout_s",
                self.negotiation_timeout_s,
                default.negotiation,
            )?,
        })
    }

    /// `budget` is the configured memory of clients, or its default.
    pub(super) fn memory(&self, budget: u64) -> Result<MemoryLimits, ConfigError> {
        if budget < MIN_BUDGET {
            let (option, value) = ("limits.client_memory", Size(budget).to_string());
            return Err(ConfigError::Value { option, value, why: "use at least 96M" });
        }
        let stall = seconds("limits.stall_timeout_s", self.stall_timeout_s, MemoryLimits::default().stall)?;
        Ok(MemoryLimits { budget, stall })
    }
}

fn seconds(option: &'static str, value: Option<u64>, default: Duration) -> Result<Duration, ConfigError> {
    let seconds = value.unwrap_or(default.as_secs());
    if !(1..=MAX_TIMEOUT_S).contains(&seconds) {
        return Err(ConfigError::Value { option, value: seconds.to_string(), why: "use 1 to 3600" });
    }
    Ok(Duration::from_secs(seconds))
}
