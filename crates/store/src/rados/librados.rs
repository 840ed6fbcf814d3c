//! Placeholder until the FFI is merged.
use super::{Cluster, RadosAddress, RadosOptions};
use crate::{Result, StoreError};
use std::sync::Arc;
pub(super) fn connect(_: &RadosAddress, _: &RadosOptions) -> Result<Arc<dyn Cluster>> {
    Err(StoreError::ReadOnly)
}
pub(super) fn list_namespaces_with(_: &str, _: &RadosOptions, _: &str) -> Result<Vec<String>> {
    Err(StoreError::ReadOnly)
}
