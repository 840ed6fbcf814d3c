//! Running a scenario on targets, one after the other.
//!
//! `prepare` creates and fills disks; `phase` runs the loads of a phase in threads that `drive` a `stream`
//! for each disk, while `events` happen and `sample` watches processes; `series` counts over time; `disk`
//! and `unflushed` know what a block has to contain; `verdict` judges; `directory` keeps what is done.

mod clock;
mod connect;
mod directory;
mod disk;
mod drive;
mod events;
mod phase;
mod prepare;
mod progress;
pub mod record;
mod sample;
mod series;
mod stream;
mod unflushed;
mod verdict;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

pub use directory::{Request, write_file};
pub use verdict::band;

use crate::error::Error;
use crate::files;
use crate::machine::Machine;
use crate::scenario::{self, Action, Scaled, Scenario, ScenarioError};
use crate::targets::{SpecError, Surroundings, System, TargetError, TargetSpec, parse_file};
use crate::vdi::content::Content;
use crate::vdi::desk::Family;
use crate::vdi::shape::Shape;
use directory::RunDirectory;
use phase::Stage;
use progress::Progress;
use record::{FORMAT, RunRecord, State, TargetRecord};

/// Bytes of real data from which an image of desktops is made.
const ARENA: usize = 16 << 20;

/// Options that do not change the results.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory of the run.
    pub dir: PathBuf,
    /// What targets need to start; data of servers is below the parent directory.
    pub around: Surroundings,
    /// No progress is printed.
    pub quiet: bool,
}

/// Whether the user interrupted.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Relaxed)
}

/// Ends runs in order at SIGINT and SIGTERM, with what was measured so far; the second signal ends at once.
pub fn handle_interrupts() {
    extern "C" fn note(signal: i32) {
        if INTERRUPTED.swap(true, Relaxed) {
            // SAFETY: both calls are async-signal-safe; the default action of the signal ends the process.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
    }
    let handler: extern "C" fn(i32) = note;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only uses an atomic and async-signal-safe calls.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// Allows as many descriptors as the system does: a fleet has a connection for each disk and load.
pub fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls only access the structure.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// Why a run ended without a report.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The scenario is wrong.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The scenario is wrong at this scale.
    #[error("{0}")]
    Scale(String),
    /// A target is wrong.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A target cannot be used.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A disk cannot be filled.
    #[error("cannot fill {disk}: {error}")]
    Prepare {
        /// Name of the disk.
        disk: String,
        /// Why the disk cannot be filled.
        error: String,
    },
    /// A file of the run.
    #[error(transparent)]
    File(#[from] Error),
    /// The directory contains a run.
    #[error("{} contains a run: continue it with --resume, or use another directory", .0.display())]
    Used(PathBuf),
    /// The directory contains no run.
    #[error("{} contains no run", .0.display())]
    NoRun(PathBuf),
    /// The user interrupted the run.
    #[error("interrupted")]
    Interrupted,
}

/// Starts a new run.
pub fn start(request: &Request, options: &Options) -> Result<RunRecord, RunError> {
    let plan = Plan::of(request)?;
    let dir = RunDirectory::create(&options.dir, request)?;
    plan.run(request, options, &dir)
}

/// Continues a run: targets that are complete are not run again.
pub fn resume(options: &Options) -> Result<RunRecord, RunError> {
    let (dir, request) = RunDirectory::open(&options.dir)?;
    Plan::of(&request)?.run(&request, options, &dir)
}

/// A request that was checked.
struct Plan {
    scaled: Scaled,
    /// The targets in the order in which they run, rounds included.
    targets: Vec<TargetSpec>,
}

impl Plan {
    fn of(request: &Request) -> Result<Plan, RunError> {
        let scenario = scenario::parse(&request.file, &request.text)?;
        let scaled = request.scale.apply(scenario).map_err(RunError::Scale)?;
        let mut specs = match &request.targets_file {
            Some(text) => parse_file("targets", text)?,
            None => Vec::new(),
        };
        for word in &request.targets {
            specs.push(word.parse()?);
        }
        let mut targets = Vec::new();
        for round in 0..request.rounds.max(1) {
            let mut turn = specs.clone();
            // A B, then B A: a machine that becomes slower does not always meet the same target.
            if round % 2 == 1 {
                turn.reverse();
            }
            if round > 0 {
                turn.iter_mut().for_each(|t| t.name += &format!(" ({})", round + 1));
            }
            targets.extend(turn);
        }
        Ok(Plan { scaled, targets })
    }

    fn run(&self, request: &Request, options: &Options, dir: &RunDirectory) -> Result<RunRecord, RunError> {
        let scenario = &self.scaled.scenario;
        let total: Duration = scenario.phases.iter().map(|p| phase::planned(&self.scaled, p)).sum();
        let mut progress = Progress::new(options.quiet, total * self.targets.len() as u32);
        let mut records = Vec::new();
        for (number, spec) in self.targets.iter().enumerate() {
            let before = dir.part(number)?;
            if let Some(done) = before.filter(|part| part.state == State::Complete) {
                progress.phase_done(total);
                records.push(done);
                continue;
            }
            if interrupted() {
                break;
            }
            progress.target(&spec.name);
            let mut record = self.target(spec, request.seed, options, &mut progress);
            record.verdicts = verdict::judge(scenario, &record);
            dir.keep(number, &record)?;
            records.push(record);
        }
        progress.finish();
        let is_final = |r: &TargetRecord| matches!(r.state, State::Complete | State::NotSupported(_));
        let complete = records.len() == self.targets.len() && records.iter().all(is_final);
        Ok(RunRecord {
            format: FORMAT,
            scenario: scenario.name.get_ref().clone(),
            title: scenario.title.clone(),
            about: scenario.about.trim().to_owned(),
            source: scenario.source.clone(),
            text: request.text.clone(),
            scale: request.scale,
            changes: self.scaled.changes.clone(),
            seed: request.seed,
            machine: Machine::here().line(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            complete,
            targets: records,
        })
    }

    /// Runs the scenario on one target. What fails is part of the results.
    fn target(
        &self,
        spec: &TargetSpec,
        seed: u64,
        options: &Options,
        progress: &mut Progress,
    ) -> TargetRecord {
        let mut record = TargetRecord {
            name: spec.name.clone(),
            version: String::new(),
            state: State::Complete,
            phases: Vec::new(),
            verdicts: Vec::new(),
        };
        progress.say("starting");
        if let Err(error) = self.phases(spec, seed, options, progress, &mut record) {
            record.state = match error {
                RunError::Target(TargetError::Unsupported(what)) if record.phases.is_empty() => {
                    State::NotSupported(format!("{what} is not supported by this target"))
                }
                RunError::Target(TargetError::Unavailable(what)) => State::NotSupported(what),
                RunError::Interrupted => State::Interrupted,
                // What an interruption cuts off fails as well.
                _ if interrupted() => State::Interrupted,
                error => State::Failed(error.to_string()),
            };
        }
        record
    }

    fn phases(
        &self,
        spec: &TargetSpec,
        seed: u64,
        options: &Options,
        progress: &mut Progress,
        record: &mut TargetRecord,
    ) -> Result<(), RunError> {
        let scenario = &self.scaled.scenario;
        let image = scenario.disks.iter().find(|d| d.desktop_image).and_then(|d| d.size);
        let shape = image.map(|size| Shape::new(size.0, 0, phase::divisor(self.scaled.scale)));
        let content = Content::new(match image {
            Some(_) => files::bytes_of(&files::packages(), ARENA),
            None => Vec::new(),
        });
        let family = shape.as_ref().map(|shape| Family { shape, content: &content });
        let mut system = spec.start(&options.around)?;
        record.version = system.version().to_owned();
        supports(scenario, system.as_ref())?;
        let disks = prepare::prepare(scenario, system.as_mut(), seed, family, progress)?;
        let percentiles = percentiles(scenario);
        let mut stage =
            Stage { scaled: &self.scaled, disks, family, seed, desks: BTreeMap::new(), percentiles };
        for p in &scenario.phases {
            let depths: Vec<Option<u32>> =
                if p.depths.is_empty() { vec![None] } else { p.depths.iter().copied().map(Some).collect() };
            for depth in depths {
                let (result, failure) = phase::run(&mut stage, p, depth, system.as_mut(), progress)?;
                record.phases.push(result);
                if interrupted() {
                    return Err(RunError::Interrupted);
                }
                if let Some(reason) = failure {
                    record.state = State::Failed(reason);
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Refuses a scenario that needs what a target does not support.
fn supports(scenario: &Scenario, system: &dyn System) -> Result<(), RunError> {
    let missing = scenario.actions().into_iter().find(|a| !system.supports(*a));
    match missing.map(Action::name) {
        Some(action) => Err(TargetError::Unsupported(action).into()),
        None => Ok(()),
    }
}

fn percentiles(scenario: &Scenario) -> Vec<f64> {
    let mut all: Vec<f64> = scenario.checks.iter().filter_map(|c| c.get_ref().percentile).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}

/// A name for the directory of a run: the first that is free.
pub fn free_directory(parent: &Path, scenario: &str) -> PathBuf {
    let mut number = 1;
    loop {
        let path = parent.join(format!("{scenario}-{number}"));
        if !path.exists() {
            return path;
        }
        number += 1;
    }
}
