//! The segments of the images of a cluster: objects in a separate namespace, which every shard reads.
//!
//! A segment is written once, by one operation that creates the object, and does not change. Its number was
//! reserved in the cluster for one copy of one image, so no two servers write the same object. A server that
//! was paused may write a segment late: no map contains the segment then, and the object is removed as a
//! leak. No term is compared, because a read of a segment that still exists always returns the bytes that
//! were written.

use std::sync::Arc;

use forebay_format::SegmentId;

use super::cluster::{Cluster, Errno, Step, WhenFull};
use super::header::{segment_object, segment_of};
use super::store_error;
use crate::{Completion, IoBuf, Result, StoreError};

/// The namespace of the images of a cluster.
pub fn images_namespace(cluster: &str) -> String {
    format!("{cluster}.images")
}

/// The segments of the images of a cluster.
#[derive(Clone)]
pub struct ImageObjects(Arc<dyn Cluster>);

fn failed(what: &str, segment: SegmentId) -> impl FnOnce(Errno) -> StoreError {
    move |e| store_error(&format!("{what} of segment {segment} of an image"), e)
}

impl ImageObjects {
    /// The segments in the namespace of the images ([`images_namespace`]).
    pub fn new(namespace: Arc<dyn Cluster>) -> ImageObjects {
        ImageObjects(namespace)
    }

    /// Stores a segment, durably.
    ///
    /// # Errors
    /// [`StoreError::Full`] if there is no room for it; the errors of Ceph. `EEXIST` if the segment exists.
    pub async fn write(&self, segment: SegmentId, bytes: &[u8]) -> Result<()> {
        let mut data = IoBuf::with_capacity(bytes.len());
        data.extend_from_slice(bytes);
        let steps = vec![Step::Create, Step::Write(0, Arc::new(data))];
        let done = self.0.operate(&segment_object(segment), steps, WhenFull::Fail).await;
        done.map_err(failed("the write", segment))
    }

    /// Reads up to `len` bytes of a segment; fewer only at its end.
    pub(super) fn read(&self, segment: SegmentId, offset: u64, len: usize) -> Completion<IoBuf, Errno> {
        self.0.read(&segment_object(segment), offset, len)
    }

    /// Removes a segment. Has no effect if it does not exist.
    ///
    /// # Errors
    /// The errors of Ceph.
    pub async fn delete(&self, segment: SegmentId) -> Result<()> {
        match self.0.operate(&segment_object(segment), vec![Step::Remove], WhenFull::Proceed).await {
            Ok(()) | Err(Errno(libc::ENOENT)) => Ok(()),
            Err(e) => Err(failed("the removal", segment)(e)),
        }
    }

    /// The segments that exist, in no order.
    ///
    /// # Errors
    /// The errors of Ceph.
    pub async fn list(&self) -> Result<Vec<SegmentId>> {
        let failed = |e| store_error("listing the segments of images", e);
        let names = self.0.list().await.map_err(failed)?;
        Ok(names.iter().filter_map(|name| segment_of(name)).collect())
    }
}
