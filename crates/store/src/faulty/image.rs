//! All bytes of a machine's medium, which tests can modify and load into another machine.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_format::SegmentId;

use super::FaultyStore;
use super::medium::{Object, SuperblockCopy};

/// The contents of a medium.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// Bytes of each object, up to the end of its last append.
    pub objects: BTreeMap<SegmentId, Vec<u8>>,
    /// The superblock copies.
    pub superblock: [Option<Vec<u8>>; 2],
}

impl FaultyStore {
    /// The current contents. Preallocated space after the last append is omitted.
    pub fn image(&self) -> Image {
        let machine = self.machine.lock();
        Image {
            objects: machine.objects.iter().map(|(id, object)| (*id, object.view.clone())).collect(),
            superblock: machine.superblock.each_ref().map(|copy| copy.view.clone()),
        }
    }

    /// A store on a new machine whose medium contains `image`, durably.
    pub fn of_image(seed: u64, image: &Image) -> Arc<FaultyStore> {
        let store = FaultyStore::new(seed);
        {
            let mut machine = store.machine.lock();
            let objects = image.objects.iter().map(|(id, bytes)| (*id, Object::durable(bytes)));
            machine.objects = objects.collect();
            machine.superblock = image.superblock.clone().map(SuperblockCopy::durable);
        }
        store
    }
}
