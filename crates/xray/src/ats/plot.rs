//! The scenes as a bar chart in a self-contained SVG.

use std::fmt::Write;

use super::scenes::{Moment, Scene};
use crate::report::{median, thousands};

const NAME: f64 = 270.0;
const PANEL: f64 = 250.0;
const BAR: f64 = 190.0;
const LINE: f64 = 26.0;
const TOP: f64 = 64.0;

/// Title, figure and unit. The figure is calculated from a round and the corresponding round of A alone at
/// the same rate.
type Panel = (&'static str, fn(&Moment, &Moment) -> f64, &'static str);

// IOPS are shown relative to those of A alone, because the bars of scenes with a rate would be too short, and
// paired by round, as in the table.
const PANELS: [Panel; 3] = [
    ("data IOPS of host A, by A alone", |m, alone| 100.0 * m.data_iops / alone.data_iops.max(1.0), " %"),
    ("locked updates or snapshots per second", |m, _| m.operations, ""),
    ("conflicts a second, of both", |m, _| m.data_conflicts + m.lock_conflicts, ""),
];

/// Draws a bar for each figure of each scene; a thin line spans its rounds.
pub fn svg(scenes: &[Scene]) -> String {
    let (width, height) =
        (NAME + PANEL * PANELS.len() as f64 + 20.0, TOP + LINE * scenes.len() as f64 + 20.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"10\" y=\"22\" font-size=\"15\">Two hosts on one volume, and snapshots: medians, and the span of \
         the rounds</text>\n"
    );
    for (row, scene) in scenes.iter().enumerate() {
        let y = TOP + LINE * row as f64 + 15.0;
        let pace = if scene.data_rate.is_some() { "A at a rate" } else { "A without limit" };
        text(&mut out, NAME - 8.0, y, "end", &format!("{pace}; {}", scene.name));
    }
    for (column, (title, figure, unit)) in PANELS.into_iter().enumerate() {
        let values = |scene: &Scene| -> Vec<f64> {
            let alone = scenes.iter().find(|other| other.data_rate == scene.data_rate).unwrap_or(scene);
            scene.rounds.iter().zip(&alone.rounds).map(|(m, alone)| figure(m, alone)).collect()
        };
        let x = NAME + PANEL * column as f64;
        text(&mut out, x, TOP - 12.0, "start", title);
        let most = scenes.iter().flat_map(values).fold(1.0, f64::max);
        for (row, scene) in scenes.iter().enumerate() {
            let y = TOP + LINE * row as f64;
            let values = values(scene);
            let median = median(&values).unwrap_or_default();
            let length = |v: f64| BAR * v / most;
            let ends = (
                values.iter().copied().fold(median, f64::min),
                values.iter().copied().fold(median, f64::max),
            );
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{:.1}\" height=\"{}\" fill=\"{}\"/>\
                 <path d=\"M{:.1} {my:.1}H{:.1}\" stroke=\"#222\"/>",
                length(median),
                LINE - 8.0,
                ["#3b76af", "#519e3e", "#c53a32"][column],
                x + length(ends.0),
                x + length(ends.1),
                my = y + (LINE - 8.0) / 2.0,
            );
            text(&mut out, x + length(ends.1) + 4.0, y + 13.0, "start", &(thousands(median) + unit));
        }
    }
    out.push_str("</svg>\n");
    out
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, what: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{what}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_a_bar_within_its_panel() {
        let moment = |data_iops| Moment { data_iops, ..Moment::default() };
        let scene = |name: &str, iops: [f64; 2]| Scene {
            data_rate: None,
            name: name.into(),
            rounds: iops.map(moment).into(),
        };
        let svg = svg(&[scene("alone", [90_000.0, 110_000.0]), scene("RESERVE", [900.0, 1_100.0])]);
        assert_eq!(svg.matches("<path").count(), 6);
        assert!(svg.contains(">100 %<") && svg.contains(">1 %<") && svg.contains("RESERVE<"));
        assert!(svg.contains("width=\"190.0\""), "100 of 100 %");
    }
}
