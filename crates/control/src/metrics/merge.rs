//! Metrics of several servers in one text: the series of each server get a label with the number of its
//! shard.
//!
//! The text format requires that all series of a metric follow its description, so the texts are taken apart
//! by metric. The texts come from servers of this release or of another release; lines that do not belong to
//! a described metric are left out.

use std::collections::HashMap;
use std::fmt::Write;

/// A metric with its description and its series.
struct Family {
    /// The lines `# HELP` and `# TYPE`, as the first text with the metric has them.
    description: String,
    series: String,
}

/// A text that grows by the texts of servers.
#[derive(Default)]
pub(super) struct Merged {
    families: Vec<Family>,
    by_name: HashMap<String, usize>,
}

impl Merged {
    /// Adds the metrics of a server. With a shard, each series gets its number as a label.
    pub fn add(&mut self, text: &str, shard: Option<u32>) {
        let label = shard.map(|shard| format!("shard=\"{shard}\""));
        let mut current: Option<(usize, &str)> = None;
        for line in text.lines() {
            let described = ["# HELP ", "# TYPE "].iter().find_map(|prefix| line.strip_prefix(prefix));
            if let Some(described) = described {
                let name = described.split(' ').next().unwrap_or_default();
                if current.is_none_or(|(_, before)| before != name) {
                    current = Some((self.family(name), name));
                }
                self.describe(current.map(|(index, _)| index), line);
                continue;
            }
            let Some((index, name)) = current else { continue };
            // A histogram has series with suffixes.
            if !line.starts_with(name) {
                continue;
            }
            let series = &mut self.families[index].series;
            let written = match (&label, line.find(['{', ' '])) {
                (None, _) => writeln!(series, "{line}"),
                (Some(label), Some(at)) => {
                    let (name, rest) = line.split_at(at);
                    match rest.strip_prefix('{') {
                        Some(labels) => writeln!(series, "{name}{{{label},{labels}"),
                        None => writeln!(series, "{name}{{{label}}}{rest}"),
                    }
                }
                (Some(_), None) => Ok(()),
            };
            // Writing to a string cannot fail.
            let _ = written;
        }
    }

    /// The number of the metric with this name, which is added if it is new.
    fn family(&mut self, name: &str) -> usize {
        if let Some(index) = self.by_name.get(name) {
            return *index;
        }
        self.families.push(Family { description: String::new(), series: String::new() });
        self.by_name.insert(name.to_owned(), self.families.len() - 1);
        self.families.len() - 1
    }

    /// Adds a line of the description of a metric, unless an earlier text has described the metric.
    fn describe(&mut self, family: Option<usize>, line: &str) {
        let Some(family) = family.and_then(|index| self.families.get_mut(index)) else { return };
        let keyword = &line[..line.len().min("# HELP ".len())];
        if family.series.is_empty() && !family.description.contains(keyword) {
            family.description.push_str(line);
            family.description.push('\n');
        }
    }

    /// The whole text.
    pub fn finish(self) -> String {
        self.families.into_iter().map(|Family { description, series }| description + &series).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_one_metric_are_together_and_have_the_shard() {
        let mut merged = Merged::default();
        merged.add("# HELP a About a.\n# TYPE a gauge\na 1\n", None);
        let text = "# HELP a Other words.\n# TYPE a gauge\na 2\n# HELP h About h.\n# TYPE h histogram\n\
                    h_bucket{le=\"+Inf\",x=\"{ }\"} 3\nh_sum 0.5\nnot a series of it\n";
        merged.add(text, Some(7));
        merged.add(text, Some(12));
        merged.add("b 9\n", Some(13));
        let expected = "# HELP a About a.\n# TYPE a gauge\na 1\na{shard=\"7\"} 2\na{shard=\"12\"} 2\n\
                        # HELP h About h.\n# TYPE h histogram\n\
                        h_bucket{shard=\"7\",le=\"+Inf\",x=\"{ }\"} 3\nh_sum{shard=\"7\"} 0.5\n\
                        h_bucket{shard=\"12\",le=\"+Inf\",x=\"{ }\"} 3\nh_sum{shard=\"12\"} 0.5\n";
        assert_eq!(merged.finish(), expected);
    }
}
