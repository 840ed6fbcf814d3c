//! The frame of a PDU: a header of 48 bytes, additional header segments, digest, data, padding, digest
//! (RFC 7143, 11.2).

use crate::crc::crc32c;

/// Bytes of a basic header segment.
pub const BHS: usize = 48;
const DIGEST: usize = 4;

/// Errors after which the stream cannot be decoded any further, so the connection must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The header's digest is wrong, so its lengths are unknown.
    #[error("the digest of a header is wrong")]
    HeaderDigest,
    /// The PDU has more data than allowed.
    #[error("a data segment has {len} bytes, more than the {max} that are allowed")]
    DataTooLong {
        /// The length in the header.
        len: usize,
        /// The limit that the target declared.
        max: usize,
    },
    /// A PDU that is not allowed in this phase.
    #[error("a PDU with opcode {0:#04x} is not allowed in this phase")]
    OutOfPlace(u8),
    /// An invalid value of a field.
    #[error("{0}")]
    Field(&'static str),
}

/// The negotiated digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digests {
    /// A digest follows each header.
    pub header: bool,
    /// A digest follows each data segment that is not empty.
    pub data: bool,
}

/// Bytes that pad a segment to a multiple of four.
pub fn padding(len: usize) -> usize {
    len.next_multiple_of(4) - len
}

impl Digests {
    /// Bytes of a header with its digest.
    pub fn header_len(self) -> usize {
        BHS + if self.header { DIGEST } else { 0 }
    }

    /// Bytes of padding and digest after a data segment.
    fn trailer_len(self, data: usize) -> usize {
        padding(data) + if self.data && data > 0 { DIGEST } else { 0 }
    }

    /// Bytes of a complete PDU with a data segment of `data` bytes.
    pub fn pdu_len(self, data: usize) -> usize {
        self.header_len() + data + self.trailer_len(data)
    }

    /// Completes the PDU in `out`, which contains `data` bytes already, [`Digests::header_len`] bytes from
    /// its start: writes the header before them, padding and digests around them. It has [`Digests::pdu_len`]
    /// bytes.
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

    /// Writes a complete PDU into `out`, which has [`Digests::pdu_len`] bytes.
    pub fn put(self, header: &[u8; BHS], data: &[u8], out: &mut [u8]) {
        out[self.header_len()..][..data.len()].copy_from_slice(data);
        self.seal(header, data.len(), out);
    }

    /// Appends a complete PDU.
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
    /// The type of the PDU (11.2.1.2).
    pub fn opcode(self) -> u8 {
        self.0[0] & 0x3f
    }
    /// Whether the PDU is for immediate delivery (11.2.1.1).
    pub fn immediate(self) -> bool {
        self.0[0] & 0x40 != 0
    }
    /// The byte of flags.
    pub fn flags(self) -> u8 {
        self.0[1]
    }
    /// Whether the PDU is the last PDU of its sequence.
    pub fn is_final(self) -> bool {
        self.0[1] & 0x80 != 0
    }
    /// The byte at offset `at`.
    pub fn byte(self, at: usize) -> u8 {
        self.0[at]
    }
    /// The two bytes at offset `at`, as a number.
    pub fn half(self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }
    /// The four bytes at offset `at`, as a number.
    pub fn word(self, at: usize) -> u32 {
        u32::from_be_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }
    /// Returns the `N` bytes at offset `at`.
    pub fn bytes<const N: usize>(self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.0[at..at + N]);
        out
    }
    /// The initiator task tag.
    pub fn task_tag(self) -> u32 {
        self.word(16)
    }
    /// Returns the whole header, which a Reject contains.
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
    /// Header of the PDU.
    pub header: Header<'a>,
    /// Data segment of the PDU.
    pub data: &'a [u8],
    /// Whether the digest of the data is correct or absent.
    pub intact: bool,
}

/// The result of decoding.
#[derive(Debug)]
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

/// Decodes the PDU at the front of `input`. Its data segment may have at most `max_data` bytes.
pub fn decode(input: &[u8], digests: Digests, max_data: usize) -> Result<Step<'_>, ProtocolError> {
    let Some(bhs) = input.first_chunk::<BHS>() else { return Ok(Step::NeedMore { want: BHS }) };
    let header = Header(bhs);
    let len = header.data_len();
    let head = BHS + header.ahs_len();
    let data_at = head + if digests.header { DIGEST } else { 0 };
    // The digest is checked first, because a wrong length is one of the errors that it detects.
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
    Ok(Step::Pdu { used, pdu: Pdu { header, data, intact } })
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
    fn framed_pdus_are_decoded_with_any_digests() {
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
    fn damage_of_header_and_data_is_distinguished() {
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
