//! Checks that the sectors of a disk behave as registers: each operation takes effect once, between its
//! request and its answer (P. B. Gibbons and E. Korach, "Testing Shared Memories", 1997; for registers whose
//! values are all written once).
//!
//! A *value* is a write and all reads that returned it. Its *zone* extends from the first end to the last
//! start of these operations. If the first end precedes the last start, the register has the value in the
//! whole zone (*forward*); otherwise the value is needed at one moment of the zone only (*backward*). A
//! history is linearizable if and only if no two forward zones overlap, and no backward zone is inside a
//! forward zone.

use std::collections::HashMap;

/// An operation on a sector: when it was requested and answered.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    pub start: u64,
    pub end: u64,
}

/// The history of one sector. Value 0 is there from the beginning.
#[derive(Debug, Default)]
pub struct Register {
    writes: HashMap<u64, Span>,
    reads: Vec<(u64, Span)>,
}

impl Register {
    pub fn write(&mut self, value: u64, span: Span) {
        assert!(self.writes.insert(value, span).is_none(), "values are written once");
    }

    pub fn read(&mut self, value: u64, span: Span) {
        self.reads.push((value, span));
    }

    /// Why the history is not possible; `None` if it is.
    pub fn violation(&self) -> Option<String> {
        let mut values: HashMap<u64, Span> = HashMap::new();
        // `start` is the last start, and `end` the first end, of the operations of a value.
        values.insert(0, Span { start: 0, end: 0 });
        values.extend(self.writes.iter().map(|(value, span)| (*value, *span)));
        for (value, span) in &self.reads {
            let Some(write) =
                self.writes.get(value).copied().or((*value == 0).then_some(Span { start: 0, end: 0 }))
            else {
                return Some(format!("value {value} was never written"));
            };
            if span.end < write.start {
                return Some(format!("value {value} was read before it was written"));
            }
            let zone = values.get_mut(value)?;
            zone.start = zone.start.max(span.start);
            zone.end = zone.end.min(span.end);
        }
        let is_forward = |zone: &Span| zone.end < zone.start;
        for (a, first) in values.iter().filter(|(_, zone)| is_forward(zone)) {
            for (b, second) in values.iter().filter(|(value, _)| *value != a) {
                // The same comparison finds forward zones that overlap and backward zones that are inside.
                let conflicts = first.end < second.start && second.end < first.start;
                if conflicts {
                    return Some(format!("values {a} ({first:?}) and {b} ({second:?}) cannot be ordered"));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, end: u64) -> Span {
        Span { start, end }
    }

    #[test]
    fn possible_histories_pass_and_impossible_ones_do_not() {
        let mut register = Register::default();
        register.read(0, span(1, 2));
        register.write(7, span(3, 9));
        register.read(0, span(4, 5));
        register.read(7, span(4, 6));
        assert_eq!(register.violation(), None);
        register.write(8, span(7, 8));
        register.read(8, span(10, 11));
        assert_eq!(register.violation(), None, "the writes are concurrent");
        register.read(7, span(12, 13));
        assert!(register.violation().is_some(), "7, 8, and 7 again");
        let mut lost = Register::default();
        lost.write(7, span(1, 2));
        lost.read(0, span(3, 4));
        assert!(lost.violation().is_some());
        let mut early = Register::default();
        early.read(7, span(1, 2));
        early.write(7, span(3, 4));
        assert!(early.violation().is_some());
    }
}
