//! The frame of a PDU: a common header of 8 bytes, a specific header, digest, padding, data, digest
//! (Transport 3.3 and 3.6).

use super::sqe::Sqe;
use super::{FatalError, get16, get32};
use crate::crc::crc32c;

const COMMON: usize = 8;
const DIGEST: usize = 4;
/// Bytes of an initialization PDU, in both directions.
pub(super) const INIT: usize = 128;
/// Bytes of the header of a command capsule.
const COMMAND: usize = COMMON + 64;
/// Bytes of the headers of all other PDUs.
pub(super) const SHORT: usize = 24;
/// Maximum number of bytes of a header that a termination request repeats (Transport 3.6.2.4).
const TERMINATION_DATA_MAX: usize = 152 - SHORT;
/// Maximum offset of data in a PDU: the largest header with its digest, and the largest alignment.
const MAX_DATA_OFFSET: usize = 128;

const FLAG_HEADER_DIGEST: u8 = 0x01;
const FLAG_DATA_DIGEST: u8 = 0x02;
const FLAG_LAST: u8 = 0x04;

/// The digests of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digests {
    /// A digest follows each header.
    pub header: bool,
    /// A digest follows all data.
    pub data: bool,
}

impl Digests {
    /// Bytes of the digest of a header.
    pub fn header_len(self) -> usize {
        if self.header { DIGEST } else { 0 }
    }

    /// Bytes of the digest of data.
    pub fn data_len(self) -> usize {
        if self.data { DIGEST } else { 0 }
    }

    pub(super) fn flags(self, has_data: bool) -> u8 {
        let data = if self.data && has_data { FLAG_DATA_DIGEST } else { 0 };
        data | if self.header { FLAG_HEADER_DIGEST } else { 0 }
    }
}

/// What a connection can receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The initialization request, which is the first PDU.
    Initialization,
    /// All other PDUs.
    Established,
}

/// Maximum bytes of data in the PDUs of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum in a command capsule.
    pub in_capsule: u32,
    /// Maximum in an H2CData PDU.
    pub data: u32,
}

/// An initialization request (Transport 3.6.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitRequest {
    /// Alignment of data in the PDUs to the host, in bytes (HPDA).
    pub alignment: usize,
    /// The digests that the host requests.
    pub digests: Digests,
    /// Maximum R2Ts of a command that are outstanding.
    pub max_r2t: u64,
}

/// The header of an H2CData PDU (Transport 3.6.2.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataPdu {
    /// Identifier of the command.
    pub command: u16,
    /// The tag of the R2T that requested the data.
    pub tag: u16,
    /// Offset of the data in the data of the command.
    pub offset: u32,
    /// Whether the PDU is the last PDU for its R2T.
    pub is_last: bool,
}

/// A PDU of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pdu<'a> {
    /// ICReq.
    Init(InitRequest),
    /// CapsuleCmd, with its data.
    Command {
        /// The submission queue entry.
        sqe: Sqe,
        /// The data in the capsule.
        data: &'a [u8],
        /// Whether the digest of the data is correct or absent.
        intact: bool,
    },
    /// H2CData.
    Data {
        /// The header.
        header: DataPdu,
        /// The data.
        data: &'a [u8],
        /// Whether the digest of the data is correct or absent.
        intact: bool,
    },
    /// H2CTermReq: the host has found a fatal error.
    Terminate {
        /// Fatal error status (FES).
        status: u16,
    },
}

/// The result of decoding.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// The PDU is not complete; it has at least `want` bytes.
    NeedMore {
        /// Minimum number of bytes of the PDU.
        want: usize,
    },
    /// The stream begins with a complete PDU.
    Pdu {
        /// Bytes of the stream that the PDU occupies.
        used: usize,
        /// The PDU at the beginning of the stream.
        pdu: Pdu<'a>,
    },
}

/// The type of a PDU that a host sends (Transport 3.6.1, figure 16).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Init,
    Terminate,
    Command,
    Data,
}

impl Kind {
    fn of(byte: u8) -> Result<Kind, FatalError> {
        match byte {
            0x00 => Ok(Kind::Init),
            0x02 => Ok(Kind::Terminate),
            0x04 => Ok(Kind::Command),
            0x06 => Ok(Kind::Data),
            _ => Err(FatalError::Header { offset: 0, why: "the type is not that of a PDU of a host" }),
        }
    }

    fn header_len(self) -> usize {
        match self {
            Kind::Init => INIT,
            Kind::Command => COMMAND,
            Kind::Terminate | Kind::Data => SHORT,
        }
    }

    fn max_data(self, limits: Limits) -> usize {
        match self {
            Kind::Init => 0,
            Kind::Terminate => TERMINATION_DATA_MAX,
            Kind::Command => limits.in_capsule as usize,
            Kind::Data => limits.data as usize,
        }
    }

    /// Whether digests apply to the PDU: neither initialization nor termination PDUs have any.
    fn has_digests(self) -> bool {
        matches!(self, Kind::Command | Kind::Data)
    }
}

/// Where the data of a PDU begins and ends.
struct Place {
    start: usize,
    end: usize,
    total: usize,
}

/// Decodes the PDU at the front of `input`. No PDU with more data than the `limits` is waited for.
///
/// # Errors
/// The fatal error of the connection.
pub fn decode(input: &[u8], phase: Phase, digests: Digests, limits: Limits) -> Result<Step<'_>, FatalError> {
    let Some(common) = input.first_chunk::<COMMON>() else { return Ok(Step::NeedMore { want: COMMON }) };
    let kind = Kind::of(common[0])?;
    match (phase, kind) {
        (Phase::Initialization, Kind::Command | Kind::Data) => {
            return Err(FatalError::Sequence("the first PDU is no initialization request"));
        }
        (Phase::Established, Kind::Init) => {
            return Err(FatalError::Sequence("a second initialization request"));
        }
        _ => {}
    }
    let head = kind.header_len();
    if usize::from(common[2]) != head {
        return Err(FatalError::Header { offset: 2, why: "the header length does not fit the type" });
    }
    let digests = if kind.has_digests() { digests } else { Digests::default() };
    let after = head + digests.header_len();
    // The digest is checked first, because a wrong length is one of the errors that it detects.
    if digests.header {
        let Some(header) = input.get(..after) else { return Ok(Step::NeedMore { want: after }) };
        let received = get32(header, head);
        if crc32c(&header[..head], 0) != received {
            return Err(FatalError::HeaderDigest { received });
        }
    }
    let place = place(common, kind, after, digests, limits)?;
    let Some(pdu) = input.get(..place.total) else { return Ok(Step::NeedMore { want: place.total }) };
    let (header, data) = (&pdu[..head], &pdu[place.start..place.end]);
    let intact = data.is_empty() || !digests.data || crc32c(data, 0) == get32(pdu, place.end);
    let pdu = match kind {
        Kind::Init => Pdu::Init(init(header)?),
        Kind::Terminate => Pdu::Terminate { status: get16(header, 8) },
        Kind::Command => Pdu::Command { sqe: Sqe::new(super::array(header, COMMON)), data, intact },
        Kind::Data => {
            if get32(header, 16) as usize != data.len() {
                return Err(FatalError::Header { offset: 16, why: "the data length does not fit the PDU" });
            }
            let is_last = common[1] & FLAG_LAST != 0;
            let (command, tag, offset) = (get16(header, 8), get16(header, 10), get32(header, 12));
            Pdu::Data { header: DataPdu { command, tag, offset, is_last }, data, intact }
        }
    };
    Ok(Step::Pdu { used: place.total, pdu })
}

/// Checks the lengths of a PDU whose header with its digest has `after` bytes.
fn place(
    common: &[u8; COMMON],
    kind: Kind,
    after: usize,
    digests: Digests,
    limits: Limits,
) -> Result<Place, FatalError> {
    let total = get32(common, 4) as usize;
    if total < after {
        return Err(FatalError::Header { offset: 4, why: "the PDU is shorter than its header" });
    }
    let wrong_flag = |has: bool, flag: u8| has != (common[1] & flag != 0);
    let has_data = total > after;
    if kind.has_digests() && wrong_flag(digests.header, FLAG_HEADER_DIGEST) {
        return Err(FatalError::Header { offset: 1, why: "the digest flags are not those that were agreed" });
    }
    if !has_data {
        return Ok(Place { start: after, end: after, total });
    }
    if kind.has_digests() && wrong_flag(digests.data, FLAG_DATA_DIGEST) {
        return Err(FatalError::Header { offset: 1, why: "the digest flags are not those that were agreed" });
    }
    let start = if kind.has_digests() { usize::from(common[3]) } else { after };
    if start < after || start > MAX_DATA_OFFSET || !start.is_multiple_of(4) {
        return Err(FatalError::Header { offset: 3, why: "the data offset is invalid" });
    }
    let Some(len) = total.checked_sub(start + digests.data_len()).filter(|len| *len > 0) else {
        return Err(FatalError::Header { offset: 4, why: "the PDU is shorter than its data offset" });
    };
    if len > kind.max_data(limits) {
        return Err(match kind {
            Kind::Data => FatalError::LimitExceeded(len as u32),
            _ => FatalError::Header { offset: 4, why: "the PDU is longer than allowed" },
        });
    }
    Ok(Place { start, end: start + len, total })
}

fn init(header: &[u8]) -> Result<InitRequest, FatalError> {
    const MAX_ALIGNMENT: u8 = 31;
    if get16(header, 8) != 0 {
        return Err(FatalError::Unsupported { offset: 8 });
    }
    if header[10] > MAX_ALIGNMENT {
        return Err(FatalError::Header { offset: 10, why: "the alignment exceeds 128 bytes" });
    }
    let digests = Digests { header: header[11] & 1 != 0, data: header[11] & 2 != 0 };
    // Both values are 0's based; the alignment is in units of 4 bytes.
    let alignment = (usize::from(header[10]) + 1) * 4;
    Ok(InitRequest { alignment, digests, max_r2t: u64::from(get32(header, 12)) + 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { in_capsule: 64, data: 128 };

    fn pdu(kind: u8, digests: Digests, header: &[u8], data: &[u8]) -> Vec<u8> {
        let head = COMMON + header.len();
        let start = (head + digests.header_len()).next_multiple_of(4);
        let total = match data.len() {
            0 => head + digests.header_len(),
            len => start + len + digests.data_len(),
        };
        let mut out = vec![kind, digests.flags(!data.is_empty()), head as u8, start as u8];
        out.extend_from_slice(&(total as u32).to_le_bytes());
        out.extend_from_slice(header);
        if digests.header {
            out.extend_from_slice(&crc32c(&out, 0).to_le_bytes());
        }
        out.extend_from_slice(data);
        if digests.data && !data.is_empty() {
            out.extend_from_slice(&crc32c(data, 0).to_le_bytes());
        }
        out
    }

    fn data_header(len: usize) -> Vec<u8> {
        let mut header = vec![7, 0, 9, 0];
        header.extend_from_slice(&512u32.to_le_bytes());
        header.extend_from_slice(&(len as u32).to_le_bytes());
        header.extend_from_slice(&[0; 4]);
        header
    }

    fn established(bytes: &[u8], digests: Digests) -> Result<Step<'_>, FatalError> {
        decode(bytes, Phase::Established, digests, LIMITS)
    }

    #[test]
    fn framed_pdus_are_decoded_with_any_digests() {
        for (header, data) in [(false, false), (true, false), (false, true), (true, true)] {
            let digests = Digests { header, data };
            for len in [1, 4, 63, 128] {
                let sent = vec![0xc3; len];
                let stream = pdu(6, digests, &data_header(len), &sent);
                for cut in 0..stream.len() {
                    let Ok(Step::NeedMore { want }) = established(&stream[..cut], digests) else {
                        panic!("{cut} of {}", stream.len())
                    };
                    assert!(want > cut && want <= stream.len());
                }
                let header = DataPdu { command: 7, tag: 9, offset: 512, is_last: false };
                let pdu = Pdu::Data { header, data: &sent, intact: true };
                assert_eq!(established(&stream, digests), Ok(Step::Pdu { used: stream.len(), pdu }));
            }
        }
    }

    #[test]
    fn damage_of_header_and_data_is_distinguished() {
        let digests = Digests { header: true, data: true };
        let stream = pdu(4, digests, &[5; 64], &[1; 8]);
        let mut bad = stream.clone();
        bad[20] ^= 1;
        assert!(matches!(established(&bad, digests), Err(FatalError::HeaderDigest { .. })));
        let mut bad = stream.clone();
        bad[COMMAND + 4] ^= 1;
        let step = established(&bad, digests);
        assert!(matches!(step, Ok(Step::Pdu { pdu: Pdu::Command { intact: false, .. }, .. })), "{step:?}");
    }

    #[test]
    fn invalid_headers_have_their_status() {
        let plain = Digests::default();
        let good = pdu(6, plain, &data_header(8), &[1; 8]);
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            bytes
        };
        let status = |bytes: &[u8]| established(bytes, plain).unwrap_err().status();
        assert_eq!(status(&with(0, 5)), (1, 0), "a PDU of a controller");
        assert_eq!(status(&with(0, 9)), (1, 0));
        assert_eq!(status(&with(0, 0)), (2, 0), "a second initialization");
        assert_eq!(status(&with(2, 25)), (1, 2));
        assert_eq!(status(&with(1, 1)), (1, 1), "a digest that was not agreed");
        for offset in [0, 20, 25, 132] {
            assert_eq!(status(&with(3, offset)), (1, 3), "{offset}");
        }
        assert_eq!(status(&with(3, 32)), (1, 4), "no data after the offset");
        assert_eq!(status(&with(4, 23)), (1, 4));
        assert_eq!(status(&with(16, 7)), (1, 16));
        assert_eq!(status(&pdu(6, plain, &data_header(129), &[1; 129])), (5, 0));
        assert_eq!(status(&pdu(4, plain, &[0; 64], &[1; 65])), (1, 4));
        // No huge PDU is waited for.
        assert_eq!(status(&with(7, 0xff)), (5, 0));
        let first = decode(&good, Phase::Initialization, plain, LIMITS).unwrap_err();
        assert_eq!(first.status(), (2, 0));
    }

    #[test]
    fn initialization_requests_are_decoded() {
        let mut header = vec![0; INIT - COMMON];
        header[2..4].copy_from_slice(&[3, 3]);
        header[4] = 1;
        let bytes = pdu(0, Digests::default(), &header, &[]);
        let decode = |bytes: &[u8]| match decode(bytes, Phase::Initialization, Digests::default(), LIMITS) {
            Ok(Step::Pdu { pdu: Pdu::Init(init), used: INIT }) => Ok(init),
            Ok(other) => panic!("{other:?}"),
            Err(e) => Err(e.status()),
        };
        let digests = Digests { header: true, data: true };
        assert_eq!(decode(&bytes), Ok(InitRequest { alignment: 16, digests, max_r2t: 2 }));
        let with = |at: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            bytes
        };
        assert_eq!(decode(&with(8, 1)), Err((6, 8)));
        assert_eq!(decode(&with(10, 32)), Err((1, 10)));
    }
}
