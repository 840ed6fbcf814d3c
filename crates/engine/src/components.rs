//! The components of an open pool, and the order in which they are assembled.

use std::sync::Arc;

use crate::admin::{CatalogueEditor, Metadata};
use crate::catalogue::Catalogue;
use crate::classes::ClassLearner;
use crate::commit::{Committer, Intake, Reducer};
use crate::context::Context;
use crate::desktop::Desktops;
use crate::marks::Marks;
use crate::profile::BootProfiles;
use crate::progress::CommitProgress;
use crate::quota::{Counter, UsedCounter};
use crate::read::Reader;
use crate::reclaim::Reclaimer;
use crate::recovery::Recovered;
use crate::scan_queue::ScanQueue;
use crate::space::SpaceGovernor;
use crate::sync::RwLock;
use crate::write_caches::WriteCaches;

/// All components of an open pool. Each component references only the components before it in this list.
pub(crate) struct Components {
    pub cx: Arc<Context>,
    pub reader: Arc<Reader>,
    pub catalogue: Arc<RwLock<Catalogue>>,
    pub counter: Arc<Counter>,
    pub used: Arc<UsedCounter>,
    pub space: Arc<SpaceGovernor>,
    pub progress: Arc<CommitProgress>,
    pub caches: Arc<WriteCaches>,
    pub intake: Arc<Intake>,
    pub committer: Arc<Committer>,
    pub marks: Arc<Marks>,
    pub reclaimer: Arc<Reclaimer>,
    pub editor: Arc<CatalogueEditor>,
    pub metadata: Arc<Metadata>,
    pub classes: Arc<ClassLearner>,
    pub profiles: Arc<BootProfiles>,
    pub desktops: Arc<Desktops>,
}

impl Components {
    /// Assembles the components of a recovered pool. No task is started.
    pub fn assemble(recovered: Recovered) -> Components {
        let Recovered { reader, progress, caches, applier, log, tables, dedup, stored, .. } = recovered;
        let (cx, catalogue) = (reader.context().clone(), applier.catalogue.clone());
        let counter = Arc::new(Counter::new(reader.clone(), catalogue.clone()));
        let used = Arc::new(UsedCounter::new(reader.clone(), catalogue.clone()));
        let superblock = log.superblock();
        let (segment_bytes, key) = (superblock.segment_bytes.into(), superblock.fingerprint_key);
        let opened_at = log.head().seq;
        let (appended, pacing) = (log.appended.clone(), reader.pacing.clone());
        let space =
            Arc::new(SpaceGovernor::new(&cx.config, segment_bytes, appended, progress.clone(), pacing));
        space.garbage.recovered(stored);
        let intake =
            Arc::new(Intake::new(reader.clone(), space.clone(), caches.clone(), progress.clone(), key));
        let scans = Arc::new(ScanQueue::new(cx.clone(), catalogue.clone()));
        let reducer = Reducer::new(reader.clone(), key, dedup);
        let (intake_of, scans_of) = (intake.clone(), scans.clone());
        let committer =
            Arc::new(Committer::new(log, tables, intake_of, applier, reducer, scans_of, used.clone()));
        let marks = Arc::new(Marks::new(intake.clone(), committer.clone(), catalogue.clone()));
        let reclaimer = Arc::new(Reclaimer::new(reader.clone(), space.clone(), committer.clone(), opened_at));
        let editor =
            Arc::new(CatalogueEditor::new(cx.clone(), space.clone(), intake.clone(), catalogue.clone()));
        let metadata =
            Arc::new(Metadata { editor: editor.clone(), intake: intake.clone(), reader: reader.clone() });
        let classes = Arc::new(ClassLearner {
            scans,
            reader: reader.clone(),
            catalogue: catalogue.clone(),
            metadata: metadata.clone(),
        });
        let profiles = Arc::new(BootProfiles::new(reader.clone(), catalogue.clone(), metadata.clone()));
        let desktops = Arc::new(Desktops::new(
            (caches.clone(), progress.clone()),
            space.clone(),
            intake.clone(),
            committer.clone(),
            editor.clone(),
            profiles.clone(),
        ));
        Components {
            cx,
            reader,
            catalogue,
            counter,
            used,
            space,
            progress,
            caches,
            intake,
            committer,
            marks,
            reclaimer,
            editor,
            metadata,
            classes,
            profiles,
            desktops,
        }
    }
}
