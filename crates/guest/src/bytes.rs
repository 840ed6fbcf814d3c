//! Integers in byte slices of untrusted length: each function returns `None` if the field is beyond the end.

macro_rules! readers {
    ($($name:ident $integer:ident $from:ident $doc:literal;)*) => {$(
        #[doc = $doc]
        pub(crate) fn $name(bytes: &[u8], at: usize) -> Option<$integer> {
            const LEN: usize = size_of::<$integer>();
            let field = bytes.get(at..)?.first_chunk::<LEN>()?;
            Some($integer::$from(*field))
        }
    )*};
}

readers! {
    le16 u16 from_le_bytes "Little-endian, 16 bits.";
    le32 u32 from_le_bytes "Little-endian, 32 bits.";
    le64 u64 from_le_bytes "Little-endian, 64 bits.";
    be16 u16 from_be_bytes "Big-endian, 16 bits.";
    be32 u32 from_be_bytes "Big-endian, 32 bits.";
    be64 u64 from_be_bytes "Big-endian, 64 bits.";
}
