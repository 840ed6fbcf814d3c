//! Declares each layout once: offsets for the code, a table for `docs/format.md`, compile-time checks.

/// One field of a persisted structure.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Name of the field, in upper case; the documentation prints it in lower case.
    pub name: &'static str,
    /// Offset of the field's first byte from the start of the structure.
    pub offset: usize,
    /// Length of the field in bytes.
    pub len: usize,
    /// Meaning of the field.
    pub what: &'static str,
}

/// One persisted structure.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Name of the structure.
    pub name: &'static str,
    /// Bytes of the fixed part of the structure.
    pub size: usize,
    /// Fields of the structure in order; gaps are reserved and written as zero.
    pub fields: &'static [Field],
}

impl Layout {
    /// Fails to compile if fields overlap, are out of order, or exceed the structure.
    pub(crate) const fn checked(self) -> Self {
        let (mut i, mut end) = (0, 0);
        while i < self.fields.len() {
            assert!(self.fields[i].offset >= end, "fields overlap or are out of order");
            end = self.fields[i].offset + self.fields[i].len;
            i += 1;
        }
        assert!(end <= self.size, "a field exceeds the end of the structure");
        self
    }
}

macro_rules! layout {
    ($module:ident, $name:literal, $size:expr, { $( $field:ident @ $off:expr, $len:expr, $what:literal; )* }) => {
        pub(crate) mod $module {
            #![allow(dead_code, unused_imports)]
            use super::*;
            pub const SIZE: usize = $size;
            $( #[doc = $what] pub const $field: std::ops::Range<usize> = $off..$off + $len; )*
            pub const LAYOUT: $crate::layout::Layout = $crate::layout::Layout {
                name: $name,
                size: $size,
                fields: &[ $( $crate::layout::Field { name: stringify!($field), offset: $off, len: $len, what: $what } ),* ],
            }.checked();
        }
    };
}
pub(crate) use layout;

use std::ops::Range;

pub(crate) fn put_u8(b: &mut [u8], at: Range<usize>, v: u8) {
    b[at.start] = v;
}
pub(crate) fn put_u16(b: &mut [u8], at: Range<usize>, v: u16) {
    b[at].copy_from_slice(&v.to_le_bytes());
}
pub(crate) fn put_u32(b: &mut [u8], at: Range<usize>, v: u32) {
    b[at].copy_from_slice(&v.to_le_bytes());
}
pub(crate) fn put_u64(b: &mut [u8], at: Range<usize>, v: u64) {
    b[at].copy_from_slice(&v.to_le_bytes());
}
pub(crate) fn put_bytes(b: &mut [u8], at: Range<usize>, v: &[u8]) {
    b[at].copy_from_slice(v);
}

fn array<const N: usize>(b: &[u8], at: Range<usize>) -> [u8; N] {
    let mut a = [0; N];
    a.copy_from_slice(&b[at]);
    a
}
pub(crate) fn get_u8(b: &[u8], at: Range<usize>) -> u8 {
    b[at.start]
}
pub(crate) fn get_u16(b: &[u8], at: Range<usize>) -> u16 {
    u16::from_le_bytes(array(b, at))
}
pub(crate) fn get_u32(b: &[u8], at: Range<usize>) -> u32 {
    u32::from_le_bytes(array(b, at))
}
pub(crate) fn get_u64(b: &[u8], at: Range<usize>) -> u64 {
    u64::from_le_bytes(array(b, at))
}
pub(crate) fn get_array<const N: usize>(b: &[u8], at: Range<usize>) -> [u8; N] {
    array(b, at)
}

/// Every layout of this version, in the order of `docs/format.md`.
pub const LAYOUTS: &[Layout] = &[
    crate::superblock::superblock::LAYOUT,
    crate::superblock::blob_ref::LAYOUT,
    crate::root::checkpoint_root::LAYOUT,
    crate::root::directory_ref::LAYOUT,
    crate::page::table_page::LAYOUT,
    crate::page::table_record::LAYOUT,
    crate::segment_record::segment_record::LAYOUT,
    crate::disk::disk::LAYOUT,
    crate::disk::op::LAYOUT,
    crate::disk::range::LAYOUT,
    crate::disk::mark::LAYOUT,
    crate::disk::attached::LAYOUT,
    crate::segment::segment_header::LAYOUT,
    crate::segment::segment_footer::LAYOUT,
    crate::segment::directory_entry::LAYOUT,
    crate::batch::batch_header::LAYOUT,
    crate::entry::put::LAYOUT,
    crate::entry::reference::LAYOUT,
    crate::entry::zero::LAYOUT,
    crate::entry::node::LAYOUT,
    crate::entry::blob::LAYOUT,
    crate::entry::catalogue::LAYOUT,
    crate::entry::relocate::LAYOUT,
    crate::relocation::relocation_map::LAYOUT,
    crate::relocation::relocation::LAYOUT,
    crate::group::group::LAYOUT,
    crate::address::block_ref::LAYOUT,
    crate::node::map_node::LAYOUT,
];
