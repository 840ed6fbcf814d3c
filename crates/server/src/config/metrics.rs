//! `[metrics]`: which volumes have separate metrics.

use forebay_control::operations::VolumeSeries;
use forebay_text::NamePattern;
use serde::Deserialize;

use super::ConfigError;

/// Upper limit for `max_volumes`: each volume has nine series.
const MOST_VOLUMES: usize = 10_000;

/// The section `[metrics]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricsSection {
    /// Names of volumes with separate metrics, where `*` matches any characters.
    #[serde(default)]
    pub volumes: Vec<NamePattern>,
    /// Maximum number of volumes with separate metrics.
    pub max_volumes: Option<usize>,
}

impl MetricsSection {
    pub(super) fn series(self) -> Result<VolumeSeries, ConfigError> {
        let max = self.max_volumes.unwrap_or(VolumeSeries::default().max);
        if max > MOST_VOLUMES {
            let why = "use at most 10000";
            return Err(ConfigError::Value { option: "metrics.max_volumes", value: max.to_string(), why });
        }
        Ok(VolumeSeries { volumes: self.volumes, max })
    }
}
