//! The directory of a run: the request, and the parts that are done, so that a run can be continued.
//!
//! `run.json` has the request, `part-N.json` the results of target N. A part is written under another name
//! and renamed, so it is complete or absent.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::RunError;
use super::record::TargetRecord;
use crate::error::During;
use crate::scenario::Scale;

/// What the user asked to run. It is stored in `run.json`, so that an interrupted run can be continued.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Name of the scenario's file.
    pub file: String,
    /// Text of the scenario's file.
    pub text: String,
    /// The factors by which the scenario is scaled.
    pub scale: Scale,
    /// Words or URIs of targets, or their descriptions.
    pub targets: Vec<String>,
    /// The file that described the targets; `None` if none did.
    pub targets_file: Option<String>,
    /// How often each target runs.
    pub rounds: u32,
    /// Seed of all random values.
    pub seed: u64,
}

/// The directory of a run; see the module documentation.
pub(super) struct RunDirectory(PathBuf);

const REQUEST: &str = "run.json";

impl RunDirectory {
    /// Creates the directory for a new run; it must not contain another run.
    pub fn create(path: &Path, request: &Request) -> Result<RunDirectory, RunError> {
        fs::create_dir_all(path).during(|| format!("cannot create {}", path.display()))?;
        let dir = RunDirectory(path.to_owned());
        if dir.0.join(REQUEST).exists() {
            return Err(RunError::Used(path.to_owned()));
        }
        dir.write(REQUEST, request)?;
        Ok(dir)
    }

    /// Opens the directory of a run that was interrupted.
    pub fn open(path: &Path) -> Result<(RunDirectory, Request), RunError> {
        let dir = RunDirectory(path.to_owned());
        let request = dir.read(REQUEST)?.ok_or_else(|| RunError::NoRun(path.to_owned()))?;
        Ok((dir, request))
    }

    /// The results of a target, if it ran.
    pub fn part(&self, number: usize) -> Result<Option<TargetRecord>, RunError> {
        self.read(&format!("part-{number}.json"))
    }

    /// Keeps the results of a target.
    pub fn keep(&self, number: usize, record: &TargetRecord) -> Result<(), RunError> {
        self.write(&format!("part-{number}.json"), record)
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, RunError> {
        let path = self.0.join(name);
        let parsed = match fs::read(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            bytes => bytes.and_then(|bytes| serde_json::from_slice(&bytes).map_err(Into::into)),
        };
        Ok(parsed.map(Some).during(|| format!("cannot read {}", path.display()))?)
    }

    fn write<T: Serialize>(&self, name: &str, value: &T) -> Result<(), RunError> {
        let bytes = serde_json::to_vec(value).map_err(std::io::Error::from);
        Ok(write_file(&self.0.join(name), &bytes.during(|| format!("cannot write {name}"))?)?)
    }
}

/// Writes a file that is complete or absent.
pub fn write_file(path: &Path, bytes: &[u8]) -> crate::error::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let done = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if done.is_err() {
        // It may not exist.
        let _ = fs::remove_file(&temporary);
    }
    done.during(|| format!("cannot write {}", path.display()))
}
