//! Reads the checkpoint that a superblock references.

use std::collections::BTreeMap;

use forebay_format::{
    BlobRef, CheckpointRoot, DirectoryRef, DiskRecord, FormatError, PageLevel, SegmentRecord, Superblock,
    Table, decode_directory, decode_page,
};

use crate::Result;
use crate::read::StoreReader;
use crate::tables::{Contents, PagedTable, StoredTables};

fn invalid(field: &'static str) -> FormatError {
    FormatError::Value { what: "checkpoint", field }
}

/// Reads the checkpoint that a superblock references: its contents, and where its pages are. Both are empty
/// for a new pool.
///
/// # Errors
/// The errors of the store; [`crate::Error::Damaged`] and [`crate::Error::Format`] if a piece or a page is
/// damaged.
pub(super) async fn read_checkpoint(
    source: &StoreReader,
    superblock: &Superblock,
) -> Result<(Contents, StoredTables)> {
    if superblock.blobs.is_empty() {
        return Ok(Default::default());
    }
    let mut pieces = vec![Vec::new(); superblock.blobs.len()];
    source
        .read_pieces(&superblock.blobs, |i, piece| {
            pieces[i] = piece.to_vec();
            Ok(())
        })
        .await?;
    let root = CheckpointRoot::decode(&pieces.concat())?;
    if root.seq != superblock.seq {
        return Err(FormatError::Foreign { what: "checkpoint", field: "seq" }.into());
    }
    read_tables(source, root).await
}

/// Reads all pages of the tables. Tables that this release does not know are left out.
async fn read_tables(source: &StoreReader, root: CheckpointRoot) -> Result<(Contents, StoredTables)> {
    let CheckpointRoot { next_disk, next_segment, directories, warm, sampling, .. } = root;
    let mut contents = Contents { next_disk, next_segment, warm, sampling, ..Contents::default() };
    let segments = read_table(source, Table::SEGMENTS, &directories, |key, bytes| {
        let record = SegmentRecord::decode(bytes)?;
        if record.segment.0 != key || key >= next_segment {
            return Err(invalid("segment"));
        }
        contents.segments.insert(record);
        Ok(())
    })
    .await?;
    let mut found = BTreeMap::new();
    let disks = read_table(source, Table::DISKS, &directories, |key, mut bytes| {
        let record = DiskRecord::decode(&mut bytes)?;
        if record.id.0 != key || key >= next_disk || !bytes.is_empty() {
            return Err(invalid("disk"));
        }
        found.insert(key, record);
        Ok(())
    })
    .await?;
    contents.disks = found.into_values().collect();
    let tables = StoredTables::read([segments, disks], &contents).await;
    Ok((contents, tables))
}

/// Reads the pages of a table, and calls `each` with every key and record, page by page in any order.
async fn read_table(
    source: &StoreReader,
    table: Table,
    directories: &[DirectoryRef],
    mut each: impl FnMut(u32, &[u8]) -> forebay_format::Result<()>,
) -> Result<PagedTable> {
    let listed = directories.iter().filter(|d| d.table == table.id);
    let listed: Vec<(u32, BlobRef)> = listed.map(|d| (d.number, d.at)).collect();
    let at: Vec<BlobRef> = listed.iter().map(|(_, at)| *at).collect();
    let mut pages: BTreeMap<u32, BlobRef> = BTreeMap::new();
    source
        .read_pieces(&at, |i, bytes| {
            pages.extend(decode_directory(bytes, table, listed[i].0)?);
            Ok(())
        })
        .await?;
    let numbers: Vec<u32> = pages.keys().copied().collect();
    let at: Vec<BlobRef> = pages.values().copied().collect();
    source
        .read_pieces(&at, |i, bytes| {
            for (key, record) in decode_page(bytes, table, PageLevel::Records, numbers[i])? {
                each(key, record)?;
            }
            Ok(())
        })
        .await?;
    Ok(PagedTable::stored(table, listed.into_iter().collect(), pages))
}
