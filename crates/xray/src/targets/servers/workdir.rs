//! The directories of servers: data on the disk to be measured, sockets in a directory with a short
//! path. Both are removed at the end.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::error::{During, Result};
use crate::rng::Rng;

/// The directories for the data, the sockets and the memory of servers.
pub struct WorkDir {
    data: PathBuf,
    sockets: PathBuf,
    memory: PathBuf,
}

impl WorkDir {
    /// Creates a directory below `parent`, one in the directory for temporary files, and one in shared
    /// memory.
    pub fn create(parent: &Path) -> Result<WorkDir> {
        // One process of tests creates several.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("forebay-bench-{}-{}", std::process::id(), MADE.fetch_add(1, Relaxed));
        // qemu-img resolves a relative path of a backing file from the directory of the qcow2 image.
        let parent = std::path::absolute(parent).during(|| format!("cannot resolve {}", parent.display()))?;
        let (data, sockets) = (parent.join(&name), std::env::temp_dir().join(&name));
        let dir = WorkDir { data, sockets, memory: Path::new("/dev/shm").join(&name) };
        for path in [&dir.data, &dir.sockets, &dir.memory] {
            fs::create_dir_all(path).during(|| format!("cannot create {}", path.display()))?;
        }
        Ok(dir)
    }

    /// A path for data.
    pub fn data(&self, name: &str) -> PathBuf {
        self.data.join(name)
    }

    /// A path for a socket.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.sockets.join(name)
    }

    /// The directory for retained memory of servers, which are killed.
    pub fn memory(&self) -> &Path {
        &self.memory
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // Directories that cannot be removed are left.
        let _ = fs::remove_dir_all(&self.data);
        let _ = fs::remove_dir_all(&self.sockets);
        let _ = fs::remove_dir_all(&self.memory);
    }
}

/// Writes a raw image of `size` random bytes, which is then in the page cache and on the disk.
pub fn random_image(path: &Path, size: u64) -> Result<()> {
    let what = || format!("cannot write {}", path.display());
    let mut file = File::create(path).during(what)?;
    let mut rng = Rng::new(size);
    let mut chunk = vec![0; 1 << 20];
    for _ in 0..size.div_ceil(chunk.len() as u64) {
        rng.fill(&mut chunk);
        file.write_all(&chunk).during(what)?;
    }
    file.sync_all().during(what)
}

/// Writes a sparse raw image of `size` bytes with a MiB of random data at every `each` bytes.
pub fn sparse_image(path: &Path, size: u64, each: u64) -> Result<()> {
    let what = || format!("cannot write {}", path.display());
    let file = File::create(path).during(what)?;
    file.set_len(size).during(what)?;
    let mut rng = Rng::new(size);
    let mut chunk = vec![0; 1 << 20];
    for at in (0..size.saturating_sub(chunk.len() as u64)).step_by(each as usize) {
        rng.fill(&mut chunk);
        file.write_all_at(&chunk, at).during(what)?;
    }
    file.sync_all().during(what)
}
