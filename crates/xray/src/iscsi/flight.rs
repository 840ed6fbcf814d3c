//! The commands in progress in a session.
//!
//! A slot is free, or holds one command from the moment it is queued until its status arrives. The task tag
//! contains the index of the slot and its use count, so that a response to a command that is already
//! answered, or was never sent, is detected. Data out of order, unrequested data and unreported missing data
//! are detected as well.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::time::Instant;

use super::IscsiError;
use super::command::{Command, Status, Transfer};
use super::login::{Agreed, LoggedIn};
use super::parser::Sink;
use super::pdu::{self, BHS, DataOut, FINAL, NO_TAG, Numbers, READ, Reply, WRITE, opcode};
use crate::socket;

/// Bytes of sense data that are kept, including the preceding length.
const SENSE: usize = 2 + 252;

/// A command that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    /// Slot of the command, which is free again.
    pub slot: usize,
    /// Status of the command.
    pub status: Status,
    /// Bytes of data that were received.
    pub got: u32,
    /// When the status arrived.
    pub at: Instant,
}

/// A slot: a command, or room for a command.
struct Slot {
    busy: bool,
    uses: u16,
    transfer: Transfer,
    keep: bool,
    data: Vec<u8>,
    got: u32,
    /// Expected DataSN or R2TSN.
    next_sn: u32,
}

/// A PDU to be sent, with data of a slot.
struct Part {
    header: [u8; BHS],
    slot: usize,
    data: Range<usize>,
}

/// All slots, the queue of PDUs to be sent, and the commands that have ended.
pub(super) struct Flight {
    lun: u8,
    agreed: Agreed,
    numbers: Numbers,
    max_cmd_sn: u32,
    slots: Vec<Slot>,
    free: Vec<usize>,
    unsent: VecDeque<Part>,
    sent_of_first: usize,
    sense: Vec<u8>,
    done: VecDeque<Done>,
    /// Whether the target has answered the logout.
    pub left: bool,
    /// The moment at which the replies being parsed were received.
    pub now: Instant,
}

impl Flight {
    /// Room for `depth` commands.
    pub fn new(lun: u8, login: LoggedIn, depth: usize) -> Flight {
        let slot = |_| Slot {
            busy: false,
            uses: 0,
            transfer: Transfer::None,
            keep: false,
            data: Vec::new(),
            got: 0,
            next_sn: 0,
        };
        Flight {
            lun,
            agreed: login.agreed,
            numbers: login.numbers,
            max_cmd_sn: login.max_cmd_sn,
            slots: (0..depth).map(slot).collect(),
            free: (0..depth).rev().collect(),
            unsent: VecDeque::new(),
            sent_of_first: 0,
            sense: Vec::new(),
            done: VecDeque::new(),
            left: false,
            now: Instant::now(),
        }
    }

    /// Whether another command can be queued: a slot is free, and the target's window is open.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty() && self.max_cmd_sn.wrapping_sub(self.numbers.cmd_sn) as i32 >= 0
    }

    /// Number of commands queued and not answered.
    pub fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether PDUs wait to be sent.
    pub fn unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The next command that has ended.
    pub fn next_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// The data received for the last command of a slot, if it was kept.
    pub fn kept(&self, slot: usize) -> &[u8] {
        &self.slots[slot].data
    }

    /// Queues a command; there must be room. `fill` writes its outgoing data; with `keep`, received data is
    /// kept.
    pub fn queue(&mut self, command: &Command, keep: bool, fill: impl FnOnce(&mut [u8])) -> usize {
        let Some(index) = self.free.pop() else { unreachable!("the caller asked for room") };
        let slot = &mut self.slots[index];
        *slot = Slot {
            busy: true,
            uses: slot.uses.wrapping_add(1),
            transfer: command.transfer,
            keep,
            data: std::mem::take(&mut slot.data),
            got: 0,
            next_sn: 0,
        };
        let (flags, expected, out) = match command.transfer {
            Transfer::None => (0, 0, 0),
            Transfer::In(len) => (READ, len, 0),
            Transfer::Out(len) => (WRITE, len, len as usize),
        };
        slot.data.resize(if keep { expected } else { out as u32 } as usize, 0);
        if out > 0 {
            fill(&mut slot.data);
        }
        let a = self.agreed;
        let first = out.min(a.first_burst);
        let immediate = if a.immediate_data { first.min(a.max_send) } else { 0 };
        let unsolicited = if a.initial_r2t { immediate } else { first };
        let last = if immediate == unsolicited { FINAL } else { 0 };
        let tag = self.tag(index);
        let header =
            pdu::command(flags | last, self.lun, tag, self.numbers, expected, immediate, &command.cdb);
        self.numbers.cmd_sn = self.numbers.cmd_sn.wrapping_add(1);
        self.unsent.push_back(Part { header, slot: index, data: 0..immediate });
        self.queue_data(index, immediate..unsolicited, NO_TAG);
        index
    }

    /// Queues the logout.
    pub fn queue_logout(&mut self) {
        let header = pdu::logout(NO_TAG - 1, self.numbers);
        self.unsent.push_back(Part { header, slot: 0, data: 0..0 });
    }

    fn queue_data(&mut self, index: usize, range: Range<usize>, transfer_tag: u32) {
        let starts = range.clone().step_by(self.agreed.max_send);
        for (data_sn, at) in (0..).zip(starts) {
            let end = (at + self.agreed.max_send).min(range.end);
            let data = DataOut {
                last: end == range.end,
                lun: self.lun,
                tag: self.tag(index),
                transfer_tag,
                exp_stat_sn: self.numbers.exp_stat_sn,
                data_sn,
                offset: at,
                len: end - at,
            };
            self.unsent.push_back(Part { header: data.header(), slot: index, data: at..end });
        }
    }

    /// Passes unsent bytes to `send`, which returns the number of bytes it accepted. Returns `false` if it
    /// accepts none now.
    pub fn send(
        &mut self,
        send: impl FnOnce(&[IoSlice<'_>]) -> io::Result<Option<usize>>,
    ) -> io::Result<bool> {
        // All data consists of whole sectors, so no PDU needs padding.
        let messages =
            self.unsent.iter().map(|part| [&part.header[..], &self.slots[part.slot].data[part.data.clone()]]);
        let complete = socket::send_messages(messages, &mut self.sent_of_first, send)?;
        self.unsent.drain(..complete.unwrap_or(0));
        Ok(complete.is_some())
    }

    fn tag(&self, index: usize) -> u32 {
        u32::from(self.slots[index].uses) << 16 | index as u32
    }

    fn slot_of(&self, tag: u32) -> Result<usize, IscsiError> {
        let index = (tag & 0xffff) as usize;
        match self.slots.get(index) {
            Some(slot) if slot.busy && self.tag(index) == tag => Ok(index),
            _ => Err(IscsiError::Protocol("a response to no command")),
        }
    }

    /// Checks that data is in order and was requested.
    fn data_in(&mut self, header: &Reply) -> Result<(), IscsiError> {
        let index = self.slot_of(header.tag())?;
        let slot = &mut self.slots[index];
        let wanted = if let Transfer::In(len) = slot.transfer { len } else { 0 };
        let end = u64::from(slot.got) + header.data_len() as u64;
        if header.offset() != slot.got || header.sn() != slot.next_sn || end > wanted.into() {
            return Err(IscsiError::Protocol("data out of order or not requested"));
        }
        slot.next_sn += 1;
        Ok(())
    }

    fn r2t(&mut self, header: &Reply) -> Result<(), IscsiError> {
        let index = self.slot_of(header.tag())?;
        let slot = &mut self.slots[index];
        let wanted = if let Transfer::Out(len) = slot.transfer { len } else { 0 };
        let (start, len) = (header.offset() as usize, header.desired() as usize);
        if header.sn() != slot.next_sn
            || len == 0
            || len > self.agreed.max_burst
            || start + len > wanted as usize
        {
            return Err(IscsiError::Protocol("an R2T outside the data of the command"));
        }
        slot.next_sn += 1;
        self.queue_data(index, start..start + len, header.transfer_tag());
        Ok(())
    }

    fn end_command(&mut self, header: &Reply, status: Status) -> Result<(), IscsiError> {
        let index = self.slot_of(header.tag())?;
        let slot = &mut self.slots[index];
        if let (Transfer::In(len), Status::Good) = (slot.transfer, status)
            && slot.got.saturating_add(header.underflow()) != len
        {
            return Err(IscsiError::Protocol("missing data without a residual count"));
        }
        slot.busy = false;
        if slot.keep {
            slot.data.truncate(slot.got as usize);
        }
        self.done.push_back(Done { slot: index, status, got: slot.got, at: self.now });
        self.free.push(index);
        Ok(())
    }

    fn take_status(&mut self, header: &Reply) -> Result<(), IscsiError> {
        if header.stat_sn() != self.numbers.exp_stat_sn {
            return Err(IscsiError::Protocol("a missing status"));
        }
        self.numbers.exp_stat_sn = self.numbers.exp_stat_sn.wrapping_add(1);
        Ok(())
    }
}

/// The flag of a Data-In PDU that contains the status.
const HAS_STATUS: u8 = 0x01;

impl Sink for Flight {
    fn begin(&mut self, header: &Reply) -> Result<(), IscsiError> {
        if header.max_cmd_sn().wrapping_sub(self.max_cmd_sn) as i32 > 0 {
            self.max_cmd_sn = header.max_cmd_sn();
        }
        self.sense.clear();
        if header.opcode() == opcode::DATA_IN { self.data_in(header) } else { Ok(()) }
    }

    fn data(&mut self, header: &Reply, at: usize, bytes: &[u8]) {
        match header.opcode() {
            opcode::DATA_IN => {
                let slot = &mut self.slots[(header.tag() & 0xffff) as usize];
                if slot.keep {
                    let start = header.offset() as usize + at;
                    slot.data[start..start + bytes.len()].copy_from_slice(bytes);
                }
                slot.got += bytes.len() as u32;
            }
            opcode::RESPONSE => {
                self.sense.extend_from_slice(&bytes[..bytes.len().min(SENSE - self.sense.len())]);
            }
            _ => {}
        }
    }

    fn end(&mut self, header: &Reply) -> Result<(), IscsiError> {
        let (response, status) = header.response();
        match header.opcode() {
            opcode::DATA_IN if header.flag(HAS_STATUS) => {
                self.take_status(header)?;
                self.end_command(header, Status::of(status, &[]))
            }
            opcode::DATA_IN => Ok(()),
            opcode::RESPONSE if response != 0 => {
                Err(IscsiError::Protocol("a command not completed at the target"))
            }
            opcode::RESPONSE => {
                self.take_status(header)?;
                let status = Status::of(status, self.sense.get(2..).unwrap_or_default());
                self.end_command(header, status)
            }
            opcode::R2T => self.r2t(header),
            opcode::NOP_IN if header.transfer_tag() == NO_TAG => Ok(()),
            opcode::NOP_IN => {
                let header = pdu::nop_out(header.lun(), header.transfer_tag(), self.numbers);
                self.unsent.push_back(Part { header, slot: 0, data: 0..0 });
                Ok(())
            }
            opcode::LOGOUT_RESPONSE => {
                self.left = true;
                Ok(())
            }
            // RFC 7143, 11.9: the target ends this connection, or all of the session.
            opcode::ASYNC if (1..=3).contains(&header.async_event()) => {
                Err(IscsiError::Closed(self.under_way()))
            }
            opcode::ASYNC => Err(IscsiError::Protocol("an asynchronous message")),
            opcode::REJECT => Err(IscsiError::Protocol("a rejected PDU")),
            _ => Err(IscsiError::Protocol("a PDU of an unknown kind")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parser::Parser;
    use super::*;

    fn flight(initial_r2t: bool) -> Flight {
        let agreed =
            Agreed { initial_r2t, immediate_data: true, max_send: 4096, max_burst: 8192, first_burst: 8192 };
        let numbers = Numbers { cmd_sn: 1, exp_stat_sn: 5 };
        Flight::new(2, LoggedIn { agreed, numbers, max_cmd_sn: 2 }, 4)
    }

    /// All unsent PDUs: opcode, flags, transfer tag or expected length, DataSN, offset, length.
    fn sent(flight: &mut Flight) -> Vec<(u8, u8, u32, u32, u32, usize)> {
        let mut all = Vec::new();
        while flight.unsent() {
            let take = |parts: &[IoSlice<'_>]| {
                // A socket that accepts little at a time.
                let bytes: Vec<u8> = parts.iter().flat_map(|p| p.iter().copied()).take(1000).collect();
                all.extend_from_slice(&bytes);
                Ok(Some(bytes.len()))
            };
            assert!(flight.send(take).expect("sends"));
        }
        let mut pdus = Vec::new();
        let mut rest = &all[..];
        while let Some((header, behind)) = rest.split_first_chunk::<BHS>() {
            let r = Reply(*header);
            // A command has its CDB at the position of Data-Out's numbers.
            let (sn, offset) = if header[0] == opcode::DATA_OUT { (r.sn(), r.offset()) } else { (0, 0) };
            pdus.push((header[0], header[1], r.transfer_tag(), sn, offset, r.data_len()));
            rest = &behind[r.data_len()..];
        }
        pdus
    }

    fn reply(opcode: u8, flags: u8, fields: &[(usize, u32)], data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; BHS];
        (bytes[0], bytes[1]) = (opcode, flags);
        bytes[20..24].fill(0xff);
        for (at, v) in fields {
            bytes[*at..at + 4].copy_from_slice(&v.to_be_bytes());
        }
        bytes[4..8].copy_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn feed(flight: &mut Flight, bytes: &[u8]) -> Result<(), IscsiError> {
        Parser::default().feed(bytes, flight)
    }

    #[test]
    fn a_long_write_sends_unsolicited_data_and_the_rest_after_r2ts() {
        let mut f = flight(false);
        f.queue(&Command::write(0, 16384), false, |data| data.fill(7));
        assert_eq!(
            sent(&mut f),
            [(0x01, WRITE | 1, 16384, 0, 0, 4096), (0x05, FINAL, NO_TAG, 0, 4096, 4096)]
        );
        let tag = 1 << 16;
        let r2t = |sn, offset| {
            reply(0x31, FINAL, &[(16, tag), (20, 99), (32, 9), (36, sn), (40, offset), (44, 8192)], &[])
        };
        feed(&mut f, &r2t(0, 8192)).expect("an R2T within the data");
        assert_eq!(sent(&mut f), [(0x05, 0, 99, 0, 8192, 4096), (0x05, FINAL, 99, 1, 12288, 4096)]);
        assert!(feed(&mut f, &r2t(1, 12288)).is_err(), "it asks for what there is not");
        feed(&mut f, &reply(0x21, FINAL, &[(16, tag), (24, 5), (32, 9)], &[])).expect("the status");
        let done = f.next_done().expect("the command has ended");
        assert_eq!((done.slot, done.status, f.under_way()), (0, Status::Good, 0));
    }

    #[test]
    fn with_initial_r2t_only_immediate_data_goes_by_itself() {
        let mut f = flight(true);
        f.queue(&Command::write(0, 8192), false, |_| ());
        let pdus = sent(&mut f);
        assert_eq!((pdus.len(), pdus[0].1, pdus[0].5), (1, FINAL | WRITE | 1, 4096));
    }

    #[test]
    fn reads_end_with_status_in_data_or_with_a_response() {
        let mut f = flight(false);
        let first = f.queue(&Command::read(0, 1024), true, |_| ());
        f.queue(&Command::read(0, 1024), true, |_| ());
        assert!(!f.has_room(), "the window is used up");
        sent(&mut f);
        let tags = [1 << 16, 1 << 16 | 1];
        let piece = |tag, sn, offset, flags, stat| {
            reply(
                0x25,
                flags,
                &[(16, tag), (24, stat), (32, 9), (36, sn), (40, offset)],
                &[sn as u8 + 1; 512],
            )
        };
        feed(&mut f, &[piece(tags[0], 0, 0, 0, 0), piece(tags[0], 1, 512, FINAL | HAS_STATUS, 5)].concat())
            .expect("both pieces");
        assert_eq!(f.next_done().map(|d| (d.slot, d.got)), Some((first, 1024)));
        assert_eq!(f.kept(first), [[1; 512], [2; 512]].concat());
        assert!(f.has_room(), "the window has opened");

        // Short, according to the residual count.
        feed(&mut f, &piece(tags[1], 0, 0, FINAL, 0)).expect("a piece");
        let short =
            |residual| reply(0x21, FINAL | 0x02, &[(16, tags[1]), (24, 6), (32, 9), (44, residual)], &[]);
        feed(&mut f, &short(512)).expect("a residual count");
        assert_eq!(f.next_done().map(|d| (d.got, f.kept(d.slot).len())), Some((512, 512)));
        assert!(feed(&mut f, &short(512)).is_err(), "it has been answered");
    }

    #[test]
    fn protocol_violations_are_detected() {
        let data = |fields: &[(usize, u32)], len| {
            let fields = [&[(16, 1 << 16)], fields].concat();
            reply(opcode::DATA_IN, 0, &fields, &vec![0; len])
        };
        let status = |stat_sn| reply(opcode::RESPONSE, FINAL, &[(16, 1 << 16), (24, stat_sn)], &[]);
        for (what, wrong) in [
            ("data out of order", data(&[(36, 1)], 512)),
            ("data at the wrong place", data(&[(40, 512)], 512)),
            ("more than was asked for", data(&[], 2048)),
            ("missing data", status(5)),
            ("a missing status", status(6)),
        ] {
            let mut f = flight(false);
            f.queue(&Command::read(0, 1024), true, |_| ());
            assert!(feed(&mut f, &wrong).is_err(), "{what}");
        }
    }

    #[test]
    fn pings_are_answered_and_sense_data_is_parsed() {
        let mut f = flight(false);
        f.queue(&Command::test_unit_ready(), false, |_| ());
        sent(&mut f);
        feed(&mut f, &reply(0x20, FINAL, &[(16, NO_TAG), (20, 42), (32, 9)], &[])).expect("a ping");
        assert_eq!(sent(&mut f)[0].2, 42);
        let sense = [0, 8, 0x72, 6, 0x29, 0, 0, 0, 0, 0];
        let mut response = reply(0x21, FINAL, &[(16, 1 << 16), (24, 5)], &sense);
        response[3] = 2;
        feed(&mut f, &response).expect("a check condition");
        assert!(f.next_done().expect("the command has ended").status.is_attention());
    }
}
