//! Metadata of disks, and *documents*: data that the pool stores for its server and that belongs to no disk.
//!
//! Metadata is stored in a hidden disk ([`Role::Metadata`]) whose parent is the disk that it describes; a
//! document is a hidden disk without a parent. So both are as durable, verified and cleaned as other data,
//! and this module has nothing to recover. A hidden disk is written like an import. It becomes valid in the
//! same group of the log in which the previous version is deleted: after a crash either the old or the new
//! version exists, complete. Metadata is deleted with its disk. It stays when its disk gets other contents,
//! and clones do not inherit it.
//!
//! The engine's own metadata is advice: the engine works without it, and with an outdated version. It does
//! not interpret the reservations and documents that it stores for front ends.

use std::sync::Arc;

use forebay_format::{CatalogueOp, DiskId, DiskRecord, Role, SECTOR};

use super::editor::CatalogueEditor;
use super::kind::DiskMetadata;
use crate::catalogue::{Relation, check_name, disk_by_id};
use crate::commit::{Answer, Intake};
use crate::disk::Disk;
use crate::read::Reader;
use crate::text::shorten;
use crate::{Error, Result};

/// Bytes before the content of a hidden disk, which hold the length of the content, little-endian.
const HEADER: usize = 8;
/// Maximum length of the content of a hidden disk.
const MAX_CONTENT: usize = 64 << 20;

/// Reads and replaces the metadata of disks, and the documents of the pool.
pub(crate) struct Metadata {
    pub editor: Arc<CatalogueEditor>,
    pub intake: Arc<Intake>,
    pub reader: Arc<Reader>,
}

impl Metadata {
    /// Reads metadata of a disk; `None` if it has none of this kind.
    ///
    /// # Errors
    /// The errors of a read; [`Error::Damaged`] if the length is invalid.
    pub(crate) async fn get(&self, of: &Disk, kind: DiskMetadata) -> Result<Option<Vec<u8>>> {
        self.read(Some(of.id()), kind.name()).await
    }

    /// Replaces metadata of a disk, durably; `None` removes it.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the disk was deleted; [`Error::BadSize`] above 64 MiB; the errors of a write.
    pub(crate) async fn set(&self, of: &Disk, kind: DiskMetadata, content: Option<&[u8]>) -> Result<()> {
        self.replace(Some(of), kind.name(), content).await
    }

    /// The persistent reservations that a front end stores with a disk, read without opening it; `None` if
    /// there are no reservations.
    ///
    /// # Errors
    /// [`Error::NotFound`]; the errors of [`Metadata::get`].
    pub async fn reservations(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let disk = self.editor.catalogue.read().find(name)?;
        self.get(&disk, DiskMetadata::Reservations).await
    }

    /// Replaces the persistent reservations of a disk that no front end has open, durably; `None` removes
    /// them.
    ///
    /// # Errors
    /// [`Error::NotFound`]; the errors of a write.
    pub async fn set_reservations(&self, name: &str, content: Option<&[u8]>) -> Result<()> {
        let disk = self.editor.catalogue.read().find(name)?;
        self.set(&disk, DiskMetadata::Reservations, content).await
    }

    /// Reads a document of the pool; `None` if no document has this name.
    ///
    /// # Errors
    /// The errors of [`Metadata::get`].
    pub async fn document(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.read(None, name).await
    }

    /// Replaces a document of the pool, durably, or removes it: after a crash it is the old one or the new
    /// one. Document names follow the rules of disk names, and are separate from them.
    ///
    /// # Errors
    /// [`Error::BadName`]; [`Error::BadSize`] above 64 MiB; the errors of a write.
    pub async fn set_document(&self, name: &str, content: Option<&[u8]>) -> Result<()> {
        check_name(name)?;
        self.replace(None, name, content).await
    }

    /// The hidden disk with this name; `of` is its parent.
    fn hidden_disk(&self, of: Option<DiskId>, name: &str) -> Option<Arc<Disk>> {
        let catalogue = self.editor.catalogue.read();
        catalogue.related(of, Relation::Metadata).find(|disk| disk.record().name == name).cloned()
    }

    async fn read(&self, of: Option<DiskId>, name: &str) -> Result<Option<Vec<u8>>> {
        // The lock prevents that the hidden disk is replaced and its blocks are freed during the read.
        let _admin = self.editor.lock.lock().await;
        let Some(disk) = self.hidden_disk(of, name) else { return Ok(None) };
        let mut header = [0; HEADER];
        self.reader.read(&disk, 0, &mut header, 0).await?;
        let len = u64::from_le_bytes(header);
        if len > (MAX_CONTENT as u64).min(disk.size().saturating_sub(HEADER as u64)) {
            let of = of
                .and_then(|of| disk_by_id(&self.editor.catalogue, of))
                .map(|of| format!(" of '{}'", of.record().name));
            return Err(Error::Damaged(format!("the {name}{}", of.unwrap_or_default())));
        }
        let mut content = vec![0; len as usize];
        self.reader.read(&disk, HEADER as u64, &mut content, 0).await?;
        Ok(Some(content))
    }

    async fn replace(&self, of: Option<&Disk>, name: &str, content: Option<&[u8]>) -> Result<()> {
        if let Some(len) = content.map(<[u8]>::len).filter(|len| *len > MAX_CONTENT) {
            return Err(Error::BadSize {
                size: len as u64,
                why: "metadata and documents are limited to 64 MiB",
            });
        }
        let _admin = self.editor.lock.lock().await;
        if let Some(of) = of.filter(|of| disk_by_id(&self.editor.catalogue, of.id()).is_none()) {
            return Err(Error::NotFound(shorten(&of.record().name)));
        }
        let parent = of.map(Disk::id);
        let (mut ops, mut new) = (Vec::new(), None);
        let previous = self.hidden_disk(parent, name);
        ops.extend(previous.map(|disk| CatalogueOp::Delete { disk: disk.id() }));
        if let Some(content) = content {
            let mut bytes = (content.len() as u64).to_le_bytes().to_vec();
            bytes.extend_from_slice(content);
            bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
            let written = self.write(of.map_or(0, Disk::dedup_domain), &bytes).await?;
            let record = DiskRecord {
                role: Role::Metadata,
                parent,
                name: name.to_owned(),
                ..(*written.record()).clone()
            };
            new = Some(record.id);
            ops.push(CatalogueOp::Update { disk: record });
        }
        if ops.is_empty() {
            return Ok(());
        }
        let replaced = self.intake.commit_ops(ops).await;
        if let (Err(_), Some(disk)) = (&replaced, new) {
            self.discard(disk).await;
        }
        replaced
    }

    /// Deletes a disk that did not become a hidden disk. If this fails as well, it is deleted the next time
    /// the pool is opened.
    async fn discard(&self, disk: DiskId) {
        let _ = self.intake.commit_ops(vec![CatalogueOp::Delete { disk }]).await;
    }

    /// Writes a disk that is to become a hidden disk.
    async fn write(&self, dedup_domain: u32, bytes: &[u8]) -> Result<Arc<Disk>> {
        const PIECE: usize = 1 << 20;
        // This name is not valid for users' disks, and the id makes it unique.
        let mut record = self.editor.new_record("note", bytes.len() as u64, Role::Import);
        record.name = format!("note/{}", record.id.0);
        record.dedup_domain = dedup_domain;
        let (id, name) = (record.id, record.name.clone());
        self.intake.commit_ops(vec![CatalogueOp::Create { disk: record, from: None }]).await?;
        let disk = disk_by_id(&self.editor.catalogue, id).ok_or(Error::NotFound(name))?;
        let write = async {
            for (i, piece) in bytes.chunks(PIECE).enumerate() {
                let mut room = self.intake.admit(&disk, piece.len() as u64).await?;
                room.spend(piece.len() as u64);
                let at = (i * PIECE) as u64;
                self.intake.write_sectors(&disk, at, piece, &mut room.room, Answer::Later)?;
            }
            self.intake.flush_disk(&disk).await
        };
        if let Err(e) = write.await {
            self.discard(id).await;
            return Err(e);
        }
        Ok(disk)
    }
}
