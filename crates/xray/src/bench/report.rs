//! Rows: a promise, what was measured, what the peer does, and whether the promise holds.

use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::Serialize;

use super::machine::Machine;

/// What is counted, which says how it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Requests per second.
    Iops,
    /// MiB per second.
    MibPerSecond,
    /// Microseconds of server CPU per request.
    CpuMicros,
    /// Microseconds.
    Micros,
    /// Seconds.
    Seconds,
    /// Seconds per GiB.
    SecondsPerGib,
    /// KiB.
    Kib,
    /// MiB.
    Mib,
    /// So many times.
    Times,
    /// Per cent.
    Percent,
    /// Operations.
    Ops,
    /// Operations a second, where one is many.
    FewIops,
    /// A part of one.
    Ratio,
}

impl Unit {
    /// A value with its unit.
    fn show(self, v: f64) -> String {
        match self {
            Unit::Iops => format!("{} IOPS", thousands(v)),
            Unit::MibPerSecond => format!("{} MiB/s", thousands(v)),
            Unit::CpuMicros => format!("{v:.2} us CPU"),
            Unit::Micros => format!("{v:.1} us"),
            Unit::Seconds => format!("{v:.3} s"),
            Unit::SecondsPerGib => format!("{v:.2} s/GiB"),
            Unit::Kib => format!("{v:.1} KiB"),
            Unit::Mib if v < 10.0 => format!("{v:.2} MiB"),
            Unit::Mib => format!("{} MiB", thousands(v)),
            Unit::Times => format!("{v:.2} times"),
            Unit::Percent => format!("{v:.1} %"),
            Unit::Ops if v < 100.0 => format!("{v:.1}"),
            Unit::Ops => thousands(v),
            Unit::Ratio => format!("{v:.4}"),
            Unit::FewIops => format!("{v:.3} IOPS"),
        }
    }
}

/// Groups the digits of a rounded number.
pub(crate) fn thousands(v: f64) -> String {
    let digits = format!("{v:.0}");
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) && !out.ends_with('-') {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// What is promised.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is", content = "value")]
pub enum Bound {
    /// Ours is at least so many times the peer's.
    RatioAtLeast(f64),
    /// Ours is at most so many times the peer's.
    RatioAtMost(f64),
    /// Ours is at most this.
    AtMost(f64),
    /// Ours is at least this.
    AtLeast(f64),
    /// Nothing; the figure is for orientation.
    Nothing,
}

/// Whether it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It does.
    Pass,
    /// It does not.
    NotReached,
    /// Nothing was promised, or one side was not measured.
    None,
}

/// A value of a peer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PeerValue {
    /// Who.
    pub name: &'static str,
    /// Median.
    pub value: f64,
}

/// One line of the result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// Its unit.
    pub unit: Unit,
    /// The promise.
    pub bound: Bound,
    /// Our median.
    pub ours: Option<f64>,
    /// The peer's.
    pub peer: Option<PeerValue>,
    /// Ours by the peer's: the median over the rounds, each round's two figures being neighbours in time.
    pub ratio: Option<f64>,
    /// Every round of ours.
    pub samples: Vec<f64>,
    /// Every round of the peer's.
    pub peer_samples: Vec<f64>,
}

impl Row {
    /// A row that compares two series, round by round.
    pub fn compare(
        what: impl Into<String>,
        unit: Unit,
        bound: Bound,
        ours: &[f64],
        peer: (&'static str, &[f64]),
    ) -> Row {
        let ratios: Vec<f64> =
            ours.iter().zip(peer.1).filter(|(_, p)| **p > 0.0).map(|(o, p)| o / p).collect();
        Row {
            what: what.into(),
            unit,
            bound,
            ours: median(ours),
            peer: median(peer.1).map(|value| PeerValue { name: peer.0, value }),
            ratio: median(&ratios),
            samples: ours.to_vec(),
            peer_samples: peer.1.to_vec(),
        }
    }

    /// A row about us alone.
    pub fn alone(what: impl Into<String>, unit: Unit, bound: Bound, ours: &[f64]) -> Row {
        Row {
            what: what.into(),
            unit,
            bound,
            ours: median(ours),
            peer: None,
            ratio: None,
            samples: ours.to_vec(),
            peer_samples: Vec::new(),
        }
    }

    /// Whether the promise holds.
    pub fn verdict(&self) -> Verdict {
        let holds = match self.bound {
            Bound::RatioAtLeast(least) => self.ratio.map(|r| r >= least),
            Bound::RatioAtMost(most) => self.ratio.map(|r| r <= most),
            Bound::AtMost(most) => self.ours.map(|v| v <= most),
            Bound::AtLeast(least) => self.ours.map(|v| v >= least),
            Bound::Nothing => None,
        };
        match holds {
            Some(true) => Verdict::Pass,
            Some(false) => Verdict::NotReached,
            None => Verdict::None,
        }
    }

    fn promise(&self) -> String {
        match self.bound {
            Bound::RatioAtLeast(r) => format!("at least {r:.2} of peer"),
            Bound::RatioAtMost(r) => format!("at most {r:.2} of peer"),
            Bound::AtMost(v) => format!("at most {}", self.unit.show(v)),
            Bound::AtLeast(v) => format!("at least {}", self.unit.show(v)),
            Bound::Nothing => String::new(),
        }
    }
}

/// The median; none of an empty series.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    let upper = *v.get(v.len() / 2)?;
    let lower = *v.get(v.len().checked_sub(1)? / 2)?;
    Some((lower + upper) / 2.0)
}

/// All rows of a run.
#[derive(Debug, Serialize)]
pub struct BenchReport {
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
    /// The rows.
    pub rows: Vec<Row>,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

/// What others may take before figures stop to mean much.
const OTHERS_MAX_PERCENT: f64 = 5.0;

impl BenchReport {
    /// How far the figures can be trusted, in one line.
    pub fn trust(&self) -> String {
        trust(self.others_percent)
    }

    /// The table for people.
    pub fn table(&self) -> String {
        table(&self.rows)
    }
}

/// How far the figures of a run can be trusted in which others used so much of the CPU.
pub fn trust(others_percent: f64) -> String {
    let distrust = if others_percent > OTHERS_MAX_PERCENT {
        ": rates and latencies are not to be trusted."
    } else {
        "."
    };
    format!("Others used {others_percent:.0} % of the CPU meanwhile{distrust}")
}

/// Rows as a table for people.
pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    table.set_header(["what", "promise", "forebay", "peer", "", "ratio", ""]);
    for row in rows {
        let value = |v: Option<f64>| v.map_or("-".to_owned(), |v| row.unit.show(v));
        let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
        table.add_row([
            Cell::new(&row.what),
            Cell::new(row.promise()),
            right(value(row.ours)),
            right(value(row.peer.as_ref().map(|p| p.value))),
            Cell::new(row.peer.as_ref().map_or("", |p| p.name)),
            right(row.ratio.map_or(String::new(), |r| format!("{r:.2}"))),
            Cell::new(match row.verdict() {
                Verdict::Pass => "pass",
                Verdict::NotReached => "not reached",
                Verdict::None => "",
            }),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_and_no_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_ratio_pairs_rounds_so_that_a_slow_moment_hits_both() {
        // Both were disturbed in the second round; the ratio does not notice.
        let row = Row::compare(
            "x",
            Unit::Iops,
            Bound::RatioAtLeast(2.0),
            &[20.0, 2.0, 21.0],
            ("p", &[10.0, 1.0, 10.0]),
        );
        assert_eq!(row.ratio, Some(2.0));
        assert_eq!(row.verdict(), Verdict::Pass);
        assert_eq!(Row { bound: Bound::RatioAtMost(1.9), ..row }.verdict(), Verdict::NotReached);
    }

    #[test]
    fn limits_are_judged_and_figures_without_a_promise_are_not() {
        let row = Row::alone("x", Unit::Seconds, Bound::AtMost(1.0), &[0.5]);
        assert_eq!(row.verdict(), Verdict::Pass);
        assert_eq!(Row { bound: Bound::AtMost(0.4), ..row.clone() }.verdict(), Verdict::NotReached);
        assert_eq!(Row { bound: Bound::Nothing, ..row.clone() }.verdict(), Verdict::None);
        assert_eq!(Row { bound: Bound::RatioAtMost(1.0), ..row }.verdict(), Verdict::None);
    }

    #[test]
    fn numbers_are_grouped() {
        for (v, text) in [(0.4, "0"), (999.0, "999"), (1000.0, "1,000"), (1_234_567.4, "1,234,567")] {
            assert_eq!(thousands(v), text);
        }
        assert_eq!(thousands(-123.0), "-123");
    }
}
