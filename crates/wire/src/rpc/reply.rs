//! Replies (RFC 5531, section 9).

use super::call::AuthError;
use super::xdr::Encoder;
use super::{CallError, MARK};

const REPLY: u32 = 1;
const ACCEPTED: u32 = 0;
const DENIED: u32 = 1;
const RPC_VERSION: u32 = 2;
const LAST: u32 = 1 << 31;

/// A reply to a call, in a record of one fragment.
#[derive(Debug)]
pub struct Reply(Encoder);

impl Reply {
    fn begin(xid: u32, capacity: usize) -> Reply {
        let mut xdr = Encoder::with_capacity(MARK + 24 + capacity);
        xdr.u32(0).u32(xid).u32(REPLY);
        Reply(xdr)
    }

    /// An accepted reply with this status, and without a verifier.
    fn accepted(xid: u32, stat: u32, capacity: usize) -> Reply {
        let mut reply = Reply::begin(xid, capacity);
        reply.0.u32(ACCEPTED).u32(0).u32(0).u32(stat);
        reply
    }

    /// A reply to a call that was performed. Its results follow, of about `capacity` bytes.
    pub fn success(xid: u32, capacity: usize) -> Reply {
        Reply::accepted(xid, 0, capacity)
    }

    /// `PROG_UNAVAIL`: the server does not have the program.
    pub fn no_program(xid: u32) -> Vec<u8> {
        Reply::accepted(xid, 1, 0).finish()
    }

    /// `PROG_MISMATCH`: the server has the program in these versions only.
    pub fn versions(xid: u32, low: u32, high: u32) -> Vec<u8> {
        let mut reply = Reply::accepted(xid, 2, 8);
        reply.xdr().u32(low).u32(high);
        reply.finish()
    }

    /// `PROC_UNAVAIL`: the program does not have the procedure.
    pub fn no_procedure(xid: u32) -> Vec<u8> {
        Reply::accepted(xid, 3, 0).finish()
    }

    /// `GARBAGE_ARGS`: the arguments cannot be decoded.
    pub fn garbage(xid: u32) -> Vec<u8> {
        Reply::accepted(xid, 4, 0).finish()
    }

    /// `SYSTEM_ERR`: the server cannot perform any call now.
    pub fn system_error(xid: u32) -> Vec<u8> {
        Reply::accepted(xid, 5, 0).finish()
    }

    /// The reply to a message that is not served; `None` if it cannot be answered.
    pub fn refusal(error: CallError) -> Option<Vec<u8>> {
        match error {
            CallError::NotACall => None,
            CallError::Version { xid } => {
                let mut reply = Reply::begin(xid, 16);
                reply.xdr().u32(DENIED).u32(0).u32(RPC_VERSION).u32(RPC_VERSION);
                Some(reply.finish())
            }
            CallError::Auth { xid, why } => Some(Reply::denied(xid, why)),
        }
    }

    fn denied(xid: u32, why: AuthError) -> Vec<u8> {
        let mut reply = Reply::begin(xid, 16);
        reply.xdr().u32(DENIED).u32(1).u32(why as u32);
        reply.finish()
    }

    /// The results.
    pub fn xdr(&mut self) -> &mut Encoder {
        &mut self.0
    }

    /// The record.
    pub fn finish(self) -> Vec<u8> {
        let mut bytes = self.0.into_bytes();
        let mark = LAST | (bytes.len() - MARK) as u32;
        if let Some(place) = bytes.first_chunk_mut::<MARK>() {
            *place = mark.to_be_bytes();
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Record, next_record};
    use super::*;

    #[test]
    fn replies_are_records_with_the_number_of_their_call() {
        let mut done = Reply::success(5, 4);
        done.xdr().u32(99);
        let of_auth = CallError::Auth { xid: 5, why: AuthError::TooWeak };
        let replies = [
            (done.finish(), vec![5, 1, 0, 0, 0, 0, 99]),
            (Reply::no_program(5), vec![5, 1, 0, 0, 0, 1]),
            (Reply::versions(5, 3, 3), vec![5, 1, 0, 0, 0, 2, 3, 3]),
            (Reply::no_procedure(5), vec![5, 1, 0, 0, 0, 3]),
            (Reply::garbage(5), vec![5, 1, 0, 0, 0, 4]),
            (Reply::system_error(5), vec![5, 1, 0, 0, 0, 5]),
            (Reply::refusal(CallError::Version { xid: 5 }).unwrap(), vec![5, 1, 1, 0, 2, 2]),
            (Reply::refusal(of_auth).unwrap(), vec![5, 1, 1, 1, 5]),
        ];
        for (bytes, words) in replies {
            let Ok(Record::Complete { used, message }) = next_record(&bytes, 1 << 20) else { panic!() };
            assert_eq!(used, bytes.len());
            let words: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect();
            assert_eq!(&message[..], words);
        }
        assert_eq!(Reply::refusal(CallError::NotACall), None);
    }
}
