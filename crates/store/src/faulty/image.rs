//! All bytes of a machine's medium, to be changed at will and put under another machine.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_format::SegmentId;

use super::FaultyStore;
use super::medium::{Object, SuperblockCopy};

/// What a medium holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// Bytes of each object, up to the end of its last append.
    pub objects: BTreeMap<SegmentId, Vec<u8>>,
    /// The superblock copies.
    pub superblock: [Option<Vec<u8>>; 2],
}

impl FaultyStore {
    /// What reads give at this moment. Room set aside behind the last append is left out.
    pub fn image(&self) -> Image {
        let machine = self.machine.lock();
        Image {
            objects: machine.objects.iter().map(|(id, object)| (*id, object.view.clone())).collect(),
            superblock: machine.superblock.each_ref().map(|copy| copy.view.clone()),
        }
    }

    /// A store on a new machine whose medium holds `image`, durably.
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
