//! Stored forms of blocks: raw, as one LZ4 block, or as members of a group that zstd compressed together.
//!
//! LZ4 is used for new writes: it costs less than the bytes that it saves. Groups are used for relocated
//! blocks (`crate::clean`): eight neighbours of the moved segment, so that a random read of one block fetches
//! and unpacks at most 32 KiB, in one store read; the neighbours that the reader's disk has as well are
//! inserted into the read cache.

use forebay_format::{BLOCK, Codec, Form, FormatError, GroupHeader, Slot};

/// Maximum number of blocks that are compressed together as a group.
pub(crate) const GROUP_BLOCKS: usize = 8;
/// Bytes that hold the length in front of an LZ4 block.
const LZ4_HEAD: usize = 2;
/// Maximum bytes of a compressed block. A block that would take more is stored raw: unpacking it would cost
/// more than it saves.
const WORTH: usize = BLOCK - 512;
/// Level of zstd compression: relocated blocks are written once and read often.
const ZSTD_LEVEL: i32 = 3;

/// Compresses a block into `out`, whose former content is dropped; returns the form. `out` is left empty if
/// the form is raw.
pub(crate) fn compress(block: &[u8; BLOCK], out: &mut Vec<u8>) -> Form {
    out.clear();
    Compressor::default().append(block, out)
}

/// The stored form of a block that is not in a group, and its bytes; raw unless `compressed`.
pub(crate) fn store_singly(block: &[u8; BLOCK], compressed: bool) -> (Form, Vec<u8>) {
    let mut bytes = Vec::new();
    let form = if compressed { compress(block, &mut bytes) } else { Form::RAW_BLOCK };
    if bytes.is_empty() {
        bytes.extend_from_slice(block);
    }
    bytes.resize(form.stored_len(), 0);
    (form, bytes)
}

/// Compresses consecutive blocks. After a block that looks random, a smaller sample of the next block is
/// examined: in a compressed or encrypted file, no block is worth compressing.
pub(crate) struct Compressor {
    scratch: Box<[u8]>,
    after_random: bool,
}

impl Default for Compressor {
    fn default() -> Compressor {
        let most = lz4_flex::block::get_maximum_output_size(BLOCK);
        Compressor { scratch: vec![0; most].into(), after_random: false }
    }
}

impl Compressor {
    /// Appends the compressed form of a block to `out`, or nothing if it is to be stored raw; returns the
    /// form.
    pub fn append(&mut self, block: &[u8; BLOCK], out: &mut Vec<u8>) -> Form {
        self.after_random =
            if self.after_random { looks_random::<16>(block) } else { looks_random::<64>(block) };
        if self.after_random {
            return Form::RAW_BLOCK;
        }
        match lz4_flex::block::compress_into(block, &mut self.scratch) {
            Ok(len) if LZ4_HEAD + len <= WORTH => {
                out.extend_from_slice(&(len as u16).to_le_bytes());
                out.extend_from_slice(&self.scratch[..len]);
                Form::lz4(LZ4_HEAD + len)
            }
            _ => Form::RAW_BLOCK,
        }
    }
}

/// Whether a block appears to be encrypted or compressed already, judged by four samples of `N` bytes, so
/// that a block whose data follows a short plain header is detected as well. Of 256 random bytes some 162
/// have different values, of 64 some 57; text and code have far fewer.
fn looks_random<const N: usize>(block: &[u8; BLOCK]) -> bool {
    let least = if 4 * N >= 256 { 140 } else { 3 * N };
    let mut seen = [0_u64; 4];
    for part in 0..4 {
        for byte in &block[part * 1024 + 480..][..N] {
            seen[usize::from(byte >> 6)] |= 1 << (byte & 63);
        }
    }
    seen.iter().map(|bits| bits.count_ones() as usize).sum::<usize>() > least
}

/// Unpacks a block that is stored singly in `bytes`, whose length matches its form.
///
/// # Errors
/// If no writer produces these bytes.
pub(crate) fn unpack(form: Form, bytes: &[u8], out: &mut [u8; BLOCK]) -> Result<(), FormatError> {
    const WHAT: &str = "stored block";
    match form.codec() {
        Some(Codec::Raw) if bytes.len() == BLOCK => out.copy_from_slice(bytes),
        Some(Codec::Lz4) => {
            let (len, rest) = bytes.split_first_chunk().ok_or(FormatError::Truncated(WHAT))?;
            let len = usize::from(u16::from_le_bytes(*len));
            let packed = rest.get(..len).ok_or(FormatError::Truncated(WHAT))?;
            if !matches!(lz4_flex::block::decompress_into(packed, out), Ok(BLOCK)) {
                return Err(FormatError::Value { what: WHAT, field: "lz4" });
            }
        }
        _ => return Err(FormatError::Value { what: WHAT, field: "form" }),
    }
    Ok(())
}

/// Compresses blocks as a group into `out`, which is padded to the slot unit; the former content of `out` is
/// dropped. Returns false if that would not save space.
pub(crate) fn compress_group(blocks: &[u8], out: &mut Vec<u8>) -> bool {
    let members = blocks.len() / BLOCK;
    assert!(blocks.len().is_multiple_of(BLOCK) && (1..=GroupHeader::MAX_MEMBERS).contains(&members));
    out.clear();
    out.resize(GroupHeader::SIZE + blocks.len(), 0);
    // With a destination no larger than the input, zstd fails if the data would not shrink.
    let Ok(len) = zstd::bulk::compress_to_buffer(blocks, &mut out[GroupHeader::SIZE..], ZSTD_LEVEL) else {
        return false;
    };
    GroupHeader { members: members as u8, frame_len: len as u32 }.encode(out);
    out.truncate(GroupHeader::SIZE + len);
    out.resize(out.len().next_multiple_of(Slot::UNIT), 0);
    out.len() <= members * WORTH
}

/// Unpacks a group: its blocks, concatenated.
///
/// # Errors
/// If no writer produces these bytes.
pub(crate) fn unpack_group(bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    let (header, frame) = GroupHeader::decode(bytes)?;
    let plain = usize::from(header.members) * BLOCK;
    match zstd::bulk::decompress(frame, plain) {
        Ok(blocks) if blocks.len() == plain => Ok(blocks),
        _ => Err(FormatError::Value { what: "group of blocks", field: "frame" }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Blocks that are typical of guests: text, sparse blocks, and random blocks.
    fn block() -> impl Strategy<Value = Vec<u8>> {
        let text = prop::collection::vec("[a-z]{1,9} ", 600..900).prop_map(|words| {
            let mut text = words.concat().into_bytes();
            text.resize(BLOCK, b'.');
            text
        });
        let sparse = (0..BLOCK, any::<u8>()).prop_map(|(at, byte)| {
            let mut block = vec![0; BLOCK];
            block[at] = byte;
            block
        });
        prop_oneof![text, sparse, prop::collection::vec(any::<u8>(), BLOCK)]
    }

    proptest! {
        #[test]
        fn a_block_comes_back(block in block()) {
            let (block, mut packed): (&[u8; BLOCK], _) = (block[..].try_into().unwrap(), Vec::new());
            let form = compress(block, &mut packed);
            if form == Form::RAW_BLOCK {
                packed.extend_from_slice(block);
            }
            packed.resize(form.stored_len(), 0);
            let mut out = [0xee; BLOCK];
            prop_assert_eq!(unpack(form, &packed, &mut out), Ok(()));
            prop_assert_eq!(&out, block);
        }

        #[test]
        fn a_group_comes_back(blocks in prop::collection::vec(block(), 1..=GROUP_BLOCKS)) {
            let (plain, mut packed) = (blocks.concat(), Vec::new());
            if compress_group(&plain, &mut packed) {
                prop_assert!(packed.len() < plain.len() && packed.len().is_multiple_of(Slot::UNIT));
                prop_assert_eq!(unpack_group(&packed), Ok(plain));
            }
        }

        #[test]
        fn any_bytes_are_unpacked_or_refused(form in 0..128u8, bytes in prop::collection::vec(any::<u8>(), 64..4096)) {
            let mut out = [0; BLOCK];
            let _ = unpack(Form(form), &bytes, &mut out);
            let _ = unpack_group(&bytes);
        }
    }

    #[test]
    fn random_blocks_are_known_without_compressing_them() {
        let mut state = 1_u64;
        let random: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(BLOCK)
        .collect();
        assert!(looks_random::<64>(random[..].try_into().unwrap()));
        assert!(looks_random::<16>(random[..].try_into().unwrap()));
        let code = include_bytes!("stored.rs");
        assert!(!looks_random::<64>(code[..BLOCK].try_into().unwrap()));
        assert!(!looks_random::<16>(code[..BLOCK].try_into().unwrap()));
        let mut packed = Vec::new();
        assert!(compress(code[..BLOCK].try_into().unwrap(), &mut packed).stored_len() <= WORTH);
    }
}
