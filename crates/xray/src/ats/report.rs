//! The scenes as a table.

use super::scenes::Scene;
use crate::report::{Cell, Table, right, thousands};

/// Figures of host A and of the operations concurrent with it, by scene.
pub(super) fn scene_table(scenes: &[Scene]) -> String {
    let mut table = Table::new([
        "A requests",
        "B, or snapshots",
        "A IOPS",
        "A p99 us",
        "A confl./s",
        "B ops/s",
        "B confl./s",
    ]);
    for scene in scenes {
        let rate = scene.data_rate.map_or("no limit".to_owned(), |r| format!("{}/s", thousands(r)));
        let figures = [
            thousands(scene.median(|m| m.data_iops)),
            thousands(scene.median(|m| m.data_p99_us)),
            thousands(scene.median(|m| m.data_conflicts)),
            format!("{:.1}", scene.median(|m| m.operations)),
            format!("{:.1}", scene.median(|m| m.lock_conflicts)),
        ];
        table.add([Cell::new(rate), Cell::new(&scene.name)].into_iter().chain(figures.map(right)));
    }
    format!(
        "Two hosts on one volume; B ops: updates of metadata, or snapshots; confl.: conflicts with a lock\n{table}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ats::Moment;
    use crate::report::assert_fits;

    #[test]
    fn the_scene_table_fits_a_terminal_of_120_columns() {
        let wide = Moment {
            data_iops: 12_345_678.0,
            data_p99_us: 12_345_678.0,
            data_conflicts: 12_345_678.0,
            operations: 1_234_567.8,
            lock_conflicts: 1_234_567.8,
        };
        let name = "updates without lock, no limit".to_owned();
        let scene = Scene { data_rate: Some(1_600_000.0), name, rounds: vec![wide; 3] };
        assert_fits(&scene_table(&[scene.clone(), scene]), 2, false);
    }
}
