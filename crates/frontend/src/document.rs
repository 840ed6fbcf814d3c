//! Documents that the server keeps in the pool: JSON with a version.
//!
//! An unknown field or version is an error, so that a document of a later release is not rewritten without
//! the fields that this release does not support.

use forebay_engine::Pool;
use serde::Deserialize;
use serde::de::DeserializeOwned;

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// Decodes a document of this version. The error states the defect, as a text that begins with `is` or `has`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], version: u32, [is, has]: [&str; 2]) -> Result<T, String> {
    let damaged = |e: serde_json::Error| format!("{is} damaged: {e}");
    // The version is checked first: other fields may be unknown for this reason.
    let found = serde_json::from_slice::<Version>(bytes).map_err(damaged)?.version;
    if found != version {
        return Err(format!("{has} version {found}, this release supports version {version}"));
    }
    serde_json::from_slice(bytes).map_err(damaged)
}

/// Reads a document of the pool. If there is no document, the result is the default; the error states why it
/// cannot be read.
pub async fn load<T: Default>(
    pool: &Pool,
    name: &str,
    decode: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<T, String> {
    match pool.document(name).await {
        Ok(Some(bytes)) => decode(&bytes),
        Ok(None) => Ok(T::default()),
        Err(e) => Err(e.to_string()),
    }
}
