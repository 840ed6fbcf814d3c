//! Reports: of a run of a scenario as HTML, JSON and CSV, with the comparison of two runs; and of a
//! benchmark, with its promises, as tables and JSON.

mod bench;
mod chart;
mod compare;
mod csv;
mod html;
mod rows;
mod table;
mod tables;

use std::path::{Path, PathBuf};

pub(crate) use bench::Begun;
pub use bench::{BenchReport, Details};
pub use compare::{CompareError, Comparison, compare};
pub use csv::csv;
pub use html::html;
#[cfg(test)]
pub(crate) use rows::table;
pub use rows::{Bound, Row, Unit, Verdict};
pub(crate) use rows::{median, thousands};
#[cfg(test)]
pub(crate) use table::assert_fits;
pub(crate) use table::{Cell, Table, right};

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
