//! What is known of a disk, as the bytes of a note; `docs/format.md` says how they are laid out.

use forebay_guest::{ClassMap, Content};

use super::Known;

const VERSION: u8 = 1;
/// By number.
const FILE_SYSTEMS: [Content; 5] =
    [Content::Unknown, Content::Ntfs, Content::Ext, Content::Xfs, Content::Swap];

impl Known {
    pub(super) fn encode(&self) -> Vec<u8> {
        let number = |content: &Content| FILE_SYSTEMS.iter().position(|c| c == content).unwrap_or(0) as u8;
        let file_systems: Vec<u8> = self.file_systems.iter().take(u8::MAX.into()).map(number).collect();
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.learned_ms.to_le_bytes());
        out.push(file_systems.len() as u8);
        out.extend_from_slice(&file_systems);
        out.extend_from_slice(&self.map.encode());
        out
    }

    /// `None` for what no release up to this one wrote.
    pub(super) fn decode(bytes: &[u8]) -> Option<Known> {
        let (version, rest) = bytes.split_first()?;
        let (learned_ms, rest) = rest.split_first_chunk()?;
        let (count, rest) = rest.split_first()?;
        let (numbers, map) = rest.split_at_checked((*count).into())?;
        let file_systems: Option<Vec<_>> =
            numbers.iter().map(|n| FILE_SYSTEMS.get(usize::from(*n)).copied()).collect();
        Some(Known {
            map: ClassMap::decode(map).ok().filter(|_| *version == VERSION)?,
            file_systems: file_systems?,
            learned_ms: u64::from_le_bytes(*learned_ms),
        })
    }
}

#[cfg(test)]
mod tests {
    use forebay_guest::Class;

    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let known = Known {
            map: ClassMap::from_ranges(100, [(3..7, Class::Page), (20..99, Class::Code)]),
            file_systems: FILE_SYSTEMS.into(),
            learned_ms: 1_700_000_000_000,
        };
        let bytes = known.encode();
        assert_eq!(Known::decode(&bytes), Some(known));
        assert!((0..bytes.len()).all(|len| Known::decode(&bytes[..len]).is_none()));
        for at in [0, 10, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x80;
            assert_eq!(Known::decode(&damaged), None, "byte {at}");
        }
    }
}
