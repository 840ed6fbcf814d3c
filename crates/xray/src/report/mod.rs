//! The report of a run: HTML, JSON and CSV, and the comparison of two runs.

mod chart;
mod compare;
mod csv;
mod html;
mod tables;

use std::path::{Path, PathBuf};

pub use compare::{CompareError, Comparison, compare};
pub use csv::csv;
pub use html::html;

use crate::run::record::RunRecord;
use crate::run::{RunError, write_file};

/// Writes all files of a report into a directory. Returns the path of the page.
pub fn write(dir: &Path, run: &RunRecord) -> Result<PathBuf, RunError> {
    let json = dir.join("report.json");
    let bytes = serde_json::to_vec_pretty(run);
    let bytes =
        bytes.map_err(|e| RunError::Io { what: "cannot write", path: json.clone(), source: e.into() })?;
    write_file(&json, &bytes)?;
    write_file(&dir.join("report.csv"), csv(run).as_bytes())?;
    let page = dir.join("report.html");
    write_file(&page, html(run).as_bytes())?;
    Ok(page)
}
