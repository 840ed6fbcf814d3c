//! The encoding of class maps as metadata; `docs/format.md` specifies the layout.

use forebay_guest::{ClassMap, Content};

use super::state::Learned;

const VERSION: u8 = 1;
/// The file systems, at the index that is their number in the encoding.
const FILE_SYSTEMS: [Content; 5] =
    [Content::Unknown, Content::Ntfs, Content::Ext, Content::Xfs, Content::Swap];

impl Learned {
    pub fn encode(&self) -> Vec<u8> {
        let number = |content: &Content| FILE_SYSTEMS.iter().position(|c| c == content).unwrap_or(0) as u8;
        let file_systems: Vec<u8> = self.file_systems.iter().take(u8::MAX.into()).map(number).collect();
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.learned_ms.to_le_bytes());
        out.push(file_systems.len() as u8);
        out.extend_from_slice(&file_systems);
        out.extend_from_slice(&self.map.encode());
        out
    }

    /// Decodes metadata; `None` if no release up to this one writes such bytes.
    pub fn decode(bytes: &[u8]) -> Option<Learned> {
        let (version, rest) = bytes.split_first()?;
        let (learned_ms, rest) = rest.split_first_chunk()?;
        let (count, rest) = rest.split_first()?;
        let (numbers, map) = rest.split_at_checked((*count).into())?;
        let file_systems: Option<Vec<_>> =
            numbers.iter().map(|n| FILE_SYSTEMS.get(usize::from(*n)).copied()).collect();
        Some(Learned {
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
    fn only_undamaged_encodings_are_decoded() {
        let learned = Learned {
            map: ClassMap::from_ranges(100, [(3..7, Class::Page), (20..99, Class::Code)]),
            file_systems: FILE_SYSTEMS.into(),
            learned_ms: 1_700_000_000_000,
        };
        let bytes = learned.encode();
        assert_eq!(Learned::decode(&bytes), Some(learned));
        assert!((0..bytes.len()).all(|len| Learned::decode(&bytes[..len]).is_none()));
        for at in [0, 10, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x80;
            assert_eq!(Learned::decode(&damaged), None, "byte {at}");
        }
    }
}
