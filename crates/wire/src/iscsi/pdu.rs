//! The frame of a PDU: a header of 48 bytes, additional header segments, digest, data, padding, digest
//! (RFC 7143, 11.2).

use super::crc::crc32c;

/// Bytes of a basic header segment.
pub const BHS: usize = 48;
const DIGEST: usize = 4;

/// A stream that cannot be followed any further: the connection has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The header's digest is wrong, so its lengths are unknown.
    #[error("the digest of a header is wrong")]
    HeaderDigest,
    /// More data than was allowed.
    #[error("a data segment of {len} bytes, {max} were allowed")]
    DataTooLong {
        /// What the header says.
        len: usize,
        /// What the target declared.
        max: usize,
    },
    /// A PDU that has no place in this phase.
    #[error("a PDU with opcode {0:#04x} is out of place")]
    OutOfPlace(u8),
    /// A field has a value that it cannot have.
    #[error("{0}")]
    Field(&'static str),
}

/// Which digests were negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digests {
    /// Behind each header.
    pub header: bool,
    /// Behind each data segment that is not empty.
    pub data: bool,
}

/// Bytes that fill a segment up to a multiple of four.
pub fn padding(len: usize) -> usize {
    len.next_multiple_of(4) - len
}

impl Digests {
    /// Bytes of a header with its digest.
    pub fn header_len(self) -> usize {
        BHS + if self.header { DIGEST } else { 0 }
    }

    /// Bytes of padding and digest behind a data segment.
    fn trailer_len(self, data: usize) -> usize {
        padding(data) + if self.data && data > 0 { DIGEST } else { 0 }
    }

    /// Bytes of a whole PDU with a data segment of `data` bytes.
    pub fn pdu_len(self, data: usize) -> usize {
        self.header_len() + data + self.trailer_len(data)
    }

    /// Makes a whole PDU of `out`, in which `data` bytes lie already, [`Digests::header_len`] bytes from its start: puts
    /// the header before them, padding and digests around them. It has [`Digests::pdu_len`] bytes.
    pub fn seal(self, header: &[u8; BHS], data: usize, out: &mut [u8]) {
        let (head, rest) = out.split_at_mut(self.header_len());
        head[..BHS].copy_from_slice(header);
        if self.header {
            head[BHS..].copy_from_slice(&crc32c(header, 0).to_le_bytes());
        }
        let (data, trailer) = rest.split_at_mut(data);
        let padding = padding(data.len());
        trailer[..padding].fill(0);
        if self.data && !data.is_empty() {
            trailer[padding..].copy_from_slice(&crc32c(data, padding).to_le_bytes());
        }
    }

    /// Writes a whole PDU into `out`, which has [`Digests::pdu_len`] bytes.
    pub fn put(self, header: &[u8; BHS], data: &[u8], out: &mut [u8]) {
        out[self.header_len()..][..data.len()].copy_from_slice(data);
        self.seal(header, data.len(), out);
    }

    /// Appends a whole PDU.
    pub fn append(self, header: &[u8; BHS], data: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.pdu_len(data.len()), 0);
        self.put(header, data, &mut out[start..]);
    }
}

/// A basic header segment.
#[derive(Debug, Clone, Copy)]
pub struct Header<'a>(&'a [u8; BHS]);

impl Header<'_> {
    /// What the PDU is (11.2.1.2).
    pub fn opcode(self) -> u8 {
        self.0[0] & 0x3f
    }
    /// Whether it is for immediate delivery (11.2.1.1).
    pub fn immediate(self) -> bool {
        self.0[0] & 0x40 != 0
    }
    /// The byte of flags.
    pub fn flags(self) -> u8 {
        self.0[1]
    }
    /// Whether it is the last of its sequence.
    pub fn is_final(self) -> bool {
        self.0[1] & 0x80 != 0
    }
    /// A byte.
    pub fn byte(self, at: usize) -> u8 {
        self.0[at]
    }
    /// Two bytes.
    pub fn half(self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }
    /// Four bytes.
    pub fn word(self, at: usize) -> u32 {
        u32::from_be_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }
    /// Some bytes.
    pub fn bytes<const N: usize>(self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.0[at..at + N]);
        out
    }
    /// The initiator task tag.
    pub fn task_tag(self) -> u32 {
        self.word(16)
    }
    /// The whole header, as a Reject sends it back.
    pub fn as_bytes(&self) -> &[u8; BHS] {
        self.0
    }
    fn ahs_len(self) -> usize {
        usize::from(self.0[4]) * 4
    }
    fn data_len(self) -> usize {
        self.word(4) as usize & 0xff_ffff
    }
}

/// A PDU in a stream.
#[derive(Debug, Clone, Copy)]
pub struct Pdu<'a> {
    /// Its header.
    pub header: Header<'a>,
    /// Additional header segments.
    pub ahs: &'a [u8],
    /// Its data segment.
    pub data: &'a [u8],
    /// Whether the digest of the data, if there is one, is right.
    pub intact: bool,
}

/// What is at the front of a stream.
#[derive(Debug)]
pub enum Step<'a> {
    /// Not a whole PDU yet; it will have at least `want` bytes.
    NeedMore {
        /// Bytes.
        want: usize,
    },
    /// A PDU.
    Pdu {
        /// Bytes that it takes in the stream.
        used: usize,
        /// The PDU.
        pdu: Pdu<'a>,
    },
}

/// Finds the PDU at the front of `input`. Its data segment may have `max_data` bytes.
pub fn decode(input: &[u8], digests: Digests, max_data: usize) -> Result<Step<'_>, ProtocolError> {
    let Some(bhs) = input.first_chunk::<BHS>() else { return Ok(Step::NeedMore { want: BHS }) };
    let header = Header(bhs);
    let len = header.data_len();
    let head = BHS + header.ahs_len();
    let data_at = head + if digests.header { DIGEST } else { 0 };
    // A wrong length is one of the errors that the digest is there to find, so it is asked first.
    if digests.header {
        if input.len() < data_at {
            return Ok(Step::NeedMore { want: data_at });
        }
        if crc32c(&input[..head], 0).to_le_bytes() != input[head..data_at] {
            return Err(ProtocolError::HeaderDigest);
        }
    }
    if len > max_data {
        return Err(ProtocolError::DataTooLong { len, max: max_data });
    }
    let used = data_at + len + digests.trailer_len(len);
    if input.len() < used {
        return Ok(Step::NeedMore { want: used });
    }
    let data = &input[data_at..data_at + len];
    let padded = data_at + len + padding(len);
    let intact = !digests.data || len == 0 || {
        crc32c(&input[data_at..padded], 0).to_le_bytes() == input[padded..used]
    };
    Ok(Step::Pdu { used, pdu: Pdu { header, ahs: &input[BHS..head], data, intact } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(ahs_words: u8, data: usize) -> [u8; BHS] {
        let mut h = [0x5a; BHS];
        h[4..8].copy_from_slice(&(data as u32 | u32::from(ahs_words) << 24).to_be_bytes());
        h
    }

    #[test]
    fn what_is_framed_is_found_again_with_any_digests() {
        for (header_digest, data_digest) in [(false, false), (true, false), (false, true), (true, true)] {
            let digests = Digests { header: header_digest, data: data_digest };
            for len in [0, 1, 3, 4, 5, 512] {
                let data = vec![0xc3; len];
                let mut stream = Vec::new();
                digests.append(&header(0, len), &data, &mut stream);
                for cut in 0..stream.len() {
                    let Ok(Step::NeedMore { want }) = decode(&stream[..cut], digests, 512) else {
                        panic!("{cut} of {}", stream.len())
                    };
                    assert!(want > cut && want <= stream.len());
                }
                let Ok(Step::Pdu { used, pdu }) = decode(&stream, digests, 512) else { panic!() };
                assert_eq!((used, pdu.data, pdu.intact), (stream.len(), &data[..], true));
            }
        }
    }

    #[test]
    fn damage_is_told_apart() {
        let digests = Digests { header: true, data: true };
        let mut stream = Vec::new();
        digests.append(&header(0, 8), &[1; 8], &mut stream);
        let mut bad = stream.clone();
        bad[20] ^= 1;
        assert_eq!(decode(&bad, digests, 512).unwrap_err(), ProtocolError::HeaderDigest);
        let mut bad = stream.clone();
        bad[54] ^= 1;
        assert!(matches!(decode(&bad, digests, 512), Ok(Step::Pdu { pdu: Pdu { intact: false, .. }, .. })));
        assert!(matches!(decode(&stream, digests, 7), Err(ProtocolError::DataTooLong { len: 8, max: 7 })));
    }
}
