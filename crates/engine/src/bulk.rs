//! Reading much at once, past the caches: what rests together comes with one store read. For the mark, the
//! cleaner and the check, which have all references at hand before they need the first.

use forebay_format::{BLOCK, BlockRef, crc32c};
use forebay_store::IoBuf;
use futures_util::future::join_all;

use crate::fetch::{damage, extends, plain};
use crate::limits::{NODE_GAP, NODE_READ_BYTES, NODE_READS};
use crate::map::{Held, NeedNode, Node};
use crate::places::{Located, View};
use crate::pool::Pool;
use crate::{Error, Result};

/// What one store read serves, in the order in which it rests.
#[derive(Default)]
struct Run {
    places: Vec<Located>,
    /// Which of those that were asked for rest at these places.
    which: Vec<usize>,
}

impl Run {
    /// Bytes from the first place to the end of the last.
    fn len(&self) -> usize {
        let begin = self.places.first().map_or(0, |p| p.offset);
        let end = self.places.iter().map(|p| p.offset + p.len as u64).max().unwrap_or(begin);
        (end - begin) as usize
    }
}

/// Whether a run of nodes can take another. Dead nodes in between are read along: to leave them out would cost one more
/// operation.
fn takes_node(run: &Run, next: &Located) -> bool {
    run.places.first().zip(run.places.last()).is_some_and(|(first, last)| {
        next.object == last.object
            && next.offset <= last.offset + last.len as u64 + NODE_GAP
            && next.offset + next.len as u64 <= first.offset + NODE_READ_BYTES
    })
}

impl Pool {
    /// Looks up where everything rests, and puts together what `takes` says that one read can serve. `failed` is
    /// told of what rests nowhere.
    async fn runs(
        &self,
        view: &View,
        wanted: &[BlockRef],
        takes: fn(&Run, &Located) -> bool,
        mut failed: impl FnMut(usize, Error),
    ) -> Vec<Run> {
        let mut places = Vec::with_capacity(wanted.len());
        for (i, at) in wanted.iter().enumerate() {
            match self.locate(view, at).await {
                Ok(place) => places.push((place, i)),
                Err(e) => failed(i, e),
            }
        }
        places.sort_unstable_by_key(|(place, i)| (place.object, place.offset, *i));
        let mut runs: Vec<Run> = Vec::new();
        for (place, i) in places {
            if !runs.last().is_some_and(|run| takes(run, &place)) {
                runs.push(Run::default());
            }
            if let Some(run) = runs.last_mut() {
                run.places.push(place);
                run.which.push(i);
            }
        }
        runs
    }

    async fn read_whole(&self, run: &Run) -> Result<IoBuf> {
        let Some(first) = run.places.first() else { return Ok(IoBuf::with_capacity(0)) };
        self.read_exact(first.object, first.offset, run.len()).await
    }

    /// Reads stored blocks, verified. `each` is given the index of every block, with its content or what is wrong
    /// with it.
    pub(crate) async fn read_blocks(
        &self,
        blocks: &[BlockRef],
        mut each: impl FnMut(usize, Result<&[u8; BLOCK]>),
    ) {
        let view = self.places.view();
        let takes = |run: &Run, next: &Located| extends(&run.places, next);
        for run in self.runs(&view, blocks, takes, |i, e| each(i, Err(e))).await {
            let stored = match self.read_whole(&run).await {
                Ok(stored) => stored,
                Err(e) => {
                    run.which.iter().for_each(|i| each(*i, Err(e.clone())));
                    continue;
                }
            };
            let (plain, sound) = plain(&run.places, stored);
            let found = run.which.iter().zip(&run.places).zip(plain.chunks_exact(BLOCK).zip(sound));
            for ((i, place), (content, sound)) in found {
                match content.first_chunk() {
                    Some(content) if sound && crc32c(content) == blocks[*i].crc => each(*i, Ok(content)),
                    _ => {
                        self.count_damage(place.object, place.offset);
                        each(*i, Err(damage(place.object, place.offset)));
                    }
                }
            }
        }
    }

    /// Reads stored nodes, verified: bounded bytes in a read and a few reads at once, so that what guests read
    /// waits behind little. `each` is given the index of every node, with its bytes or what is wrong with it.
    pub(crate) async fn read_nodes(&self, nodes: &[BlockRef], each: impl FnMut(usize, Result<&[u8]>)) {
        self.read_nodes_at_once(nodes, NODE_READS, each).await;
    }

    /// As [`Pool::read_nodes`], with `at_once` reads at a time.
    async fn read_nodes_at_once(
        &self,
        nodes: &[BlockRef],
        at_once: usize,
        mut each: impl FnMut(usize, Result<&[u8]>),
    ) {
        let view = self.places.view();
        let runs = self.runs(&view, nodes, takes_node, |i, e| each(i, Err(e))).await;
        for some in runs.chunks(at_once) {
            let read = join_all(some.iter().map(|run| self.read_whole(run))).await;
            for (run, read) in some.iter().zip(read) {
                let begin = run.places.first().map_or(0, |p| p.offset);
                for (i, place) in run.which.iter().zip(&run.places) {
                    let alone;
                    let bytes = match &read {
                        Ok(all) => Ok(&all[(place.offset - begin) as usize..][..place.len]),
                        // One bad sector, or the end of an object, must not cost its neighbours.
                        Err(_) => {
                            alone = self.read_exact(place.object, place.offset, place.len).await;
                            alone.as_deref().map_err(Error::clone)
                        }
                    };
                    each(*i, bytes.and_then(|b| self.verify_node(&nodes[*i], place, b).map(|()| b)));
                }
            }
        }
    }

    /// Brings nodes into the cache and keeps them there, as far as they can be read. Whether that was any.
    pub(crate) async fn load_and_hold(
        &self,
        needs: &[NeedNode],
        held: &mut Held<'_>,
        at_once: usize,
    ) -> bool {
        // What is known to be damaged is judged by the one that needs it.
        let needs: Vec<&NeedNode> = needs.iter().filter(|need| !self.is_damaged(&need.at)).collect();
        let refs: Vec<BlockRef> = needs.iter().map(|need| need.at).collect();
        let mut loaded = false;
        self.read_nodes_at_once(&refs, at_once, |i, bytes| {
            let need = needs[i];
            if let Some(node) = bytes.ok().and_then(|bytes| need.accept(bytes).ok()) {
                self.nodes.insert(need.at, node.clone());
                held.keep(need.at, &node);
                loaded = true;
            }
        })
        .await;
        loaded
    }

    /// The nodes of block maps that are needed, in the same order. What is read does not go into the cache, where
    /// it would take the place of what guests need.
    pub(crate) async fn pass_nodes(&self, needs: &[NeedNode]) -> Vec<Result<Node>> {
        let mut nodes: Vec<Option<Result<Node>>> =
            needs.iter().map(|need| self.nodes.find(*need).map(Ok)).collect();
        let missing: Vec<usize> = (0..needs.len()).filter(|i| nodes[*i].is_none()).collect();
        let refs: Vec<BlockRef> = missing.iter().map(|i| needs[*i].at).collect();
        self.read_nodes(&refs, |i, bytes| {
            let need = &needs[missing[i]];
            nodes[missing[i]] = Some(bytes.and_then(|bytes| Ok(need.accept(bytes)?)));
        })
        .await;
        nodes.into_iter().map(|node| node.expect("each is told of")).collect()
    }
}
