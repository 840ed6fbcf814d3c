//! Notes: what the pool knows of a disk beside its contents, and *documents*: what it keeps for its server, of no
//! disk.
//!
//! A note is a disk of its own that nobody sees, whose parent is the disk that it is about; a document is one without a
//! parent. So it is as durable, checked and cleaned as all else, and this module has nothing to recover. It is written
//! as an import is and becomes a note in the same group of the log in which the one before goes: after a crash there is
//! the old one or the new one, whole. It goes with its disk; it stays when that gets other contents, and no clone has
//! it.
//!
//! What the engine itself notes is advice: it can live with none, or with one that has grown old. What front ends give
//! it to keep, reservations and documents, it does not interpret.

use std::sync::Arc;

use forebay_format::{CatalogueOp, DiskId, DiskRecord, Role, SECTOR};

use crate::catalogue::{check_name, shorten};
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
    /// Persistent reservations, for a front end.
    Reservations,
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
            Note::Reservations => "reservations",
        }
    }

    /// Whether a disk is such a note.
    pub fn is(self, record: &DiskRecord) -> bool {
        record.role == Role::Note && record.name == self.name()
    }
}

impl Pool {
    /// Reads a note; `None` where there is none.
    ///
    /// # Errors
    /// Those of a read; [`Error::Damaged`] where the note is.
    pub(crate) async fn note(&self, of: &Volume, note: Note) -> Result<Option<Vec<u8>>> {
        self.read_note(Some(of.id()), note.name()).await
    }

    /// Replaces a note, durably; or removes it.
    ///
    /// # Errors
    /// [`Error::NotFound`] where the disk is gone; [`Error::BadSize`] beyond 64 MiB; those of a write.
    pub(crate) async fn set_note(&self, of: &Volume, note: Note, content: Option<&[u8]>) -> Result<()> {
        self.replace_note(Some(of), note.name(), content).await
    }

    /// The persistent reservations that a front end keeps with a disk, read without opening it; `None` where there are
    /// none.
    ///
    /// # Errors
    /// [`Error::NotFound`]; those of a read; [`Error::Damaged`] where they are.
    pub async fn reservations(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let disk = self.catalogue.read().find(name)?;
        self.note(&disk, Note::Reservations).await
    }

    /// Replaces them, durably, or removes them. For a disk that no front end has open.
    ///
    /// # Errors
    /// [`Error::NotFound`]; those of a write.
    pub async fn set_reservations(&self, name: &str, content: Option<&[u8]>) -> Result<()> {
        let disk = self.catalogue.read().find(name)?;
        self.set_note(&disk, Note::Reservations, content).await
    }

    /// Reads a document of the pool; `None` where there is none of this name.
    ///
    /// # Errors
    /// Those of a read; [`Error::Damaged`] where the document is.
    pub async fn document(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.read_note(None, name).await
    }

    /// Replaces a document of the pool, durably, or removes it: after a crash there is the old one or the new one.
    /// Names are as those of disks, which they have nothing to do with.
    ///
    /// # Errors
    /// [`Error::BadName`]; [`Error::BadSize`] beyond 64 MiB; those of a write.
    pub async fn set_document(&self, name: &str, content: Option<&[u8]>) -> Result<()> {
        check_name(name)?;
        self.replace_note(None, name, content).await
    }

    fn note_disk(&self, of: Option<DiskId>, name: &str) -> Option<Arc<Volume>> {
        let is_it = |r: &DiskRecord| r.role == Role::Note && r.parent == of && r.name == name;
        self.catalogue.read().iter().find(|disk| is_it(&disk.record())).cloned()
    }

    async fn read_note(&self, of: Option<DiskId>, name: &str) -> Result<Option<Vec<u8>>> {
        // So that it is not replaced, and its blocks freed, meanwhile.
        let _admin = self.admin.lock().await;
        let Some(disk) = self.note_disk(of, name) else { return Ok(None) };
        let mut header = [0; HEADER];
        self.read(&disk, 0, &mut header, 0).await?;
        let len = u64::from_le_bytes(header);
        if len > (MAX_CONTENT as u64).min(disk.size().saturating_sub(HEADER as u64)) {
            let of = of.and_then(|of| self.volume(of)).map(|of| format!(" of '{}'", of.record().name));
            return Err(Error::Damaged(format!("the {name}{}", of.unwrap_or_default())));
        }
        let mut content = vec![0; len as usize];
        self.read(&disk, HEADER as u64, &mut content, 0).await?;
        Ok(Some(content))
    }

    async fn replace_note(&self, of: Option<&Volume>, name: &str, content: Option<&[u8]>) -> Result<()> {
        if let Some(len) = content.map(<[u8]>::len).filter(|len| *len > MAX_CONTENT) {
            return Err(Error::BadSize { size: len as u64, why: "notes and documents are at most 64 MiB" });
        }
        let _admin = self.admin.lock().await;
        if let Some(of) = of.filter(|of| self.volume(of.id()).is_none()) {
            return Err(Error::NotFound(shorten(&of.record().name)));
        }
        let parent = of.map(Volume::id);
        let mut ops = Vec::new();
        let before = self.note_disk(parent, name);
        ops.extend(before.map(|disk| CatalogueOp::Delete { disk: disk.id() }));
        if let Some(content) = content {
            let mut bytes = (content.len() as u64).to_le_bytes().to_vec();
            bytes.extend_from_slice(content);
            bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
            let written = self.write_note(of.map_or(0, Volume::dedup_domain), &bytes).await?;
            let record =
                DiskRecord { role: Role::Note, parent, name: name.to_owned(), ..(*written.record()).clone() };
            ops.push(CatalogueOp::Update { disk: record });
        }
        if ops.is_empty() { Ok(()) } else { self.commit_ops(ops).await }
    }

    /// Writes the disk that is to be a note.
    async fn write_note(&self, dedup_domain: u32, bytes: &[u8]) -> Result<Arc<Volume>> {
        const PIECE: usize = 1 << 20;
        // No user can give such a name, and no two of them are the same.
        let mut record = self.new_record("note", bytes.len() as u64, Role::Import);
        record.name = format!("note/{}", record.id.0);
        record.dedup_domain = dedup_domain;
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
