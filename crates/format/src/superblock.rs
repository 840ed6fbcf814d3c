//! The superblock: the identity of the pool, its owner epoch, and the location of its last checkpoint.
//!
//! A store has two copies; generation `g` is written to copy `g % 2`, so a torn write leaves the other
//! intact.

use crate::checksum::check64;
use crate::layout::*;
use crate::{BLOCK, Features, FormatError, MAX_SEGMENT, Result, SegmentId, VERSION, check_version};

pub(crate) const MAGIC: &[u8; 8] = b"FOREBAY\0";
/// Maximum number of pieces of the root of a checkpoint.
pub const MAX_BLOBS: usize = 128;

/// Identity of a pool: 16 random bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PoolId(pub [u8; 16]);

impl std::fmt::Debug for PoolId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}
impl std::fmt::Display for PoolId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

layout!(blob_ref, "blob reference", 24, {
    SEGMENT @ 0, 4, "segment id";
    OFFSET @ 4, 4, "byte offset in the segment";
    LEN @ 8, 4, "length in bytes";
    CHECK @ 16, 8, "CRC-64/NVME of the bytes";
});

/// A piece or a page of a checkpoint: `len` bytes at `offset` of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobRef {
    /// The segment that contains the piece.
    pub segment: SegmentId,
    /// Byte offset of the piece in the segment.
    pub offset: u32,
    /// Length of the piece in bytes.
    pub len: u32,
    /// CRC-64/NVME of the piece.
    pub check: u64,
}

layout!(superblock, "superblock", BLOCK, {
    MAGIC @ 0, 8, "`FOREBAY\\0`";
    VERSION @ 8, 4, "format version";
    POOL_ID @ 16, 16, "pool id, random";
    GENERATION @ 32, 8, "number of this superblock; each swap adds one";
    EPOCH @ 40, 8, "ownership epoch; each opening for writing adds one";
    FINGERPRINT_KEY @ 48, 32, "key of the pool's fingerprints, random and secret";
    CREATED_MS @ 80, 8, "creation time, Unix milliseconds";
    SEGMENT_BYTES @ 88, 4, "size at which segments are sealed";
    BLOB_COUNT @ 92, 4, "pieces of the root of the checkpoint";
    SEQ @ 96, 8, "sequence number of the last batch that the checkpoint covers";
    CHAIN @ 104, 8, "checksum of that batch, to which the next one must link";
    MEMORY @ 112, 8, "id of the retained memory that belongs to the pool; 0 if none does";
    BOOT @ 120, 8, "CRC-64/NVME of the host's boot id when local clients were last served; 0 if none were";
    BLOBS @ 128, MAX_BLOBS * blob_ref::SIZE, "the pieces, as blob references";
    COMPATIBLE @ 3200, 8, "compatible features: a release that does not know one ignores it";
    READ_ONLY @ 3208, 8, "read-only compatible features: a release that does not know one changes nothing in the pool";
    INCOMPATIBLE @ 3216, 8, "incompatible features: a release that does not know one refuses the pool";
    CHECK @ 4088, 8, "CRC-64/NVME of all bytes before it";
});

/// The contents of a superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// The identity of the pool.
    pub pool: PoolId,
    /// Number of this superblock.
    pub generation: u64,
    /// Epoch of the pool's ownership.
    pub epoch: u64,
    /// Key of the pool's fingerprints.
    pub fingerprint_key: [u8; 32],
    /// Time of the pool's creation, in Unix milliseconds.
    pub created_ms: u64,
    /// Size at which segments are sealed.
    pub segment_bytes: u32,
    /// Sequence number of the last batch that the checkpoint covers.
    pub seq: u64,
    /// Checksum of the last batch that the checkpoint covers.
    pub chain: u64,
    /// Id of the retained memory that belongs to the pool; 0 if the pool has none.
    pub memory: u64,
    /// CRC-64/NVME of the host's boot id when local clients were last served; 0 if they never were.
    pub boot: u64,
    /// The checkpoint's pieces; empty in a pool without a checkpoint.
    pub blobs: Vec<BlobRef>,
    /// The features of the pool. All are kept, including features that this release does not know.
    pub features: Features,
}

/// Whether the checksum at the end of a superblock's block is correct. Its position is the same in every
/// version.
fn is_checksum_valid(b: &[u8]) -> bool {
    b.len() >= superblock::SIZE && check64(&b[..superblock::CHECK.start]) == get_u64(b, superblock::CHECK)
}

impl BlobRef {
    /// Encodes the blob reference.
    pub fn encode(&self) -> [u8; blob_ref::SIZE] {
        let mut b = [0; blob_ref::SIZE];
        put_u32(&mut b, blob_ref::SEGMENT, self.segment.0);
        put_u32(&mut b, blob_ref::OFFSET, self.offset);
        put_u32(&mut b, blob_ref::LEN, self.len);
        put_u64(&mut b, blob_ref::CHECK, self.check);
        b
    }

    /// Decodes a reference; `None` for bytes that writers never produce.
    pub fn decode(b: &[u8; blob_ref::SIZE]) -> Option<BlobRef> {
        let at = BlobRef {
            segment: SegmentId(get_u32(b, blob_ref::SEGMENT)),
            offset: get_u32(b, blob_ref::OFFSET),
            len: get_u32(b, blob_ref::LEN),
            check: get_u64(b, blob_ref::CHECK),
        };
        at.is_valid().then_some(at)
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.segment.0 != 0 && self.len > 0 && u64::from(self.offset) + u64::from(self.len) <= MAX_SEGMENT
    }
}

impl Superblock {
    /// A field with a value that writers never produce, if any.
    fn bad_field(&self) -> Option<&'static str> {
        let segment_bytes = u64::from(self.segment_bytes);
        if segment_bytes == 0 || segment_bytes > MAX_SEGMENT || !segment_bytes.is_multiple_of(BLOCK as u64) {
            return Some("segment_bytes");
        }
        if self.blobs.len() > MAX_BLOBS {
            return Some("blob_count");
        }
        (!self.blobs.iter().all(BlobRef::is_valid)).then_some("blobs")
    }

    /// Encodes into one block. At most [`MAX_BLOBS`] pieces are allowed.
    pub fn encode(&self) -> Vec<u8> {
        use superblock as l;
        assert_eq!(self.bad_field(), None, "the encoded superblock would be rejected when decoded");
        let mut b = vec![0; l::SIZE];
        put_bytes(&mut b, l::MAGIC, MAGIC);
        put_u32(&mut b, l::VERSION, VERSION);
        put_bytes(&mut b, l::POOL_ID, &self.pool.0);
        put_u64(&mut b, l::GENERATION, self.generation);
        put_u64(&mut b, l::EPOCH, self.epoch);
        put_bytes(&mut b, l::FINGERPRINT_KEY, &self.fingerprint_key);
        put_u64(&mut b, l::CREATED_MS, self.created_ms);
        put_u32(&mut b, l::SEGMENT_BYTES, self.segment_bytes);
        put_u32(&mut b, l::BLOB_COUNT, self.blobs.len() as u32);
        put_u64(&mut b, l::SEQ, self.seq);
        put_u64(&mut b, l::CHAIN, self.chain);
        put_u64(&mut b, l::MEMORY, self.memory);
        put_u64(&mut b, l::BOOT, self.boot);
        for (r, at) in self.blobs.iter().zip(b[l::BLOBS].chunks_exact_mut(blob_ref::SIZE)) {
            at.copy_from_slice(&r.encode());
        }
        put_u64(&mut b, l::COMPATIBLE, self.features.compatible);
        put_u64(&mut b, l::READ_ONLY, self.features.read_only);
        put_u64(&mut b, l::INCOMPATIBLE, self.features.incompatible);
        let check = check64(&b[..l::CHECK.start]);
        put_u64(&mut b, l::CHECK, check);
        b
    }

    /// Decodes one copy. The version is checked before the checksum, so that a pool of another version is
    /// reported as such.
    pub fn decode(b: &[u8]) -> Result<Superblock> {
        use superblock as l;
        const WHAT: &str = "superblock";
        if b.len() < l::SIZE {
            return Err(FormatError::Truncated(WHAT));
        }
        if &b[l::MAGIC] != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        check_version(WHAT, get_u32(b, l::VERSION))?;
        if !is_checksum_valid(b) {
            return Err(FormatError::Checksum(WHAT));
        }
        let features = Features {
            compatible: get_u64(b, l::COMPATIBLE),
            read_only: get_u64(b, l::READ_ONLY),
            incompatible: get_u64(b, l::INCOMPATIBLE),
        };
        features.check_readable().map_err(FormatError::Features)?;
        let count = get_u32(b, l::BLOB_COUNT) as usize;
        if count > MAX_BLOBS {
            return Err(FormatError::Value { what: WHAT, field: "blob_count" });
        }
        let blobs = b[l::BLOBS].as_chunks().0.iter().take(count).map(BlobRef::decode);
        let blobs: Option<Vec<_>> = blobs.collect();
        let superblock = Superblock {
            pool: PoolId(get_array(b, l::POOL_ID)),
            generation: get_u64(b, l::GENERATION),
            epoch: get_u64(b, l::EPOCH),
            fingerprint_key: get_array(b, l::FINGERPRINT_KEY),
            created_ms: get_u64(b, l::CREATED_MS),
            segment_bytes: get_u32(b, l::SEGMENT_BYTES),
            seq: get_u64(b, l::SEQ),
            chain: get_u64(b, l::CHAIN),
            memory: get_u64(b, l::MEMORY),
            boot: get_u64(b, l::BOOT),
            blobs: blobs.ok_or(FormatError::Value { what: WHAT, field: "blobs" })?,
            features,
        };
        match superblock.bad_field() {
            Some(field) => Err(FormatError::Value { what: WHAT, field }),
            None => Ok(superblock),
        }
    }

    /// Whether this release can change the pool.
    ///
    /// # Errors
    /// [`FormatError::Features`] if it can only read the pool.
    pub fn check_writable(&self) -> Result<()> {
        self.features.check_writable().map_err(FormatError::Features)
    }

    /// Returns the newer of the two copies that decodes, with the features of both; if neither decodes, the
    /// error of the better copy.
    pub fn choose(copies: [Option<&[u8]>; 2]) -> Result<Superblock> {
        let mut decoded = Vec::new();
        for copy in copies.into_iter().flatten() {
            let result = Superblock::decode(copy);
            // A copy of an unsupported format takes precedence: opening the other copy would revert to an old
            // state. The checksum must be correct: damage to the version must not make the good copy
            // unusable.
            if result.as_ref().is_err_and(FormatError::is_unsupported) && is_checksum_valid(copy) {
                return result;
            }
            decoded.push(result);
        }
        if let [Ok(a), Ok(b)] = &decoded[..]
            && a.pool != b.pool
        {
            return Err(FormatError::Foreign { what: "superblock copy", field: "pool_id" });
        }
        // A feature of one copy is a feature of the pool: the newest copy may be damaged, and the pool uses a
        // feature only while both copies have it.
        let readable = decoded.iter().flatten();
        let features = readable.fold(Features::default(), |all, copy| all.union(copy.features));
        let best = decoded.into_iter().max_by_key(|result| match result {
            Ok(superblock) => (6, superblock.generation),
            Err(e) if e.is_unsupported() => (5, 0),
            Err(FormatError::Checksum(_)) => (3, 0),
            Err(FormatError::Truncated(_)) => (2, 0),
            Err(FormatError::Magic(_)) => (1, 0),
            Err(_) => (4, 0),
        });
        let best = best.unwrap_or(Err(FormatError::Truncated("superblock")))?;
        Ok(Superblock { features, ..best })
    }
}
