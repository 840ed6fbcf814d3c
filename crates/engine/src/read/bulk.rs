//! Bulk reads, which bypass the caches: one store read serves all blocks that are stored close together. Used
//! by the mark, the cleaner and the check, which have all their references before they need the first block.

use forebay_format::{BLOCK, BlockRef, crc32c};
use forebay_store::IoBuf;
use futures_util::future::join_all;

use super::nodes::NodeReader;
use super::relocation::{Location, Token};
use super::run::{can_append, unpack_run};
use super::store::{StoreReader, damage};
use crate::limits::{BLOCK_READS, BLOCK_RUN, NODE_GAP, NODE_READ_BYTES, NODE_READS};
use crate::map::{Held, NeedNode, Node};
use crate::workers::map;
use crate::{Error, Result};

/// The blocks or nodes of one store read, ordered by location.
#[derive(Default)]
struct Run {
    locations: Vec<Location>,
    /// For each location, the index of its block among the requested blocks.
    which: Vec<usize>,
}

impl Run {
    /// Bytes from the first location to the end of the last.
    fn len(&self) -> usize {
        let begin = self.locations.first().map_or(0, |p| p.offset);
        let end = self.locations.iter().map(|p| p.offset + p.len as u64).max().unwrap_or(begin);
        (end - begin) as usize
    }
}

/// Whether a node can be added to a run. Dead nodes between two nodes are read as well: leaving them out
/// would cost another operation.
fn can_append_node(run: &Run, next: &Location) -> bool {
    run.locations.first().zip(run.locations.last()).is_some_and(|(first, last)| {
        next.object == last.object
            && next.offset <= last.offset + last.len as u64 + NODE_GAP
            && next.offset + next.len as u64 <= first.offset + NODE_READ_BYTES
    })
}

/// Whether a block can be added to a run. A group of blocks is not divided: each part would unpack the whole
/// group.
fn can_append_block(run: &Run, next: &Location) -> bool {
    can_append(&run.locations, next)
        && (run.locations.len() < BLOCK_RUN || run.locations.last().is_some_and(|l| l.offset == next.offset))
}

/// Unpacks the blocks of a run, and compares them with the checksums in their references. Returns the
/// contents, concatenated, and for each block whether it is sound.
fn unpack_verified(run: &Run, stored: IoBuf, blocks: &[BlockRef]) -> (IoBuf, Vec<bool>) {
    let (contents, mut sound) = unpack_run(&run.locations, stored);
    for ((sound, content), i) in sound.iter_mut().zip(contents.chunks_exact(BLOCK)).zip(&run.which) {
        *sound &= crc32c(content) == blocks[*i].crc;
    }
    (contents, sound)
}

impl StoreReader {
    /// Locates all references and combines them into runs, as far as `can_append` permits. Calls `failed`
    /// with the index of each reference that has no location.
    async fn runs(
        &self,
        token: &Token,
        wanted: &[BlockRef],
        can_append: fn(&Run, &Location) -> bool,
        mut failed: impl FnMut(usize, Error),
    ) -> Vec<Run> {
        let mut locations = Vec::with_capacity(wanted.len());
        for (i, at) in wanted.iter().enumerate() {
            match self.locate(token, at).await {
                Ok(location) => locations.push((location, i)),
                Err(e) => failed(i, e),
            }
        }
        locations.sort_unstable_by_key(|(location, i)| (location.object, location.offset, *i));
        let mut runs: Vec<Run> = Vec::new();
        for (location, i) in locations {
            if !runs.last().is_some_and(|run| can_append(run, &location)) {
                runs.push(Run::default());
            }
            if let Some(run) = runs.last_mut() {
                run.locations.push(location);
                run.which.push(i);
            }
        }
        runs
    }

    async fn read_whole(&self, run: &Run) -> Result<IoBuf> {
        let Some(first) = run.locations.first() else { return Ok(IoBuf::with_capacity(0)) };
        self.read_exact(first.object, first.offset, run.len()).await
    }

    /// Reads and verifies stored blocks. Calls `each` with the index of every block and its content or an
    /// error.
    pub async fn read_blocks(&self, blocks: &[BlockRef], mut each: impl FnMut(usize, Result<&[u8; BLOCK]>)) {
        let token = self.relocation.enter();
        let runs = self.runs(&token, blocks, can_append_block, |i, e| each(i, Err(e))).await;
        for some in runs.chunks(BLOCK_READS) {
            let read = join_all(some.iter().map(|run| self.read_whole(run))).await;
            let unpacked = map(self.cx.host.workers(), some.iter().zip(read).collect(), |(run, stored)| {
                stored.map(|stored| unpack_verified(run, stored, blocks))
            });
            for (run, unpacked) in some.iter().zip(unpacked) {
                let (contents, sound) = match unpacked {
                    Ok(unpacked) => unpacked,
                    Err(e) => {
                        run.which.iter().for_each(|i| each(*i, Err(e.clone())));
                        continue;
                    }
                };
                let found = run.which.iter().zip(&run.locations).zip(contents.chunks_exact(BLOCK).zip(sound));
                for ((i, location), (content, sound)) in found {
                    match content.first_chunk() {
                        Some(content) if sound => each(*i, Ok(content)),
                        _ => {
                            self.count_damage(location.object, location.offset);
                            self.record_damaged(&blocks[*i]);
                            each(*i, Err(damage(location.object, location.offset)));
                        }
                    }
                }
            }
        }
    }

    /// Reads and verifies stored nodes. Reads are limited in size and number, so that reads of guests are not
    /// delayed much. Calls `each` with the index of every node and its bytes or an error.
    pub async fn read_nodes(&self, nodes: &[BlockRef], each: impl FnMut(usize, Result<&[u8]>)) {
        self.read_nodes_at_once(nodes, NODE_READS, each).await;
    }

    /// Works like [`StoreReader::read_nodes`], with up to `at_once` concurrent reads.
    async fn read_nodes_at_once(
        &self,
        nodes: &[BlockRef],
        at_once: usize,
        mut each: impl FnMut(usize, Result<&[u8]>),
    ) {
        let token = self.relocation.enter();
        let runs = self.runs(&token, nodes, can_append_node, |i, e| each(i, Err(e))).await;
        for some in runs.chunks(at_once) {
            let read = join_all(some.iter().map(|run| self.read_whole(run))).await;
            for (run, read) in some.iter().zip(read) {
                let begin = run.locations.first().map_or(0, |p| p.offset);
                for (i, location) in run.which.iter().zip(&run.locations) {
                    let alone;
                    let bytes = match &read {
                        Ok(all) => Ok(&all[(location.offset - begin) as usize..][..location.len]),
                        // A bad sector or the end of the object must not fail the reads of adjacent nodes.
                        Err(_) => {
                            alone = self.read_exact(location.object, location.offset, location.len).await;
                            alone.as_deref().map_err(Error::clone)
                        }
                    };
                    each(*i, bytes.and_then(|b| self.verify_node(&nodes[*i], location, b).map(|()| b)));
                }
            }
        }
    }
}

impl NodeReader {
    /// Loads those nodes that can be read into the cache, and holds them there. Returns whether any node was
    /// loaded.
    pub async fn load_and_hold(&self, needs: &[NeedNode], held: &mut Held<'_>, at_once: usize) -> bool {
        // Damaged nodes are left out: the change or read that needs such a node classifies it.
        let needs: Vec<&NeedNode> = needs.iter().filter(|need| !self.source.is_damaged(&need.at)).collect();
        let refs: Vec<BlockRef> = needs.iter().map(|need| need.at).collect();
        let mut loaded = false;
        self.source
            .read_nodes_at_once(&refs, at_once, |i, bytes| {
                let need = needs[i];
                if let Some(node) = bytes.ok().and_then(|bytes| need.accept(bytes).ok()) {
                    self.cache.insert(need.at, node.clone());
                    held.keep(need.at, &node);
                    loaded = true;
                }
            })
            .await;
        loaded
    }

    /// Reads nodes of block maps; the results are in the order of `needs`. The nodes are not inserted into
    /// the cache, where they would evict nodes that guests need.
    pub async fn read_uncached(&self, needs: &[NeedNode]) -> Vec<Result<Node>> {
        let mut nodes: Vec<Option<Result<Node>>> =
            needs.iter().map(|need| self.cache.find(*need).map(Ok)).collect();
        let missing: Vec<usize> = (0..needs.len()).filter(|i| nodes[*i].is_none()).collect();
        let refs: Vec<BlockRef> = missing.iter().map(|i| needs[*i].at).collect();
        self.source
            .read_nodes(&refs, |i, bytes| {
                let need = &needs[missing[i]];
                nodes[missing[i]] = Some(bytes.and_then(|bytes| Ok(need.accept(bytes)?)));
            })
            .await;
        nodes.into_iter().map(|node| node.expect("every node was reported")).collect()
    }
}
