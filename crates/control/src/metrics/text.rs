//! The text format of Prometheus, version 0.0.4.
//!
//! `prometheus-client` writes OpenMetrics only, in which a counter's `# TYPE` line lacks `_total`; parsers of
//! this format, and promtool's checks, then see counters without type and description.

use std::fmt::Write;

/// A metric of Prometheus: its name, type and help text.
pub(super) struct Metric {
    pub name: &'static str,
    /// Type of the metric: `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    pub help: &'static str,
}

/// Labels of a series.
pub(super) type Labels<'a> = &'a [(&'static str, &'a str)];

/// Declares a table of metrics: identifier, type, name without prefix, and help text.
macro_rules! metrics {
    ($($id:ident $kind:ident $name:literal $help:literal;)+) => {
        $(const $id: $crate::metrics::text::Metric = $crate::metrics::text::Metric { name: concat!("forebay_", $name), kind: stringify!($kind), help: $help };)+
        /// All metrics of this table.
        pub(super) const ABOUT: &[$crate::metrics::text::Metric] = &[$($id),+];
    };
}
pub(super) use metrics;

/// A series without labels.
pub(super) const NONE: Labels<'static> = &[];

/// Writes a metric with one series, or several.
pub(super) fn put(text: &mut Text, metric: &Metric, series: &[(Labels<'_>, f64)]) {
    text.begin(metric);
    for (labels, value) in series {
        text.series(metric.name, labels, *value);
    }
}

/// Writes a metric with one series without labels.
pub(super) fn one(text: &mut Text, metric: &Metric, value: u64) {
    put(text, metric, &[(NONE, value as f64)]);
}

/// A text with metrics.
#[derive(Default)]
pub(super) struct Text(String);

impl Text {
    /// Begins a metric; its series follow.
    pub fn begin(&mut self, metric: &Metric) {
        let Metric { name, kind, help } = metric;
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Adds a series of the current metric.
    pub fn series(&mut self, name: &str, labels: Labels<'_>, value: f64) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            self.0.push(if i == 0 { '{' } else { ',' });
            let _ = write!(self.0, "{label}=\"");
            for c in text.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }

    pub fn finish(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        let mut text = Text::default();
        text.begin(&Metric { name: "m", kind: "gauge", help: "About." });
        text.series("m", &[("a", "q\"\\\n"), ("b", "")], 0.5);
        text.series("m", &[], 18_446_744_073_709_551_615_u64 as f64);
        let expected =
            "# HELP m About.\n# TYPE m gauge\nm{a=\"q\\\"\\\\\\n\",b=\"\"} 0.5\nm 18446744073709552000\n";
        assert_eq!(text.finish(), expected);
    }
}
