//! `[logging]`: the log of the server, as opposed to the log of its pool.

use serde::Deserialize;

use super::ConfigError;
use crate::log::{LogConfig, LogFormat, is_filter};

/// The section `[logging]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoggingSection {
    /// Form of the log lines.
    pub format: Option<LogFormat>,
    /// Filter of the log, such as `warn`; `FOREBAY_LOG` overrides it.
    pub filter: Option<String>,
}

impl LoggingSection {
    /// Merges the section with the command-line option.
    pub(super) fn config(self, format: Option<LogFormat>) -> Result<LogConfig, ConfigError> {
        let default = LogConfig::default();
        let filter = self.filter.unwrap_or(default.filter);
        if !is_filter(&filter) {
            let why =
                "use a level (error, warn, info, debug, trace), also per module: info,forebay_engine=debug";
            return Err(ConfigError::Value { option: "logging.filter", value: filter, why });
        }
        Ok(LogConfig { format: format.or(self.format).unwrap_or(default.format), filter })
    }
}
