//! Opening the namespace, and the task that deletes the disks of removed files.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use forebay_engine::{DiskHandle, DiskId, Host, Pool};
use parking_lot::RwLock;
use tokio::sync::mpsc;

use crate::journal::{CHANGE_BLOCKS, Patch, newest};
use crate::layout::{
    BLOCK, Block, DISK_BYTES, ENTRIES, ENTRIES_PER_BLOCK, ENTRY, INODE, INODES, INODES_PER_BLOCK, REPLIES,
    REPLIES_PER_BLOCK, REPLY_BLOCKS, SUPERBLOCK, Superblock, decode_entry, decode_inode,
};
use crate::replies::{REPLY, Replies};
use crate::table::{Change, FIRST_COOKIE, ROOT, Table};
use crate::types::Kind;
use crate::{DATA, Error, Files, Result, TABLE};

/// Blocks that one read loads.
const READ_BLOCKS: usize = 256;
/// Number of removed files whose disks are deleted by one commit.
const DELETED_TOGETHER: usize = 1024;

/// The disk, with the newest record of the journal applied.
struct Loader<'a> {
    disk: &'a DiskHandle,
    patches: HashMap<u64, Vec<&'a Patch>>,
}

impl Loader<'_> {
    fn apply(&self, block: u64, content: &mut [u8]) {
        for patch in self.patches.get(&block).into_iter().flatten() {
            content[patch.at..patch.at + patch.bytes.len()].copy_from_slice(&patch.bytes);
        }
    }

    /// Passes `count` records, `per_block` of `len` bytes in each block from `first` on, to `each`.
    async fn records(
        &self,
        first: u64,
        (count, per_block, len): (usize, usize, usize),
        mut each: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let blocks = count.div_ceil(per_block);
        let mut buffer = vec![0; READ_BLOCKS * BLOCK];
        for start in (0..blocks).step_by(READ_BLOCKS) {
            let part = &mut buffer[..READ_BLOCKS.min(blocks - start) * BLOCK];
            self.disk.read((first + start as u64) * BLOCK as u64, part).await?;
            for (n, content) in part.chunks_mut(BLOCK).enumerate() {
                self.apply(first + (start + n) as u64, content);
                let index = (start + n) * per_block;
                for (at, record) in content.chunks(len).take(per_block).enumerate() {
                    if index + at < count {
                        each(index + at, record)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Files {
    /// Opens the namespace of a pool; creates it if the pool has none.
    ///
    /// # Errors
    /// [`Error::Damaged`]; the errors of the pool.
    pub async fn open(pool: Arc<Pool>) -> Result<Arc<Files>> {
        let mut disks = pool.internal_disks(TABLE);
        disks.sort_unstable();
        let disk = match disks.first() {
            Some(id) => pool.open_internal(*id)?,
            None => pool.create_internal(TABLE, DISK_BYTES, None).await?,
        };
        let now = pool.host().unix_ms().saturating_mul(1_000_000);
        let mut block: Block = [0; BLOCK];
        disk.read(SUPERBLOCK * BLOCK as u64, &mut block).await?;
        let journal = newest(&disk).await?;
        let (mut table, mut change) = match (&journal, block == [0; BLOCK]) {
            (None, true) => {
                let mut identity = [0; 8];
                pool.host().random(&mut identity);
                Table::new(u64::from_le_bytes(identity), now)
            }
            (None, false) => return Err(Error::Damaged("its journal has no valid record")),
            (Some((sequence, patches)), _) => load(&disk, *sequence, patches).await?,
        };
        let unfinished = table.orphans();
        if table.sequence == 0 || !change.inodes.is_empty() || !change.entries.is_empty() || change.superblock
        {
            let mut room = disk.admit_blocks(CHANGE_BLOCKS).await?;
            table.write(&disk, &mut room, &change)?;
            drop(room);
            disk.flush().await?;
        }
        change.orphans.clear();
        let known: HashSet<u32> = table.inodes.iter().map(|inode| inode.disk).collect();
        let is_unknown = |id: &DiskId| !known.contains(&id.0);
        let unknown: Vec<_> = pool.internal_disks(DATA).into_iter().filter(is_unknown).collect();
        let (sender, receiver) = mpsc::unbounded_channel();
        let identity = table.identity;
        let files = Arc::new(Files { pool, disk, identity, table: RwLock::new(table), orphans: sender });
        if !unknown.is_empty() {
            tracing::info!("removing {} disks of files whose creation was interrupted", unknown.len());
            files.pool.remove_internal(&unknown).await?;
        }
        for orphan in unfinished {
            // The receiver exists.
            let _ = files.orphans.send(orphan);
        }
        let task = delete_orphans(Arc::downgrade(&files), receiver);
        files.pool.host().spawn("files", Box::pin(task));
        Ok(files)
    }
}

/// Loads the namespace. Returns what the newest record of the journal has changed, to be written again.
async fn load(disk: &DiskHandle, sequence: u64, patches: &[Patch]) -> Result<(Table, Change)> {
    let mut by_block: HashMap<u64, Vec<&Patch>> = HashMap::new();
    for patch in patches {
        by_block.entry(patch.block).or_default().push(patch);
    }
    let loader = Loader { disk, patches: by_block };
    let mut block: Block = [0; BLOCK];
    disk.read(SUPERBLOCK * BLOCK as u64, &mut block).await?;
    loader.apply(SUPERBLOCK, &mut block);
    let superblock = Superblock::decode(&block).map_err(Error::Damaged)?;
    let (mut table, _) = Table::new(superblock.identity, 0);
    table.sequence = sequence;
    table.inodes.clear();
    let inodes = (superblock.inodes as usize, INODES_PER_BLOCK, INODE);
    let each = |number: usize, record: &[u8]| {
        let mut inode = decode_inode(record).map_err(Error::Damaged)?;
        if inode.kind == Some(Kind::Directory) {
            inode.dir = Some(Box::default());
        } else if inode.kind.is_none() && number > ROOT as usize {
            table.free_inodes.push(number as u32);
        }
        table.inodes.push(inode);
        Ok(())
    };
    loader.records(INODES, inodes, each).await?;
    table.used = table.inodes.iter().filter(|inode| inode.kind.is_some()).count();
    table.entries = vec![None; superblock.entries as usize];
    let entries = (superblock.entries as usize, ENTRIES_PER_BLOCK, ENTRY);
    let each = |slot: usize, record: &[u8]| {
        let Some(entry) = decode_entry(record) else {
            table.free_entries.push(slot as u32);
            return Ok(());
        };
        let child = table.inodes.get(entry.child as usize);
        let is_sound = child.is_some_and(|child| child.kind.is_some() && child.links > 0)
            && entry.cookie >= FIRST_COOKIE
            && !entry.name.is_empty();
        if !is_sound || !table.put_entry(slot as u32, entry) {
            return Err(Error::Damaged("an entry of a directory is not valid"));
        }
        Ok(())
    };
    loader.records(ENTRIES, entries, each).await?;
    let mut replies = Vec::new();
    let all = (REPLY_BLOCKS * REPLIES_PER_BLOCK, REPLIES_PER_BLOCK, REPLY);
    let each = |_: usize, record: &[u8]| {
        replies.extend(Replies::decode(record));
        Ok(())
    };
    loader.records(REPLIES, all, each).await?;
    table.replies.load(replies);
    table.check().map_err(Error::Damaged)?;
    let mut change = Change::default();
    for patch in patches {
        if patch.block >= ENTRIES {
            change.entry(((patch.block - ENTRIES) as usize * ENTRIES_PER_BLOCK + patch.at / ENTRY) as u32);
        } else if patch.block >= INODES {
            change.inode(((patch.block - INODES) as usize * INODES_PER_BLOCK + patch.at / INODE) as u32);
        } else if patch.block >= REPLIES {
            change.replies.push((patch.block - REPLIES) as usize * REPLIES_PER_BLOCK + patch.at / REPLY);
        } else {
            change.superblock = true;
        }
    }
    Ok((table, change))
}

impl Table {
    /// Files without a name.
    fn orphans(&self) -> Vec<u32> {
        let is_orphan = |number: &u32| {
            let inode = &self.inodes[*number as usize];
            inode.kind.is_some() && inode.links == 0
        };
        (1..self.inodes.len() as u32).filter(is_orphan).collect()
    }

    /// Checks that links, parents and cookies agree with the entries.
    pub(crate) fn check(&self) -> std::result::Result<(), &'static str> {
        let mut names = vec![0_u32; self.inodes.len()];
        let mut directories = vec![0_u32; self.inodes.len()];
        for entry in self.entries.iter().flatten() {
            let (child, dir) = (&self.inodes[entry.child as usize], &self.inodes[entry.dir as usize]);
            names[entry.child as usize] += 1;
            if child.kind == Some(Kind::Directory) {
                directories[entry.dir as usize] += 1;
                if child.parent != entry.dir {
                    return Err("a directory has another parent than its name");
                }
            }
            if entry.cookie >= dir.next_cookie {
                return Err("a directory can assign a cookie twice");
            }
        }
        let root = self.inodes.get(ROOT as usize);
        if root.is_none_or(|root| root.kind != Some(Kind::Directory) || root.parent != ROOT) {
            return Err("it has no root directory");
        }
        for (number, inode) in self.inodes.iter().enumerate().skip(1) {
            let links = match inode.kind {
                None => 0,
                Some(Kind::Directory) => {
                    let expected = u32::from(number != ROOT as usize);
                    if names[number] != expected {
                        return Err("a directory has several names, or none");
                    }
                    2 + directories[number]
                }
                Some(_) => names[number],
            };
            if inode.links != links {
                return Err("an object has another number of names than its inode says");
            }
        }
        Ok(())
    }
}

/// Deletes the disks of files without a name, and frees their inodes, until the namespace is closed.
async fn delete_orphans(files: Weak<Files>, mut orphans: mpsc::UnboundedReceiver<u32>) {
    let mut next = Vec::new();
    while orphans.recv_many(&mut next, DELETED_TOGETHER).await > 0 {
        let Some(files) = files.upgrade() else { return };
        let host = files.pool.host();
        while let Err(e) = files.delete(&next).await {
            if files.pool.has_stopped() || matches!(e, Error::Engine(forebay_engine::Error::Closed)) {
                return;
            }
            tracing::warn!("the data of {} removed files is not deleted yet: {e}", next.len());
            pause(&*host).await;
        }
        next.clear();
    }
}

/// A pause before another attempt.
async fn pause(host: &dyn Host) {
    host.sleep(std::time::Duration::from_secs(1)).await;
}

impl Files {
    async fn delete(&self, orphans: &[u32]) -> Result<()> {
        // The names are durably removed before the data is.
        self.flush().await?;
        let mut disks = Vec::new();
        for number in orphans {
            let open = {
                let table = self.table.read();
                let inode = &table.inodes[*number as usize];
                if inode.kind.is_none() || inode.links > 0 {
                    // An attempt before has freed the inode.
                    continue;
                }
                disks.push((*number, inode.disk));
                inode.open.clone()
            };
            // Requests that found the file before it was removed end first. No request finds it any more.
            drop(open.lock.write().await);
            drop(open.disk.lock().take());
        }
        let ids: Vec<_> =
            disks.iter().filter(|(_, disk)| *disk != 0).map(|(_, disk)| DiskId(*disk)).collect();
        self.pool.remove_internal(&ids).await?;
        for (number, _) in disks {
            let make = |table: &mut Table, change: &mut Change, _: u64| {
                table.free(number, change);
                Ok(())
            };
            self.change(make).await?;
        }
        Ok(())
    }
}
