//! The state of the requests on a file.

use std::sync::Arc;

use forebay_engine::DiskHandle;
use parking_lot::Mutex;
use tokio::sync::RwLock;

/// The lock of a file's data, and its disk while it is open.
///
/// Reads and writes hold the lock shared. It is held exclusively to shorten or to remove a file, and to
/// change the data of a small file, which is rewritten as a whole.
#[derive(Default)]
pub(crate) struct OpenFile {
    pub lock: Arc<RwLock<()>>,
    pub disk: Mutex<Option<Arc<DiskHandle>>>,
}

impl std::fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenFile").finish_non_exhaustive()
    }
}
