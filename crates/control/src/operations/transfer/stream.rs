//! The format of the stream that `volume send` makes and `volume receive` reads; `docs/send.md` describes it.
//!
//! A stream is a header, records, and an end record. All numbers are little-endian. Each record has a number,
//! and a checksum that begins with the checksum of the header. So a record that is damaged, missing, repeated
//! or exchanged, or that comes from another stream, is detected before any later record is used. A record of
//! data has its offset after all earlier records. A decoder holds at most one record, whatever it is given.

use forebay_format::crc32c;

/// The first bytes of a stream.
const MAGIC: [u8; 8] = *b"FBSTREAM";
/// The version of the format.
const VERSION: u16 = 1;
/// Bytes of a header without the name.
const HEADER: usize = 92;
/// Maximum length of a name in bytes.
const MAX_NAME: usize = 255;
/// Bytes of a record before its data.
const RECORD: usize = 40;
/// Maximum length of the data of a record, in bytes, before and after compression.
pub(crate) const MAX_DATA: u64 = 256 << 10;

const DATA: u8 = 1;
const LZ4: u8 = 2;
const ZERO: u8 = 3;
const END: u8 = 4;

/// What a stream contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    /// The stream has an image, otherwise a snapshot.
    pub is_image: bool,
    /// Size of the disk in bytes.
    pub size: u64,
    /// Identity of the snapshot or image.
    pub uuid: [u8; 16],
    /// Identity of the disk from whose contents the stream starts.
    pub parent: Option<[u8; 16]>,
    /// The records that an earlier stream of the same disk has delivered.
    pub position: Position,
    /// Name of the snapshot or image at the sender.
    pub name: String,
}

/// How much of a disk has been sent or received. A stream can continue from a position.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// The end of the last record on the disk, in bytes.
    pub offset: u64,
    /// Number of records.
    pub records: u64,
    /// Bytes of data, before compression.
    pub data: u64,
}

/// A verified part of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Item {
    Header(Header),
    /// Data at this offset.
    Data(u64, Vec<u8>),
    /// This many bytes at this offset read as zeroes.
    Zero(u64, u64),
    /// The stream is complete.
    End,
}

/// Why a stream cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StreamError {
    #[error("this is not a stream of 'forebay volume send'")]
    Foreign,
    #[error("the stream has version {0} of the format, and this release reads version {VERSION}")]
    Version(u16),
    #[error("the stream needs features that this release does not have ({0:#x})")]
    Features(u32),
    #[error("the header of the stream is damaged")]
    Header,
    #[error("record {0} of the stream is damaged, missing, or not in order")]
    Record(u64),
    #[error("the stream ends with {found} records and {data} bytes of data, and its sender sent others")]
    Totals { found: u64, data: u64 },
    #[error("the stream continues after its end")]
    Trailing,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(number(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(number(bytes, at))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(number(bytes, at))
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + self.name.len() + 4);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend((self.name.len() as u16).to_le_bytes());
        // Features that a reader must have, and features that it may ignore.
        out.extend([0; 8]);
        out.extend([u8::from(self.is_image), 0, 0, 0]);
        out.extend(self.size.to_le_bytes());
        out.extend(self.uuid);
        out.push(self.parent.is_some().into());
        out.extend([0; 3]);
        out.extend(self.parent.unwrap_or_default());
        let Position { offset, records, data } = self.position;
        [offset, records, data].iter().for_each(|number| out.extend(number.to_le_bytes()));
        debug_assert_eq!(out.len(), HEADER);
        out.extend(self.name.as_bytes());
        out.extend(crc32c(&out).to_le_bytes());
        out
    }

    /// Decodes a header with its checksum; `None` if bytes are missing.
    fn decode(bytes: &[u8]) -> Result<Option<(Header, usize)>, StreamError> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(StreamError::Foreign);
        }
        if bytes.len() < HEADER {
            return Ok(None);
        }
        let version = u16_at(bytes, 8);
        if version != VERSION {
            return Err(StreamError::Version(version));
        }
        let end = HEADER + usize::from(u16_at(bytes, 10));
        if end > HEADER + MAX_NAME {
            return Err(StreamError::Header);
        }
        let Some(whole) = bytes.get(..end + 4) else { return Ok(None) };
        if crc32c(&whole[..end]) != u32_at(whole, end) {
            return Err(StreamError::Header);
        }
        let features = u32_at(whole, 12);
        if features != 0 {
            return Err(StreamError::Features(features));
        }
        let name = std::str::from_utf8(&whole[HEADER..end]).map_err(|_| StreamError::Header)?;
        let (kind, has_parent) = (whole[20], whole[48]);
        if kind > 1 || has_parent > 1 {
            return Err(StreamError::Header);
        }
        let position =
            Position { offset: u64_at(whole, 68), records: u64_at(whole, 76), data: u64_at(whole, 84) };
        let size = u64_at(whole, 24);
        if position.offset > size {
            return Err(StreamError::Header);
        }
        let header = Header {
            is_image: kind == 1,
            size,
            uuid: number(whole, 32),
            parent: (has_parent == 1).then(|| number(whole, 52)),
            position,
            name: name.to_owned(),
        };
        Ok(Some((header, end + 4)))
    }
}

/// Encodes a stream.
pub(crate) struct Encoder {
    seed: u32,
    size: u64,
    position: Position,
}

impl Encoder {
    /// Begins a stream; returns the encoded header.
    pub fn begin(header: &Header) -> (Encoder, Vec<u8>) {
        let bytes = header.encode();
        let seed = seed_of(&bytes);
        (Encoder { seed, size: header.size, position: header.position }, bytes)
    }

    fn record(&self, kind: u8, stored: &[u8], offset: u64, len: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(RECORD + stored.len());
        out.extend([kind, 0, 0, 0]);
        out.extend((stored.len() as u32).to_le_bytes());
        [self.position.records, offset, len].iter().for_each(|number| out.extend(number.to_le_bytes()));
        out.extend(crc32c(stored).to_le_bytes());
        out.extend(checksum(self.seed, &out).to_le_bytes());
        out.extend(stored);
        out
    }

    /// Encodes data, of at most [`MAX_DATA`] bytes, after all earlier records.
    pub fn data(&mut self, offset: u64, bytes: &[u8]) -> Vec<u8> {
        debug_assert!(offset >= self.position.offset && bytes.len() as u64 <= MAX_DATA);
        let packed = lz4_flex::block::compress(bytes);
        let (kind, stored) = if packed.len() < bytes.len() { (LZ4, &packed[..]) } else { (DATA, bytes) };
        let record = self.record(kind, stored, offset, bytes.len() as u64);
        self.position.records += 1;
        self.position.data += bytes.len() as u64;
        self.position.offset = offset + bytes.len() as u64;
        record
    }

    /// Encodes a range of zeroes after all earlier records.
    pub fn zero(&mut self, offset: u64, len: u64) -> Vec<u8> {
        debug_assert!(offset >= self.position.offset);
        let record = self.record(ZERO, &[], offset, len);
        self.position.records += 1;
        self.position.offset = offset + len;
        record
    }

    /// Encodes the end of the stream.
    pub fn end(self) -> Vec<u8> {
        self.record(END, &[], self.size, self.position.data)
    }
}

/// What the checksums of the records of a stream begin with: the checksum of the header, which differs for
/// each stream. A checksum over the header and its own checksum would be the same for all streams.
fn seed_of(header: &[u8]) -> u32 {
    u32_at(header, header.len().saturating_sub(4))
}

/// The checksum of the header of a record: `bytes` are all fields before it.
fn checksum(seed: u32, bytes: &[u8]) -> u32 {
    crc32c(&[&seed.to_le_bytes(), bytes].concat())
}

/// Decodes a stream that arrives in pieces.
#[derive(Default)]
pub(crate) struct Decoder {
    buffer: Vec<u8>,
    /// The bytes of `buffer` that were decoded.
    used: usize,
    /// The checksum of the header, and the size of the disk, after the header was decoded.
    stream: Option<(u32, u64)>,
    position: Position,
    is_complete: bool,
}

impl Decoder {
    /// Adds bytes; [`Decoder::next`] is called until it returns `None` before more are added.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.used);
        self.used = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// What was decoded so far.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The next part of the stream; `None` if more bytes are needed.
    pub fn next(&mut self) -> Result<Option<Item>, StreamError> {
        let bytes = &self.buffer[self.used..];
        if self.is_complete {
            return if bytes.is_empty() { Ok(None) } else { Err(StreamError::Trailing) };
        }
        let Some((seed, size)) = self.stream else {
            let Some((header, used)) = Header::decode(bytes)? else { return Ok(None) };
            self.stream = Some((seed_of(&bytes[..used]), header.size));
            self.position = header.position;
            self.used += used;
            return Ok(Some(Item::Header(header)));
        };
        let broken = StreamError::Record(self.position.records);
        let Some(head) = bytes.get(..RECORD) else { return Ok(None) };
        let (stored, records) = (u64::from(u32_at(head, 4)), u64_at(head, 8));
        let (offset, len) = (u64_at(head, 16), u64_at(head, 24));
        let is_intact = checksum(seed, &head[..RECORD - 4]) == u32_at(head, RECORD - 4);
        if !is_intact || records != self.position.records || head[1..4] != [0; 3] || stored > MAX_DATA {
            return Err(broken);
        }
        let kind = head[0];
        if kind == END {
            let Position { records: found, data, .. } = self.position;
            if stored != 0 || offset != size || len != data {
                return Err(StreamError::Totals { found, data });
            }
            self.used += RECORD;
            self.is_complete = true;
            return Ok(Some(Item::End));
        }
        let end =
            offset.checked_add(len).filter(|end| *end <= size && len > 0 && offset >= self.position.offset);
        let end = end.ok_or_else(|| broken.clone())?;
        let whole = RECORD + stored as usize;
        let Some(data) = bytes.get(RECORD..whole) else { return Ok(None) };
        if crc32c(data) != u32_at(head, RECORD - 8) {
            return Err(broken);
        }
        let item = match kind {
            ZERO if stored == 0 => Item::Zero(offset, len),
            DATA if stored == len => Item::Data(offset, data.to_vec()),
            LZ4 if len <= MAX_DATA => {
                let mut unpacked = vec![0; len as usize];
                match lz4_flex::block::decompress_into(data, &mut unpacked) {
                    Ok(written) if written as u64 == len => Item::Data(offset, unpacked),
                    _ => return Err(broken),
                }
            }
            _ => return Err(broken),
        };
        self.used += whole;
        self.position.records += 1;
        self.position.offset = end;
        if kind != ZERO {
            self.position.data += len;
        }
        Ok(Some(item))
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing {
    use super::*;

    /// Flag of the first byte of an input: checksums are corrected, which a fuzzer cannot guess.
    const CORRECTED: u8 = 0x80;

    /// A short stream.
    pub fn sample() -> Vec<u8> {
        let (position, name) = (Position::default(), "monday".to_owned());
        let header = Header { is_image: false, size: 1 << 20, uuid: [7; 16], parent: None, position, name };
        let (mut encoder, mut bytes) = Encoder::begin(&header);
        bytes.extend(encoder.data(0, b"data"));
        bytes.extend(encoder.data(4096, &[5; 4096]));
        bytes.extend(encoder.zero(8192, 4096));
        bytes.extend(encoder.end());
        bytes
    }

    /// Corrects the checksums of the header and of all records.
    fn correct(bytes: &mut [u8]) {
        let end = HEADER + usize::from(u16_at(bytes, 10));
        let Some(head) = bytes.get(..end) else { return };
        let crc = crc32c(head).to_le_bytes();
        let Some(field) = bytes.get_mut(end..end + 4) else { return };
        field.copy_from_slice(&crc);
        let (seed, mut at) = (seed_of(&bytes[..end + 4]), end + 4);
        while let Some(record) = bytes.get_mut(at..).filter(|rest| rest.len() >= RECORD) {
            let whole = (RECORD + u32_at(record, 4) as usize).min(record.len());
            let data = crc32c(&record[RECORD..whole]).to_le_bytes();
            record[RECORD - 8..RECORD - 4].copy_from_slice(&data);
            let head = checksum(seed, &record[..RECORD - 4]).to_le_bytes();
            record[RECORD - 4..RECORD].copy_from_slice(&head);
            at += whole;
        }
    }

    /// Decodes bytes in pieces of this length.
    fn decode(bytes: &[u8], step: usize) -> (Vec<Item>, Option<StreamError>) {
        let (mut decoder, mut items, mut size) = (Decoder::default(), Vec::new(), 0);
        for piece in bytes.chunks(step.max(1)) {
            decoder.push(piece);
            loop {
                let item = match decoder.next() {
                    Ok(Some(item)) => item,
                    Ok(None) => break,
                    Err(e) => return (items, Some(e)),
                };
                match &item {
                    Item::Header(header) => size = header.size,
                    Item::Data(offset, data) => assert!(offset + data.len() as u64 <= size),
                    Item::Zero(offset, len) => assert!(offset + len <= size),
                    Item::End => {}
                }
                items.push(item);
            }
        }
        (items, None)
    }

    /// Decodes any bytes, in pieces of the length in the first byte: without a panic; the parts are within
    /// the disk; and the result does not depend on where the pieces end.
    pub fn send_stream(data: &[u8]) {
        let Some((first, bytes)) = data.split_first() else { return };
        let mut bytes = bytes.to_vec();
        if first & CORRECTED != 0 {
            correct(&mut bytes);
        }
        let step = usize::from(first & !CORRECTED);
        assert_eq!(decode(&bytes, step), decode(&bytes, bytes.len()), "the end of a piece matters");
    }
}

#[cfg(test)]
mod tests {
    use super::fuzzing::send_stream;
    use super::*;

    const SIZE: u64 = 1 << 20;

    fn header() -> Header {
        let position = Position::default();
        let name = "monday".to_owned();
        Header { is_image: false, size: SIZE, uuid: [7; 16], parent: Some([9; 16]), position, name }
    }

    /// A stream in parts: header, data that does not compress, data that does, zeroes, end.
    fn parts(header: &Header) -> Vec<Vec<u8>> {
        let mut state = 1u64;
        let mixed = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        });
        let mixed: Vec<u8> = mixed.take(4096).collect();
        let (mut encoder, head) = Encoder::begin(header);
        let (first, second) = (encoder.data(4096, &mixed), encoder.data(65536, &[5; 8192]));
        assert!(second.len() < 1000 && first.len() == RECORD + 4096);
        let zero = encoder.zero(100_000, 4096);
        vec![head, first, second, zero, encoder.end()]
    }

    fn decode(bytes: &[u8], step: usize) -> Result<Vec<Item>, StreamError> {
        let (mut decoder, mut items) = (Decoder::default(), Vec::new());
        for piece in bytes.chunks(step) {
            decoder.push(piece);
            while let Some(item) = decoder.next()? {
                items.push(item);
            }
        }
        Ok(items)
    }

    #[test]
    fn a_stream_is_decoded_as_it_was_encoded_whatever_its_pieces_are() {
        let bytes = parts(&header()).concat();
        for step in [1, 7, 40, 4096, bytes.len()] {
            let items = decode(&bytes, step).unwrap();
            assert_eq!(items.len(), 5);
            assert_eq!(items[0], Item::Header(header()));
            assert!(matches!(&items[1], Item::Data(4096, data) if data.len() == 4096));
            assert_eq!(items[2], Item::Data(65536, vec![5; 8192]));
            assert_eq!(items[3..], [Item::Zero(100_000, 4096), Item::End]);
        }
    }

    #[test]
    fn every_changed_bit_is_detected() {
        let bytes = parts(&header()).concat();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            assert!(decode(&damaged, 512).is_err(), "byte {at}");
        }
    }

    #[test]
    fn records_that_are_missing_exchanged_repeated_or_foreign_are_detected() {
        let all = parts(&header());
        let foreign = parts(&Header { uuid: [8; 16], ..header() });
        for order in [&[0, 2, 3, 4][..], &[0, 2, 1, 3, 4], &[0, 1, 1, 2, 3, 4], &[0, 1, 2, 4], &[0, 4]] {
            let bytes: Vec<u8> = order.iter().flat_map(|n| all[*n].clone()).collect();
            assert!(matches!(decode(&bytes, 4096), Err(StreamError::Record(_))), "{order:?}");
        }
        let mixed = [&all[0], &foreign[1], &all[2], &all[3], &all[4]].map(Clone::clone).concat();
        assert_eq!(decode(&mixed, 4096), Err(StreamError::Record(0)));
        assert_eq!(decode(&[all.concat(), vec![0]].concat(), 4096), Err(StreamError::Trailing));
        assert_eq!(decode(b"QFI\xfb and so on", 4), Err(StreamError::Foreign));
    }

    #[test]
    fn a_stream_that_is_cut_has_no_end() {
        let bytes = parts(&header()).concat();
        for len in 0..bytes.len() {
            let items = decode(&bytes[..len], 1000).unwrap();
            assert!(!items.contains(&Item::End), "{len} bytes");
        }
    }

    #[test]
    fn a_newer_format_is_named() {
        let mut bytes = header().encode();
        bytes[8] = 2;
        assert_eq!(decode(&bytes, 4096), Err(StreamError::Version(2)));
        let mut bytes = header().encode();
        bytes[12] = 4;
        let end = bytes.len() - 4;
        let crc = crc32c(&bytes[..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&crc);
        assert_eq!(decode(&bytes, 4096), Err(StreamError::Features(4)));
    }

    #[test]
    fn any_bytes_are_decoded_without_a_panic() {
        let bytes = parts(&header()).concat();
        let mut random = 1u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        for _ in 0..2000 {
            let mut mutated = vec![next(256) as u8];
            mutated.extend(&bytes);
            for _ in 0..next(6) {
                let at = next(mutated.len());
                match next(3) {
                    0 => mutated[at] = next(256) as u8,
                    1 => drop(mutated.drain(at..(at + next(60)).min(mutated.len()))),
                    _ => mutated.splice(at..at, [next(256) as u8; 9]).for_each(drop),
                }
            }
            send_stream(&mutated);
        }
    }
}
