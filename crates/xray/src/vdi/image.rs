//! The golden image: a raw file with data in the cells that have data, and holes elsewhere.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::content::{BLOCK, Content, Origin};
use super::shape::{CELL, Shape};
use crate::error::{During, Result};

/// Writes the image file.
pub fn write(path: &Path, shape: &Shape, content: &Content) -> Result<()> {
    let what = || format!("cannot write {}", path.display());
    let file = File::create(path).during(what)?;
    file.set_len(u64::from(shape.blocks) * BLOCK as u64).during(what)?;
    let mut data = vec![0; CELL as usize * BLOCK];
    for cell in &shape.data {
        let first = cell * CELL;
        for (block, out) in (first..).zip(data.chunks_exact_mut(BLOCK)) {
            content.fill(Origin::Image(block), out);
        }
        file.write_all_at(&data, u64::from(first) * BLOCK as u64).during(what)?;
    }
    file.sync_all().during(what)
}
