//! Charts as SVG with classes instead of colours, so that the page's theme applies to them.

use std::fmt::Write;

/// A line of a chart.
pub(super) struct Line {
    /// Number of the line's colour and dashes.
    pub style: usize,
    /// The line is thin, for a secondary figure.
    pub thin: bool,
    /// Points; `None` interrupts the line.
    pub points: Vec<Option<(f64, f64)>>,
    /// Text next to points, by their number.
    pub labels: Vec<String>,
}

/// Something that happened between two times.
pub(super) struct Mark {
    pub style: usize,
    pub from: f64,
    pub to: f64,
    pub label: String,
}

/// The text of the ticks on the horizontal axis.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Axis {
    /// The values are seconds.
    Time,
    /// The values are plain numbers.
    Number,
}

/// A chart; see the module documentation.
pub(super) struct Chart {
    pub title: String,
    pub unit: &'static str,
    pub horizontal: &'static str,
    pub axis: Axis,
    /// The ends of the horizontal axis; `None` for the ends of the points.
    pub span: Option<(f64, f64)>,
    pub lines: Vec<Line>,
    pub band: Option<(f64, f64)>,
    pub marks: Vec<Mark>,
    /// The vertical axis is logarithmic.
    pub log: bool,
}

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 40.0;
/// Maximum number of events that each get a label.
const LABELLED: usize = 5;
/// Pixels that a label needs.
const LABEL_ROOM: f64 = 70.0;

struct Scales {
    x: (f64, f64),
    y: (f64, f64),
    log: bool,
}

impl Scales {
    fn x(&self, v: f64) -> f64 {
        LEFT + (v - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, v: f64) -> f64 {
        let part = if self.log {
            (v.max(self.y.0).log10() - self.y.0.log10()) / (self.y.1.log10() - self.y.0.log10())
        } else {
            (v - self.y.0) / (self.y.1 - self.y.0)
        };
        HEIGHT - BOTTOM - part.clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
    }
}

impl Chart {
    /// The SVG; `None` if there is nothing to draw.
    pub fn svg(&self) -> Option<String> {
        let scales = self.scales()?;
        let mut out = format!(
            "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n\
             <text class=\"title\" x=\"{LEFT}\" y=\"18\">{title}</text>\n",
            title = escape(&self.title)
        );
        self.grid(&mut out, &scales);
        if let Some((low, high)) = self.band {
            let (top, bottom) = (scales.y(high), scales.y(low));
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "<rect class=\"band\" x=\"{LEFT}\" y=\"{top:.1}\" width=\"{}\" height=\"{:.1}\"/>",
                WIDTH - LEFT - RIGHT,
                (bottom - top).max(1.0)
            );
        }
        self.marks(&mut out, &scales);
        for line in &self.lines {
            draw(&mut out, line, &scales);
        }
        out.push_str("</svg>\n");
        Some(out)
    }

    fn scales(&self) -> Option<Scales> {
        let points = || self.lines.iter().flat_map(|l| l.points.iter().flatten());
        let ends = |values: &mut dyn Iterator<Item = f64>| {
            values.fold(None, |ends: Option<(f64, f64)>, v| {
                Some(ends.map_or((v, v), |(low, high)| (low.min(v), high.max(v))))
            })
        };
        let found = ends(&mut points().map(|p| p.0))?;
        let (mut x0, mut x1) = self.span.unwrap_or(found);
        if self.axis == Axis::Number {
            x0 = 0.0;
            x1 *= 1.05;
        }
        let mut high = points().map(|p| p.1).fold(0.0, f64::max);
        if let Some((_, band)) = self.band {
            high = high.max(band * 1.1);
        }
        let y = if self.log {
            let low = points().map(|p| p.1).filter(|v| *v > 0.0).fold(f64::INFINITY, f64::min);
            let low = if low.is_finite() { low } else { 0.1 };
            let (bottom, top) = (low.log10().floor(), high.max(low).log10().ceil());
            (10f64.powf(bottom), 10f64.powf(top.max(bottom + 1.0)))
        } else {
            (0.0, if high > 0.0 { high * 1.05 } else { 1.0 })
        };
        Some(Scales { x: (x0, if x1 > x0 { x1 } else { x0 + 1.0 }), y, log: self.log })
    }

    fn grid(&self, out: &mut String, s: &Scales) {
        let values = if self.log { decades(s.y) } else { ticks(s.y, 5.0) };
        for v in values {
            let y = s.y(v);
            let _ = writeln!(
                out,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{}\"/><text class=\"tick\" x=\"{}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0,
                number(v)
            );
        }
        let steps = if self.axis == Axis::Time { time_ticks(s.x) } else { ticks(s.x, 8.0) };
        for v in steps {
            let x = s.x(v);
            let text = if self.axis == Axis::Time { time(v) } else { number(v) };
            let _ = writeln!(
                out,
                "<path class=\"grid\" d=\"M{x:.1} {}V{}\"/><text class=\"tick\" x=\"{x:.1}\" y=\"{}\" \
                 text-anchor=\"middle\">{text}</text>",
                TOP,
                HEIGHT - BOTTOM,
                HEIGHT - BOTTOM + 16.0
            );
        }
        let _ = writeln!(
            out,
            "<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
             <text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            TOP - 10.0,
            self.unit,
            WIDTH - RIGHT,
            HEIGHT - 6.0,
            self.horizontal
        );
    }

    fn marks(&self, out: &mut String, s: &Scales) {
        let mut last = f64::NEG_INFINITY;
        for (i, mark) in self.marks.iter().enumerate() {
            let (from, to) = (s.x(mark.from.max(s.x.0)), s.x(mark.to.min(s.x.1)));
            if mark.from > s.x.1 {
                continue;
            }
            let bottom = HEIGHT - BOTTOM;
            // A row for each target, so that events of many targets do not cover each other.
            if to - from > 2.0 {
                let _ = writeln!(
                    out,
                    "<rect class=\"span c{}\" x=\"{from:.1}\" y=\"{}\" width=\"{:.1}\" height=\"5\"/>",
                    mark.style,
                    TOP + 7.0 * mark.style as f64,
                    to - from
                );
            }
            let _ = writeln!(out, "<path class=\"mark c{}\" d=\"M{from:.1} {TOP}V{bottom}\"/>", mark.style);
            if i < LABELLED && from - last > LABEL_ROOM {
                last = from;
                let label = escape(&mark.label);
                let _ = writeln!(
                    out,
                    "<text class=\"event\" x=\"{:.1}\" y=\"{}\">{label}</text>",
                    from + 3.0,
                    TOP - 4.0
                );
            }
        }
    }
}

fn draw(out: &mut String, line: &Line, s: &Scales) {
    let mut path = String::new();
    let mut moved = false;
    for point in &line.points {
        match point {
            Some((x, y)) => {
                let command = if moved { 'L' } else { 'M' };
                let _ = write!(path, "{command}{:.1} {:.1}", s.x(*x), s.y(*y));
                moved = true;
            }
            None => moved = false,
        }
    }
    let thin = if line.thin { " thin" } else { "" };
    let _ = writeln!(out, "<path class=\"line c{}{thin}\" d=\"{path}\"/>", line.style);
    let alone = |i: usize| {
        let gap = |j: Option<usize>| j.is_none_or(|j| line.points.get(j).is_none_or(Option::is_none));
        gap(i.checked_sub(1)) && gap(i.checked_add(1))
    };
    for (i, point) in line.points.iter().enumerate() {
        let Some((x, y)) = point else { continue };
        let label = line.labels.get(i);
        // A point between two gaps has no line.
        if label.is_some() || alone(i) {
            let _ = writeln!(
                out,
                "<circle class=\"dot c{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\"/>",
                line.style,
                s.x(*x),
                s.y(*y)
            );
        }
        if let Some(label) = label {
            let _ = writeln!(
                out,
                "<text class=\"event\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                s.x(*x) + 5.0,
                s.y(*y) - 5.0,
                escape(label)
            );
        }
    }
}

fn decades((low, high): (f64, f64)) -> Vec<f64> {
    let (first, last) = (low.log10().round() as i32, high.log10().round() as i32);
    (first..=last).map(|e| 10f64.powi(e)).collect()
}

/// Round numbers between two ends, about `count` of them.
fn ticks((low, high): (f64, f64), count: f64) -> Vec<f64> {
    let rough = (high - low) / count;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= rough).unwrap_or(rough);
    multiples(low, high, step)
}

fn time_ticks((low, high): (f64, f64)) -> Vec<f64> {
    const STEPS: [f64; 17] = [
        0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0,
        14_400.0, 36_000.0,
    ];
    let step = STEPS.into_iter().find(|s| (high - low) / s <= 12.0).unwrap_or(36_000.0);
    multiples(low, high, step)
}

fn multiples(low: f64, high: f64, step: f64) -> Vec<f64> {
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    (first..=last.min(first + 40)).map(|n| n as f64 * step).collect()
}

fn time(seconds: f64) -> String {
    let (value, unit) = match seconds.abs() {
        s if s >= 7200.0 => (seconds / 3600.0, "h"),
        s if s >= 120.0 => (seconds / 60.0, "min"),
        _ => (seconds, "s"),
    };
    format!("{} {unit}", number(value))
}

/// A number with as many digits as it needs, thousands grouped.
pub(super) fn number(v: f64) -> String {
    let v = if v == 0.0 { 0.0 } else { v };
    if v.abs() >= 1000.0 {
        return super::rows::thousands(v);
    }
    let text = match v.abs() {
        a if a >= 100.0 => format!("{v:.0}"),
        a if a >= 10.0 => format!("{v:.1}"),
        a if a >= 0.1 => format!("{v:.2}"),
        _ => format!("{v:.3}"),
    };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Text in HTML and SVG.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks((0.0, 4300.0), 5.0), [0.0, 1000.0, 2000.0, 3000.0, 4000.0]);
        assert_eq!(decades((0.1, 100.0)), [0.1, 1.0, 10.0, 100.0]);
        assert_eq!(time_ticks((-5.0, 40.0)), [-5.0, 0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0]);
        assert_eq!(
            [time(90.0), time(600.0), number(0.1), number(1234.5)],
            ["90 s", "10 min", "0.1", "1,234"]
        );
    }

    #[test]
    fn a_chart_has_its_lines_band_and_marks_and_a_gap_is_not_bridged() {
        let line = Line {
            style: 1,
            thin: false,
            points: vec![Some((0.0, 1.0)), None, Some((2.0, 3.0)), Some((3.0, 3.0))],
            labels: Vec::new(),
        };
        let chart = Chart {
            title: "a < b".into(),
            unit: "ms",
            horizontal: "time",
            axis: Axis::Time,
            span: None,
            lines: vec![line],
            band: Some((0.5, 1.5)),
            marks: vec![Mark { style: 1, from: 1.0, to: 2.0, label: "kill".into() }],
            log: false,
        };
        let svg = chart.svg().expect("has points");
        for part in ["a &lt; b", "class=\"band\"", "class=\"span c1\"", ">kill<", "<circle"] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        let path = svg.lines().find(|l| l.contains("line c1")).expect("a line");
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (2, 1));
        let longer = Chart { span: Some((-1.0, 6.0)), ..chart };
        assert!(longer.svg().is_some_and(|svg| svg.contains(">6 s<") && !svg.contains(">7 s<")));
        assert!(Chart { lines: Vec::new(), ..longer }.svg().is_none());
    }
}
