//! Receiving the data of a command: immediate, unsolicited, or solicited with R2Ts.
//!
//! A session solicits the data of a command only when it has memory for all of it (`task::Tasks`). The data
//! arrives in order (DataPDUInOrder and DataSequenceInOrder are always Yes), so it is appended to a vector;
//! data out of order is an error of the initiator.

use std::collections::VecDeque;

use forebay_wire::iscsi::{DataOut, NO_TAG};

use crate::plane::Charge;

/// The data of a command that is being received.
pub(super) struct Gather {
    data: Vec<u8>,
    charge: Option<Charge>,
    /// Bytes of data that the command uses.
    wanted: usize,
    /// Memory for all of the data was reserved.
    begun: bool,
    /// Bytes that were received, including any beyond `wanted`.
    received: usize,
    /// Unsolicited data that can still arrive: the number of bytes, and the next DataSN.
    unsolicited: Option<(usize, u32)>,
    /// Solicited data that has not arrived yet, in order.
    sequences: VecDeque<Sequence>,
    /// Bytes that were received or solicited.
    solicited: usize,
    next_r2t_sn: u32,
}

struct Sequence {
    transfer_tag: u32,
    left: usize,
    next_sn: u32,
}

/// An R2T that has to be sent.
pub(super) struct Solicit {
    pub r2t_sn: u32,
    pub offset: u32,
    pub len: u32,
}

/// Data that is out of order or exceeds its sequence.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OutOfOrder;

impl Gather {
    /// Starts with the immediate data. The initiator can send up to `unsolicited` bytes without an R2T,
    /// including the immediate data.
    pub fn new(wanted: usize, immediate: &[u8], unsolicited: Option<usize>) -> Gather {
        let mut data = Vec::with_capacity(Gather::first_bytes(wanted, immediate.len(), unsolicited));
        data.extend_from_slice(&immediate[..immediate.len().min(wanted)]);
        Gather {
            data,
            charge: None,
            wanted,
            begun: false,
            received: immediate.len(),
            unsolicited: unsolicited.map(|most| (most.saturating_sub(immediate.len()), 0)),
            sequences: VecDeque::new(),
            solicited: immediate.len(),
            next_r2t_sn: 0,
        }
    }

    /// Bytes of memory that [`Gather::new`] allocates.
    pub fn first_bytes(wanted: usize, immediate: usize, unsolicited: Option<usize>) -> usize {
        wanted.min(immediate.max(unsolicited.unwrap_or(0)))
    }

    /// Adds a charge for the memory of the data.
    pub fn charge(&mut self, more: Charge) {
        match &mut self.charge {
            Some(charge) => charge.join(more),
            none => *none = Some(more),
        }
    }

    /// Bytes of memory that [`Gather::begin`] allocates.
    pub fn missing(&self) -> usize {
        self.wanted.saturating_sub(self.data.capacity())
    }

    /// Whether unsolicited data is outstanding.
    pub fn awaits_unsolicited(&self) -> bool {
        self.unsolicited.is_some()
    }

    /// Whether all data of the command was received.
    pub fn is_whole(&self) -> bool {
        self.data.len() == self.wanted && self.unsolicited.is_none() && self.sequences.is_empty()
    }

    /// Returns the data and its charge.
    pub fn into_data(self) -> (Vec<u8>, Option<Charge>) {
        (self.data, self.charge)
    }

    /// Bytes of data that the command uses.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Reserves memory for all of the data, so that it can be solicited.
    pub fn begin(&mut self) {
        self.begun = true;
        self.data.reserve_exact(self.wanted - self.data.len());
    }

    /// Whether memory for all of the data was reserved.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// The next R2T to send, with this `transfer_tag`; `None` if nothing can be solicited, or if
    /// `max_outstanding` R2Ts are outstanding.
    pub fn solicit(
        &mut self,
        transfer_tag: u32,
        max_burst: usize,
        max_outstanding: usize,
    ) -> Option<Solicit> {
        let waits = !self.begun || self.unsolicited.is_some();
        if waits || self.solicited >= self.wanted || self.sequences.len() >= max_outstanding {
            return None;
        }
        let len = (self.wanted - self.solicited).min(max_burst);
        let solicit = Solicit { r2t_sn: self.next_r2t_sn, offset: self.solicited as u32, len: len as u32 };
        self.sequences.push_back(Sequence { transfer_tag, left: len, next_sn: 0 });
        self.solicited += len;
        self.next_r2t_sn += 1;
        Some(solicit)
    }

    /// Receives a Data-Out PDU.
    pub fn take(&mut self, pdu: &DataOut<'_>) -> Result<(), OutOfOrder> {
        let len = pdu.data.len();
        let (left, next_sn) = match (&mut self.unsolicited, self.sequences.front_mut()) {
            (Some((left, next_sn)), _) if pdu.transfer_tag == NO_TAG => (left, next_sn),
            (None, Some(s)) if s.transfer_tag == pdu.transfer_tag => (&mut s.left, &mut s.next_sn),
            _ => return Err(OutOfOrder),
        };
        if pdu.offset as usize != self.received || pdu.data_sn != *next_sn || len > *left {
            return Err(OutOfOrder);
        }
        *left -= len;
        *next_sn += 1;
        let solicited_rest = pdu.transfer_tag != NO_TAG && *left > 0;
        self.received += len;
        let room = self.wanted - self.data.len();
        self.data.extend_from_slice(&pdu.data[..len.min(room)]);
        if pdu.is_final {
            if pdu.transfer_tag == NO_TAG {
                self.unsolicited = None;
                self.solicited = self.received;
            } else if solicited_rest {
                return Err(OutOfOrder);
            } else {
                self.sequences.pop_front();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pdu(transfer_tag: u32, data_sn: u32, offset: u32, is_final: bool, data: &[u8]) -> DataOut<'_> {
        DataOut { tag: 1, transfer_tag, data_sn, offset, is_final, data }
    }

    #[test]
    fn immediate_unsolicited_and_solicited_data_is_joined() {
        let mut g = Gather::new(10, &[1, 2], Some(5));
        g.begin();
        assert!(g.solicit(7, 3, 1).is_none(), "no R2T while unsolicited data is outstanding");
        g.take(&pdu(NO_TAG, 0, 2, false, &[3])).unwrap();
        g.take(&pdu(NO_TAG, 1, 3, true, &[4])).unwrap();
        assert_eq!(g.wanted(), 10);
        let s = g.solicit(7, 3, 2).unwrap();
        assert_eq!((s.r2t_sn, s.offset, s.len), (0, 4, 3));
        let s = g.solicit(8, 3, 2).unwrap();
        assert_eq!((s.r2t_sn, s.offset, s.len), (1, 7, 3));
        assert!(g.solicit(9, 3, 2).is_none());
        g.take(&pdu(7, 0, 4, true, &[5, 6, 7])).unwrap();
        assert!(!g.is_whole());
        g.take(&pdu(8, 0, 7, false, &[8, 9])).unwrap();
        g.take(&pdu(8, 1, 9, true, &[10])).unwrap();
        assert!(g.is_whole());
        assert_eq!(g.into_data().0, (1..=10).collect::<Vec<u8>>());
    }

    #[test]
    fn data_beyond_the_command_length_is_dropped() {
        let mut g = Gather::new(2, &[1], Some(4));
        g.take(&pdu(NO_TAG, 0, 1, true, &[2, 3, 4])).unwrap();
        assert!(g.is_whole());
        assert_eq!(g.into_data().0, [1, 2]);
    }

    #[test]
    fn data_out_of_order_is_refused() {
        let begun = || {
            let mut g = Gather::new(8, &[], None);
            assert!(g.solicit(6, 8, 1).is_none(), "no R2T before memory is reserved");
            g.begin();
            g.solicit(7, 8, 1).unwrap();
            g
        };
        for bad in [
            pdu(NO_TAG, 0, 0, true, &[0; 8]),
            pdu(6, 0, 0, true, &[0; 8]),
            pdu(7, 1, 0, true, &[0; 8]),
            pdu(7, 0, 1, false, &[0; 4]),
            pdu(7, 0, 0, true, &[0; 9]),
            pdu(7, 0, 0, true, &[0; 7]),
        ] {
            assert_eq!(begun().take(&bad), Err(OutOfOrder), "{bad:?}");
        }
        let mut g = Gather::new(8, &[], Some(4));
        assert_eq!(g.take(&pdu(NO_TAG, 0, 0, true, &[0; 5])), Err(OutOfOrder));
    }
}
