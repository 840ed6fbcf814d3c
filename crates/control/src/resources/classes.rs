//! `/volumes/{name}/classes`: block classes.

use forebay_api::{ClassView, ClassesView};
use forebay_engine::{ClassStats, ClassesInfo};
use forebay_text::quoted;

use super::run;
use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::Param;
use crate::http::route::Route;
use crate::operations::{Change, Changes, Control, Disks, Operation, Reply, Result};
use crate::view::{View, ratio};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/volumes/{name}/classes",
            "Show the block classes of a volume, image or VOLUME@SNAPSHOT, with I/O counters",
            Right::Read,
            |c: Caller, Param(name)| run(c, ShowClasses { name }),
        )
        .returns::<ClassesView>(),
        Route::post(
            "/volumes/{name}/classes",
            "Scan the disk for block classes now",
            Right::Operate,
            |c: Caller, Param(name)| run(c, LearnClasses { name }),
        )
        .returns::<ClassesView>(),
    ]
}

impl Reply for ClassesView {}

struct ShowClasses {
    name: String,
}

impl Operation for ShowClasses {
    type Reply = ClassesView;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |op| vec![op.name.clone()];

    async fn execute(&self, control: &Control, _: &str) -> Result<ClassesView> {
        Ok(control.pool().classes(&self.name)?.view())
    }
}

struct LearnClasses {
    name: String,
}

impl Operation for LearnClasses {
    type Reply = ClassesView;
    const CHANGE: Changes<Self> =
        Some(|op| Change::new("scan", "scanned", format_args!("{} for block classes", quoted(&op.name))));
    const DISKS: Disks<Self> = |op| vec![op.name.clone()];

    async fn execute(&self, control: &Control, owner: &str) -> Result<ClassesView> {
        control.scan_classes(&self.name, owner).await?;
        Ok(control.pool().classes(&self.name)?.view())
    }
}

impl View for ClassStats {
    type View = ClassView;

    fn view(self) -> ClassView {
        let ClassStats { class, bytes, written_bytes, read_hits, read_misses } = self;
        let hit_rate = ratio(read_hits, read_hits + read_misses);
        ClassView { class, bytes, written_bytes, read_hits, read_misses, hit_rate }
    }
}

impl View for ClassesInfo {
    type View = ClassesView;

    fn view(self) -> ClassesView {
        let ClassesInfo { learned_ms, file_systems, classes } = self;
        ClassesView { learned_ms, file_systems, classes: classes.into_iter().map(View::view).collect() }
    }
}
