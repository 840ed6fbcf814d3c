//! Cloning files: the copy shares all blocks with the file.

use crate::names::Created;
use crate::table::{Change, Inode, Table};
use crate::types::{Caller, FileId, Kind, SetAttributes};
use crate::{Create, DATA, Error, FILE_MAX, Files, Result};

impl Files {
    /// Creates a file with the contents that another file has now, durably. Unstable writes that were
    /// answered before are included.
    ///
    /// # Errors
    /// The errors of [`Files::create`] and of a commit.
    pub async fn clone_file(
        &self,
        from: FileId,
        dir: FileId,
        name: &[u8],
        caller: &Caller,
    ) -> Result<Created> {
        let reading = self.read(from, caller).await?;
        let source = reading.attributes;
        let set = SetAttributes { mode: Some(source.mode), ..SetAttributes::default() };
        let is_inline = self.table.read().get(from)?.disk == 0;
        if is_inline {
            let (disk, at) = reading.place(0);
            let mut data = vec![0; source.size as usize];
            disk.read(at, &mut data).await?;
            let created = self.create(dir, name, Create::Guarded, &set, (caller, None)).await?;
            self.write(created.object.id, 0, &data, true, caller).await?;
            return Ok(Created { object: self.attributes(created.object.id)?, ..created });
        }
        let disk = self.pool.create_internal(DATA, FILE_MAX, Some(reading.place(0).0)).await?;
        let created = self.create(dir, name, Create::Guarded, &set, (caller, None)).await;
        let made = match created {
            Ok(created) => {
                let id = created.object.id;
                let open = self.table.read().get(id).map(|inode| inode.open.clone());
                // The new file has a name already, so its lock is needed.
                let _exclusive = match open {
                    Ok(open) => Some(open.lock.clone().write_owned().await),
                    Err(_) => None,
                };
                let make = |table: &mut Table, change: &mut Change, now: u64| {
                    let inode: &mut Inode = table.get_mut(id)?;
                    if inode.kind != Some(Kind::File) || inode.disk != 0 || inode.size != 0 {
                        return Err(Error::Exists);
                    }
                    inode.disk = disk.id().0;
                    inode.size = source.size;
                    *inode.open.disk.lock() = Some(disk.clone());
                    table.modify(id.number, now, change);
                    Ok(Created { object: table.attributes(id.number), ..created })
                };
                self.change_durably(make).await
            }
            Err(e) => Err(e),
        };
        if made.is_err() {
            let _ = self.pool.remove_internal(&[disk.id()]).await;
        }
        made
    }
}
