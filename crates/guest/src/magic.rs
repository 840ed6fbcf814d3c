//! Detection of file and file system types by their first bytes.

use crate::bytes::{le16, le32, le64};

/// Bytes at the start of a file that are examined.
pub(crate) const HEAD: usize = 4096;
/// Minimum size of a program and of a swap area.
pub(crate) const MIN_FILE: u64 = 64;

/// Whether a file is a program or library: ELF or PE.
pub(crate) fn is_program(head: &[u8]) -> bool {
    is_elf(head) || is_pe(head)
}

/// ELF (gABI, chapter 4): an identification with a valid class, a valid byte order and version 1.
fn is_elf(head: &[u8]) -> bool {
    matches!(head, [0x7f, b'E', b'L', b'F', 1 | 2, 1 | 2, 1, ..])
}

/// PE (Microsoft, "PE Format", section "MS-DOS Stub"): the stub points to the signature. A DOS program has no
/// signature, and compilers put the signature within the first [`HEAD`] bytes.
fn is_pe(head: &[u8]) -> bool {
    let signature = || head.get(le32(head, 0x3c)? as usize..);
    head.starts_with(b"MZ") && signature().is_some_and(|s| s.starts_with(b"PE\0\0"))
}

/// A swap area, according to its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Swap {
    /// Length of the header in bytes: one page.
    pub header: u64,
    /// Length of the area in bytes, including the header.
    pub len: u64,
}

/// Detects a Linux swap area (include/linux/swap.h, `union swap_header`): a signature is at the end of the
/// first page, whose size depends on the architecture. Hibernation replaces the signature by other ones.
/// `head` contains the first page.
pub(crate) fn swap(head: &[u8], available: u64) -> Option<Swap> {
    const SIGNATURES: [&[u8]; 3] = [b"SWAPSPACE2", b"S1SUSPEND\0", b"ULSUSPEND\0"];
    let page = [4096, 8192, 16384, 65536].into_iter().find(|page| {
        let signature = head.get(page - 10..*page);
        signature.is_some_and(|s| SIGNATURES.contains(&s))
    })?;
    // A swap area of a big-endian machine is not detected. Little-endian guests refuse it too.
    let (version, last_page) = (le32(head, 1024)?, le32(head, 1028)?);
    let len = (u64::from(last_page) + 1) * page as u64;
    (version == 1 && last_page > 0 && len <= available).then_some(Swap { header: page as u64, len })
}

/// The file systems that this crate can parse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Ntfs,
    Ext,
    Xfs,
}

/// Detects the file system by the start of a volume.
pub(crate) fn file_system(head: &[u8]) -> Option<Kind> {
    match () {
        () if head.get(3..11) == Some(b"NTFS    ") => Some(Kind::Ntfs),
        () if head.starts_with(b"XFSB") => Some(Kind::Xfs),
        () if le16(head, 1024 + 0x38) == Some(0xef53) && le64(head, 1024) != Some(0) => Some(Kind::Ext),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elf_and_pe_files_are_detected_as_programs() {
        let mut pe = vec![0; 0x90];
        pe[..2].copy_from_slice(b"MZ");
        pe[0x3c] = 0x80;
        assert!(!is_program(&pe));
        pe[0x80..0x84].copy_from_slice(b"PE\0\0");
        assert!(is_program(&pe));
        pe[0x3f] = 0xff;
        assert!(!is_program(&pe) && !is_program(b"MZ"));
        assert!(is_program(b"\x7fELF\x02\x01\x01\0\0"));
        assert!(!is_program(b"\x7fELF\x03\x01\x01\0\0") && !is_program(b"") && !is_program(b"#!/bin/sh\n"));
    }

    #[test]
    fn swap_areas_of_all_page_sizes_are_detected() {
        let mut head = vec![0; 65536];
        head[1024] = 1;
        head[1028] = 9;
        head[16374..16384].copy_from_slice(b"SWAPSPACE2");
        assert_eq!(swap(&head, 10 * 16384), Some(Swap { header: 16384, len: 10 * 16384 }));
        assert_eq!(swap(&head, 10 * 16384 - 1), None);
        assert_eq!(swap(&head[..4096], 1 << 40), None);
        head[4086..4096].copy_from_slice(b"S1SUSPEND\0");
        assert_eq!(swap(&head[..4096], 1 << 40), Some(Swap { header: 4096, len: 10 * 4096 }));
    }
}
