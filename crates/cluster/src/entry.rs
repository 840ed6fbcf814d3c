//! Entries of objects: JSON with the version of the format in which they were written.

use serde::{Deserialize, Serialize};

use crate::error::{ClusterError, Result};

/// An entry as it is stored.
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("an entry consists of texts and numbers")
}

/// Decodes an entry of an object, which has at most this version.
///
/// # Errors
/// [`ClusterError::Unsupported`] for a higher version; [`ClusterError::Damaged`].
pub(crate) fn decode<T: for<'a> Deserialize<'a>>(object: &str, value: &[u8], supported: u32) -> Result<T> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let damaged = |e: serde_json::Error| ClusterError::Damaged {
        object: object.to_owned(),
        reason: format!("an entry cannot be read: {e}"),
    };
    let Version { version } = serde_json::from_slice(value).map_err(damaged)?;
    match (1..=supported).contains(&version) {
        true => serde_json::from_slice(value).map_err(damaged),
        false => Err(ClusterError::Unsupported),
    }
}
