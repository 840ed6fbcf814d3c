//! Memory of messages that were sent, for the next messages of the same thread.
//!
//! A message with the data of a long read is filled completely before it is sent, but safe code first has to
//! initialise its memory. A message in the memory of an earlier message saves this.

use std::cell::RefCell;

/// Maximum number of messages that are kept.
const MAX_SPARES: usize = 4;
/// Minimum and maximum length of a message that is kept, in bytes. The maximum has room for the longest piece
/// of a read and its header.
const LENGTHS: std::ops::RangeInclusive<usize> = (64 << 10)..=(1 << 20) + 4096;

/// The spare messages of a thread. They take at most 4 MiB, which belong to the fixed memory of the thread.
#[derive(Default)]
pub(crate) struct Spares(RefCell<Vec<Vec<u8>>>);

impl Spares {
    /// A message of `len` bytes. Its contents are unspecified, and may be the data of another client: the
    /// caller must fill all of them, or drop the message.
    pub fn take(&self, len: usize) -> Vec<u8> {
        let mut spares = self.0.borrow_mut();
        // A larger spare would hold memory for which the message is not charged.
        let fitting = |spare: &Vec<u8>| (len..=len + len / 8).contains(&spare.capacity());
        match spares.iter().rposition(fitting) {
            Some(at) => {
                let mut spare = spares.swap_remove(at);
                spare.resize(len, 0);
                spare
            }
            None => vec![0; len],
        }
    }

    /// Keeps the memory of a message that was sent.
    pub fn keep(&self, message: Vec<u8>) {
        let mut spares = self.0.borrow_mut();
        if spares.len() < MAX_SPARES && LENGTHS.contains(&message.capacity()) {
            spares.push(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_takes_the_memory_of_one_of_similar_length() {
        let spares = Spares::default();
        spares.keep(vec![7; 100 << 10]);
        assert_eq!(spares.take(200 << 10)[0], 0, "it would not fit");
        assert_eq!(spares.take(80 << 10)[0], 0, "it would be too large");
        let again = spares.take(90 << 10);
        assert_eq!((again[0], again.len()), (7, 90 << 10));
        assert_eq!(spares.take(90 << 10)[0], 0, "it is in use");
    }

    #[test]
    fn few_messages_of_few_lengths_are_kept() {
        let spares = Spares::default();
        (0..2 * MAX_SPARES).for_each(|_| spares.keep(vec![0; 64 << 10]));
        spares.keep(vec![0; 2 << 20]);
        spares.keep(vec![0; 4096]);
        assert_eq!(spares.0.borrow().len(), MAX_SPARES);
    }
}
