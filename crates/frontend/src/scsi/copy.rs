//! Third-party copies: EXTENDED COPY, and copies by token.

use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_engine::{DiskHandle, Error};
use forebay_wire::scsi::{
    Access, BLOCK, BlockRange, CopyList, CopyOutcome, CopySegment, PopulateList, Sense, SenseKey,
    TokenOutcome, WriteList, codes, copy_status, token_information,
};

use super::errors::sense_of;
use super::nexus::Nexus;
use super::response::Response;
use super::tokens::{Grant, TokenSource};
use super::underway::Underway;
use super::unit::{HAS_TOKENS, LogicalUnit};

/// Service actions of the copy commands.
const POPULATE_TOKEN: u8 = 0x10;
const WRITE_USING_TOKEN: u8 = 0x11;

/// Why a copy by the server failed.
enum Failure {
    Sense(Sense),
    Engine(Error),
}

impl From<Sense> for Failure {
    fn from(sense: Sense) -> Failure {
        Failure::Sense(sense)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Engine(error)
    }
}

impl Failure {
    fn sense(&self) -> Sense {
        match self {
            Failure::Sense(sense) => *sense,
            Failure::Engine(error) => sense_of(error),
        }
    }
}

const fn aborted(code: forebay_wire::scsi::Code) -> Sense {
    Sense::new(SenseKey::CopyAborted, code)
}

/// A range to be copied, with its units.
struct Step<'a> {
    source: &'a Nexus,
    destination: &'a Nexus,
    segment: CopySegment,
    /// Number of segments that were joined into this step: initiators split long copies, and each separate
    /// copy waits for a commit.
    segments: u16,
}

impl Step<'_> {
    fn units(&self) -> [&LogicalUnit; 2] {
        [&self.source.unit, &self.destination.unit]
    }

    fn is_within_a_unit(&self) -> bool {
        let [source, destination] = self.units();
        std::ptr::eq(source, destination)
    }

    /// Checks whether the initiator can still read the source and write the destination.
    fn check(&self) -> Result<(), Sense> {
        let CopySegment { source_offset, offset, len, .. } = self.segment;
        self.source.check_copy(source_offset, len, Access::Read)?;
        self.destination.check_copy(offset, len, Access::Write)
    }

    /// Appends a step that starts where this step ends; returns false if it does not start there.
    fn join(&mut self, next: &Step<'_>) -> bool {
        let (mine, theirs) = (&mut self.segment, &next.segment);
        let is_adjacent = std::ptr::eq(self.source, next.source)
            && std::ptr::eq(self.destination, next.destination)
            && mine.source_offset + mine.len == theirs.source_offset
            && mine.offset + mine.len == theirs.offset;
        let len = mine.len + theirs.len;
        if !is_adjacent || (next.is_within_a_unit() && mine.offset.abs_diff(mine.source_offset) < len) {
            return false;
        }
        mine.len = len;
        self.segments += next.segments;
        true
    }
}

impl Nexus {
    /// Executes EXTENDED COPY(LID1).
    pub(super) async fn extended_copy(&self, list: &[u8]) -> Response {
        if list.is_empty() {
            return Response::good();
        }
        let list = match CopyList::decode(list) {
            Ok(list) => list,
            Err(sense) => return self.check(&sense),
        };
        let nexuses = self.owner.upgrade().map_or(Vec::new(), |session| session.nexuses());
        let mut outcome = CopyOutcome { done: false, segments: 0, bytes: 0 };
        let done = self.copy_segments(&list, &nexuses, &mut outcome).await;
        outcome.done = done.is_ok();
        if let Some(identifier) = list.list {
            self.outcomes.lock().copies.insert(identifier, outcome);
        }
        done.map_or_else(|failure| self.check(&failure.sense()), |()| Response::good())
    }

    /// Checks all segments before the first one is copied.
    async fn copy_segments(
        &self,
        list: &CopyList,
        nexuses: &[Arc<Nexus>],
        outcome: &mut CopyOutcome,
    ) -> Result<(), Failure> {
        let find = |index: u16| -> Result<&Nexus, Sense> {
            let designator = list.targets.get(usize::from(index));
            let designator = designator.ok_or(aborted(codes::COPY_TARGET_NOT_REACHABLE))?;
            let all = std::iter::once(self).chain(nexuses.iter().map(|n| &**n));
            let mut named = all.filter(|n| designator.names(n.unit.identity()));
            named.next().ok_or(aborted(codes::COPY_TARGET_NOT_REACHABLE))
        };
        let (mut steps, mut underway): (Vec<Step<'_>>, _) = (Vec::new(), Vec::new());
        for &segment in &list.segments {
            let (source, destination) = (find(segment.source)?, find(segment.destination)?);
            underway.extend([source, destination].map(|nexus| nexus.member.gate.enter()));
            let step = Step { source, destination, segment, segments: 1 };
            step.check()?;
            if step.is_within_a_unit() && segment.offset.abs_diff(segment.source_offset) < segment.len {
                return Err(Sense::illegal(codes::INVALID_FIELD_IN_PARAMETER_LIST).into());
            }
            if !steps.last_mut().is_some_and(|last| last.join(&step)) {
                steps.push(step);
            }
        }
        for step in &steps {
            let CopySegment { source_offset, offset, len, .. } = step.segment;
            let [source, destination] = step.units();
            // Access or reservations can have changed during the steps before.
            step.check()?;
            destination.note_change(offset, len);
            destination.disk().copy_from(offset, source.disk(), source_offset, len).await?;
            outcome.segments += step.segments;
            outcome.bytes += len;
        }
        Ok(())
    }

    /// Checks whether a copy of this initiator can read, or write, a range of this unit.
    fn check_copy(&self, offset: u64, len: u64, access: Access) -> Result<(), Sense> {
        let end = self.unit.blocks() * u64::from(BLOCK);
        let within = offset.checked_add(len).is_some_and(|e| e <= end);
        if !within {
            return Err(aborted(codes::NO_ADDITIONAL_SENSE));
        }
        let refused = self.is_withdrawn() || (access == Access::Write && self.is_protected());
        if refused || self.unit.conflicts(&self.member, access) {
            return Err(aborted(codes::THIRD_PARTY_DEVICE_FAILURE));
        }
        Ok(())
    }

    /// Executes RECEIVE COPY STATUS(LID1).
    pub(super) fn copy_status(&self, list: u8, allocation: u32) -> Response {
        let outcomes = self.outcomes.lock();
        match outcomes.copies.get(list) {
            Some(outcome) => Response::data(copy_status(outcome), allocation),
            None => self.check(&Sense::cdb(2)),
        }
    }

    /// Executes POPULATE TOKEN.
    pub(super) fn populate_token(&self, list: u32, parameters: &[u8]) -> Response {
        let made = PopulateList::decode(parameters, &self.rules()).and_then(|parsed| {
            let (unit, own): (_, Weak<dyn TokenSource>) = (&self.unit, self.own.clone());
            let timeout = Duration::from_secs(parsed.timeout.into());
            let set_flag = || unit.set_flag(HAS_TOKENS, true);
            unit.tokens.grant(&unit.all_tokens, (own, self.port().clone()), parsed.ranges, timeout, set_flag)
        });
        let grant = match made {
            Ok(grant) => grant,
            Err(sense) => return self.check(&sense),
        };
        let token = Some(grant.token.encode(self.unit.identity(), grant.bytes()));
        let outcome = TokenOutcome { action: POPULATE_TOKEN, failure: None, bytes: grant.bytes(), token };
        self.outcomes.lock().tokens.insert(list, outcome);
        Response::good()
    }

    /// Executes WRITE USING TOKEN.
    pub(super) async fn write_using_token(&self, list: u32, parameters: &[u8]) -> Response {
        let parsed = match WriteList::decode(parameters, &self.rules()) {
            Ok(parsed) => parsed,
            Err(sense) => return self.check(&sense),
        };
        let mut bytes = 0;
        let failure = self.write_ranges(&parsed, &mut bytes).await.err().map(|failure| failure.sense());
        let outcome = TokenOutcome { action: WRITE_USING_TOKEN, failure, bytes, token: None };
        self.outcomes.lock().tokens.insert(list, outcome);
        failure.map_or_else(Response::good, |sense| self.check(&sense))
    }

    async fn write_ranges(&self, list: &WriteList, done: &mut u64) -> Result<(), Failure> {
        match &list.token {
            None => self.zero_ranges(&list.ranges, done).await?,
            Some(token) => {
                let grant = self.unit.all_tokens.find(token)?;
                self.copy_granted(list, &grant, done).await?;
                if list.delete {
                    self.unit.all_tokens.delete(&grant);
                }
            }
        }
        Ok(())
    }

    /// Copies a granted range. The copy is durable on return, as each copy by
    /// [`DiskHandle::copy_from`](forebay_engine::DiskHandle::copy_from).
    async fn copy_granted(&self, list: &WriteList, grant: &Grant, done: &mut u64) -> Result<(), Failure> {
        let wanted: u64 = list.ranges.iter().map(|r| r.len).sum();
        if list.offset.checked_add(wanted).is_none_or(|end| end > grant.bytes()) {
            return Err(Sense::parameter(8).into());
        }
        for (from, to) in pair(&grant.ranges, list.offset, &list.ranges) {
            let revoked = Failure::Sense(Sense::illegal(codes::TOKEN_REVOKED));
            let source = grant.source.upgrade().ok_or(Sense::illegal(codes::TOKEN_UNKNOWN))?;
            let (disk, _reading) = source.begin_read(from, to.len)?;
            // The copy must not prolong the life of the nexus, whose RESERVE ends with its session.
            drop(source);
            self.unit.note_change(to.offset, to.len);
            // The previous line revokes the token if this range overlaps the token's own ranges.
            if grant.is_revoked() {
                return Err(revoked);
            }
            self.disk().copy_from(to.offset, &disk, from, to.len).await?;
            // A command that changed the source during the copy revoked the token first.
            if grant.is_revoked() {
                return Err(revoked);
            }
            *done += to.len;
        }
        Ok(())
    }

    /// Executes RECEIVE ROD TOKEN INFORMATION.
    pub(super) fn token_information(&self, list: u32, allocation: u32) -> Response {
        let outcomes = self.outcomes.lock();
        match outcomes.tokens.get(list) {
            Some(outcome) => Response::data(token_information(outcome), allocation),
            None => self.check(&Sense::cdb(2)),
        }
    }
}

impl TokenSource for Nexus {
    fn begin_read(&self, offset: u64, len: u64) -> Result<(Arc<DiskHandle>, Underway), Sense> {
        // The command enters the gate before the checks, so that a later withdrawal waits for it.
        let reading = self.member.gate.enter();
        if self.is_withdrawn() {
            return Err(Sense::illegal(codes::TOKEN_REVOKED));
        }
        self.check_copy(offset, len, Access::Read)?;
        Ok((self.disk().clone(), reading))
    }
}

/// Pairs the ranges `from`, without their first `skip` bytes, with the ranges `to`. Returns pieces that lie
/// within one range on both sides: the offset to read from, and the range to write.
fn pair(from: &[BlockRange], mut skip: u64, to: &[BlockRange]) -> Vec<(u64, BlockRange)> {
    let mut sources = from.iter().filter_map(|range| {
        let skipped = skip.min(range.len);
        skip -= skipped;
        (range.len > skipped).then(|| BlockRange { offset: range.offset + skipped, len: range.len - skipped })
    });
    let mut pieces = Vec::new();
    let mut source = BlockRange { offset: 0, len: 0 };
    for range in to {
        let mut left = *range;
        while left.len > 0 {
            if source.len == 0 {
                let Some(next) = sources.next() else { return pieces };
                source = next;
            }
            let len = left.len.min(source.len);
            pieces.push((source.offset, BlockRange { offset: left.offset, len }));
            (left.offset, left.len) = (left.offset + len, left.len - len);
            (source.offset, source.len) = (source.offset + len, source.len - len);
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_and_destination_ranges_are_paired_piece_by_piece() {
        let range = |offset, len| BlockRange { offset, len };
        let from = [range(100, 10), range(0, 0), range(50, 5), range(200, 20)];
        let to = [range(1000, 8), range(2000, 0), range(3000, 10)];
        assert_eq!(
            pair(&from, 4, &to),
            [(104, range(1000, 6)), (50, range(1006, 2)), (52, range(3000, 3)), (200, range(3003, 7)),]
        );
        assert_eq!(pair(&from, 35, &[]), []);
    }
}
