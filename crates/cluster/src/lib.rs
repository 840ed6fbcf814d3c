//! What the nodes of a cluster share: the members and the shards, which node is to have which shard, and the
//! directory of names.
//!
//! A *cluster* is many pools, called *shards*, in one Ceph pool. Each shard is owned by one server at a time,
//! as every pool in Ceph is (`forebay_store::rados`). A *node* is a host that owns shards. The nodes agree by
//! means of a few objects in the namespace of the cluster; there is no leader and no consensus protocol,
//! because RADOS orders all operations on an object:
//!
//! | object | holds | module |
//! |---|---|---|
//! | `cluster` | the members and the shards | [`map`] |
//! | `names.00` to `names.63` | the shard of each volume and of each image, by name | [`names`]; [`owned`] for an owner |
//! | `images` | the images that every shard can clone, and the shards that use them | [`images`]; [`owned_images`] for an owner |
//!
//! Which node is to own a shard is part of the map ([`placement`] decides it), so nodes that read the same
//! map need not talk to each other.
//!
//! Every change compares, within the operation, the values on which it depends. So a node that was paused, or
//! whose operation arrives late, does not overwrite a later change of another node.

mod entry;
pub mod error;
mod hash;
pub mod images;
#[cfg(test)]
mod images_model;
#[cfg(test)]
mod images_rules;
pub mod map;
pub mod names;
pub mod owned;
pub mod owned_images;
pub mod placement;
#[cfg(test)]
mod testing;

pub use error::{ClusterError, Result};
