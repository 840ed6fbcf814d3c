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

use crate::error::{During, Result};
use crate::run::record::RunRecord;
use crate::run::write_file;

/// Writes all files of a report into a directory. Returns the path of the page.
pub fn write(dir: &Path, run: &RunRecord) -> Result<PathBuf> {
    let json = serde_json::to_vec_pretty(run).map_err(std::io::Error::from);
    let json = json.during(|| "cannot write the report".to_owned())?;
    let page = dir.join("report.html");
    write_file(&dir.join("report.json"), &json)?;
    write_file(&dir.join("report.csv"), csv(run).as_bytes())?;
    write_file(&page, html(run).as_bytes())?;
    Ok(page)
}
