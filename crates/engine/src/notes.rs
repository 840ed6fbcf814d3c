//! Notes: what the pool knows of a disk beside its contents.
//!
//! A note is a disk of its own that nobody sees, whose parent is the disk that it is about. So it is as durable,
//! checked and cleaned as all else, and this module has nothing to recover. It is written as an import is and becomes
//! a note in the same group of the log in which the one before goes: after a crash there is the old one or the new
//! one, whole. It goes with its disk.
//!
//! Notes are advice: whoever reads one has to live with none, or with one that has grown old.

use std::sync::Arc;

use forebay_format::{CatalogueOp, DiskRecord, Role, SECTOR};

use crate::pool::Pool;
use crate::volume::Volume;
use crate::{Error, Result};

/// What a note is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Note {
    /// What the first boot of an image's clones reads; see [`crate::profile`].
    Profile,
    /// The classes of its blocks; see [`crate::classes`].
    Classes,
}

/// Bytes in front of the content: its length, little-endian.
const HEADER: usize = 8;
/// Longest content.
const MAX_CONTENT: usize = 64 << 20;

impl Note {
    fn name(self) -> &'static str {
        match self {
            Note::Profile => "boot profile",
            Note::Classes => "block classes",
        }
    }

    /// Whether a disk is such a note.
    pub fn is(self, record: &DiskRecord) -> bool {
        record.role == Role::Note && record.name == self.name()
    }
}

impl Pool {
    fn note_disk(&self, of: &Volume, note: Note) -> Option<Arc<Volume>> {
        let is_it = |record: &DiskRecord| record.parent == Some(of.id()) && note.is(record);
        self.catalogue.read().iter().find(|disk| is_it(&disk.record())).cloned()
    }

    /// Reads a note; `None` where there is none.
    ///
    /// # Errors
    /// Those of a read; [`Error::Damaged`] where the note is.
    pub(crate) async fn note(&self, of: &Volume, note: Note) -> Result<Option<Vec<u8>>> {
        // So that it is not replaced, and its blocks freed, meanwhile.
        let _admin = self.admin.lock().await;
        let Some(disk) = self.note_disk(of, note) else { return Ok(None) };
        let mut header = [0; HEADER];
        self.read(&disk, 0, &mut header, 0).await?;
        let len = u64::from_le_bytes(header);
        if len > (MAX_CONTENT as u64).min(disk.size() - HEADER as u64) {
            return Err(Error::Damaged(format!("the {} of '{}'", note.name(), of.record().name)));
        }
        let mut content = vec![0; len as usize];
        self.read(&disk, HEADER as u64, &mut content, 0).await?;
        Ok(Some(content))
    }

    /// Replaces a note, durably; or removes it.
    ///
    /// # Errors
    /// [`Error::NotFound`] where the disk is gone; those of a write.
    pub(crate) async fn set_note(&self, of: &Volume, note: Note, content: Option<&[u8]>) -> Result<()> {
        let _admin = self.admin.lock().await;
        let Some(about) = self.volume(of.id()) else { return Err(Error::NotFound(of.record().name.clone())) };
        let mut ops = Vec::new();
        let before = self.note_disk(of, note);
        ops.extend(before.map(|disk| CatalogueOp::Delete { disk: disk.id() }));
        if let Some(content) = content.filter(|c| c.len() <= MAX_CONTENT) {
            let mut bytes = (content.len() as u64).to_le_bytes().to_vec();
            bytes.extend_from_slice(content);
            bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
            let written = self.write_note(&about, &bytes).await?;
            let record = DiskRecord {
                role: Role::Note,
                parent: Some(of.id()),
                name: note.name().to_owned(),
                ..(*written.record()).clone()
            };
            ops.push(CatalogueOp::Update { disk: record });
        }
        if ops.is_empty() { Ok(()) } else { self.commit_ops(ops).await }
    }

    /// Writes the disk that is to be a note.
    async fn write_note(&self, about: &Volume, bytes: &[u8]) -> Result<Arc<Volume>> {
        const PIECE: usize = 1 << 20;
        // No user can give such a name, and no two of them are the same.
        let mut record = self.new_record("note", bytes.len() as u64, Role::Import);
        record.name = format!("note/{}", record.id.0);
        record.dedup_domain = about.dedup_domain();
        let (id, name) = (record.id, record.name.clone());
        self.commit_ops(vec![CatalogueOp::Create { disk: record, from: None }]).await?;
        let volume = self.volume(id).ok_or(Error::NotFound(name))?;
        let write = async {
            for (i, piece) in bytes.chunks(PIECE).enumerate() {
                self.wait_for_room(&volume, piece.len() as u64).await?;
                self.write_sectors(&volume, (i * PIECE) as u64, piece)?;
            }
            self.flush_volume(&volume).await
        };
        if let Err(e) = write.await {
            // Where this fails as well, it goes when the pool is opened.
            let _ = self.commit_ops(vec![CatalogueOp::Delete { disk: id }]).await;
            return Err(e);
        }
        Ok(volume)
    }

    /// The changes that delete a disk with its notes.
    pub(crate) fn deletion(&self, disk: &Volume) -> Vec<CatalogueOp> {
        let catalogue = self.catalogue.read();
        let notes =
            catalogue.iter().filter(|d| d.role() == Role::Note && d.record().parent == Some(disk.id()));
        let all = notes.map(|note| note.id()).chain([disk.id()]);
        all.map(|disk| CatalogueOp::Delete { disk }).collect()
    }
}
