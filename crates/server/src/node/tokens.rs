//! The tokens of the API of a cluster: a part of the map, so each node learns of a change as of any other
//! one.

use std::sync::Arc;

use forebay_cluster::ClusterError;
use forebay_cluster::map::Change;
use forebay_control::access::{Access, TokenError};
use forebay_control::front::{DocumentError, TokenDocument};
use forebay_store::BoxFuture;

use super::shard::Shared;

/// The tokens as the map has them.
pub(super) struct TokensInMap {
    pub shared: Arc<Shared>,
    pub access: Arc<Access>,
}

impl TokenDocument for TokensInMap {
    fn replace<'a>(
        &'a self,
        change: &'a (dyn Fn() -> Result<Vec<u8>, TokenError> + Send + Sync),
    ) -> BoxFuture<'a, Result<(), DocumentError>> {
        Box::pin(async move {
            let mut refused = None;
            let changed = self.shared.maps.change(|map| {
                // What this node has may be older.
                self.access.tokens.replace_document(&map.tokens);
                match change() {
                    Ok(document) => Ok(Change::default().set_tokens(document)),
                    Err(e) => {
                        refused = Some(e);
                        Ok(Change::default())
                    }
                }
            });
            let map = changed.await.map_err(|e: ClusterError| DocumentError::Store(e.to_string()))?;
            if let Some(refused) = refused {
                return Err(refused.into());
            }
            self.access.tokens.replace_document(&map.tokens);
            Ok(())
        })
    }
}
