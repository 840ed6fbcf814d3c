//! Rows: a promise, the measured figures, those of the peer, and the verdict.

use serde::Serialize;

use super::table::{Cell, Table, right};

/// The unit of a figure, which determines its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// The figure is in requests per second.
    Iops,
    /// The figure is in MiB per second.
    MibPerSecond,
    /// The figure is in microseconds of server CPU per request.
    CpuMicros,
    /// The figure is in microseconds.
    Micros,
    /// The figure is in seconds.
    Seconds,
    /// The figure is in seconds per GiB.
    SecondsPerGib,
    /// The figure is in KiB.
    Kib,
    /// The figure is in MiB.
    Mib,
    /// The figure is a factor.
    Times,
    /// The figure is in percent.
    Percent,
    /// The figure is a number of operations.
    Ops,
    /// The figure is in operations per second, with digits for small values.
    FewIops,
    /// The figure is a fraction.
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

/// The promised bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is", content = "value")]
pub enum Bound {
    /// The ratio to the peer is at least this.
    RatioAtLeast(f64),
    /// The ratio to the peer is at most this.
    RatioAtMost(f64),
    /// The figure must be at most this value.
    AtMost(f64),
    /// The figure must be at least this value.
    AtLeast(f64),
    /// No promise; the figure is for orientation.
    Nothing,
}

/// Whether the promise holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The promise holds.
    Pass,
    /// The promise does not hold.
    NotReached,
    /// The row has no promise, or one side was not measured.
    None,
}

/// A value of a peer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PeerValue {
    /// Name of the peer.
    pub name: &'static str,
    /// Median of the peer's figures.
    pub value: f64,
}

/// One row of the result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The measured property.
    pub what: String,
    /// Unit of the figures.
    pub unit: Unit,
    /// The promised bound.
    pub bound: Bound,
    /// The median of Forebay's figures.
    pub ours: Option<f64>,
    /// The median of the peer's figures.
    pub peer: Option<PeerValue>,
    /// Forebay's figure divided by the peer's: the median over rounds, in each of which both are measured one
    /// after the other.
    pub ratio: Option<f64>,
    /// Forebay's figure in every round.
    pub samples: Vec<f64>,
    /// The peer's figure in every round.
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

    /// A row about Forebay alone.
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

    /// The peak memory of a server: at most the budgets of its caches, a tenth, and 200 MiB.
    pub fn memory(what: &str, budgets: u64, peak: u64) -> Row {
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        let (budgets, peak) = (mib(budgets as f64), mib(peak as f64));
        let what = format!("{what}, budgets {budgets:.0} MiB");
        Row::alone(what, Unit::Mib, Bound::AtMost(budgets * 1.1 + 200.0), &[peak])
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
            Bound::RatioAtLeast(r) => format!(">= {r:.2} x peer"),
            Bound::RatioAtMost(r) => format!("<= {r:.2} x peer"),
            Bound::AtMost(v) => format!("<= {}", self.unit.show(v)),
            Bound::AtLeast(v) => format!(">= {}", self.unit.show(v)),
            Bound::Nothing => String::new(),
        }
    }
}

/// The median; `None` for an empty series.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    let upper = *v.get(v.len() / 2)?;
    let lower = *v.get(v.len().checked_sub(1)? / 2)?;
    Some((lower + upper) / 2.0)
}

/// CPU share of other processes above which figures are unreliable.
pub(super) const OTHERS_MAX_PERCENT: f64 = 5.0;

/// States how reliable figures are if other processes used this share of the CPU.
pub(super) fn trust(others_percent: f64) -> String {
    let distrust =
        if others_percent > OTHERS_MAX_PERCENT { ": rates and latencies are unreliable." } else { "." };
    format!("Other processes used {others_percent:.0} % of the CPU{distrust}")
}

/// Formats rows as a table.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut table = Table::new(["measurement", "promise", "forebay", "peer", "", "ratio", "result"]);
    for row in rows {
        let value = |v: Option<f64>| v.map_or("-".to_owned(), |v| row.unit.show(v));
        table.add([
            Cell::new(&row.what),
            Cell::new(row.promise()),
            right(value(row.ours)),
            right(value(row.peer.as_ref().map(|p| p.value))),
            Cell::new(row.peer.as_ref().map_or("", |p| p.name)),
            right(row.ratio.map_or(String::new(), |r| format!("{r:.2}"))),
            Cell::new(match row.verdict() {
                Verdict::Pass => "pass",
                Verdict::NotReached => "missed",
                Verdict::None => "",
            }),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::super::table::assert_fits;
    use super::*;

    #[test]
    fn medians_of_odd_even_and_no_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_ratio_pairs_rounds_so_that_a_disturbance_affects_both() {
        // Both sides were disturbed in the second round; the ratio is not affected.
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
    fn limits_have_a_verdict_and_figures_without_a_promise_have_none() {
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

    #[test]
    fn the_table_fits_a_terminal_of_120_columns() {
        let what =
            "duplicates found with an index of 16,384 KiB, of those that one without bound finds, on ext4";
        let wide = 123_456_789.0;
        let row =
            |unit, bound| Row::compare(what, unit, bound, &[wide], ("a peer with a long name", &[wide]));
        let units = [Unit::Iops, Unit::MibPerSecond, Unit::CpuMicros, Unit::SecondsPerGib, Unit::FewIops];
        let bounds =
            [Bound::RatioAtLeast(123.45), Bound::RatioAtMost(0.25), Bound::AtMost(wide), Bound::Nothing];
        let rows: Vec<Row> = units.into_iter().flat_map(|u| bounds.map(|b| row(u, b))).collect();
        assert_fits(&table(&rows), rows.len(), true);
        let short = Row::compare("4 KiB reads", Unit::Iops, bounds[0], &[1e6], ("nbdkit memory", &[1e6]));
        assert_fits(&table(&[short]), 1, false);
    }
}
