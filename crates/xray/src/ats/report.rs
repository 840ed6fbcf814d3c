//! What a run came to, for people and for programs.

use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::Serialize;

use super::scenes::Scene;
use crate::bench::machine::Machine;
use crate::bench::{Row, table, thousands, trust};

/// All of a run.
#[derive(Debug, Serialize)]
pub struct AtsReport {
    /// Where.
    pub machine: Machine,
    /// Versions of the peers.
    pub peers: Vec<String>,
    /// Whether it was the quick run.
    pub quick: bool,
    /// How long the run took.
    pub seconds: f64,
    /// Share of the machine's CPU time in the run that went to others, in per cent.
    pub others_percent: f64,
    /// Two hosts on one volume, and snapshots.
    pub scenes: Vec<Scene>,
    /// The promises, and the figures beside the peer's.
    pub rows: Vec<Row>,
}

impl AtsReport {
    /// Figures and promises.
    pub fn table(&self) -> String {
        table(&self.rows)
    }

    /// How far the figures can be trusted.
    pub fn trust(&self) -> String {
        trust(self.others_percent)
    }

    /// What A got through, and what happened beside it.
    pub fn scene_table(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_FULL_CONDENSED);
        table.set_header([
            "A asks for",
            "beside it",
            "A: IOPS",
            "p99 us",
            "conflicts/s",
            "locked updates or snapshots/s",
            "conflicts/s",
        ]);
        for scene in &self.scenes {
            let asked = scene.data_rate.map_or("all it can".to_owned(), |r| format!("{}/s", thousands(r)));
            let figures = [
                thousands(scene.median(|m| m.data_iops)),
                thousands(scene.median(|m| m.data_p99_us)),
                thousands(scene.median(|m| m.data_conflicts)),
                format!("{:.1}", scene.median(|m| m.operations)),
                format!("{:.1}", scene.median(|m| m.lock_conflicts)),
            ];
            let right = figures.map(|text| Cell::new(text).set_alignment(CellAlignment::Right));
            table.add_row([Cell::new(asked), Cell::new(&scene.name)].into_iter().chain(right));
        }
        table.to_string()
    }
}
