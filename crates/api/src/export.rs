//! Exports of disks in the API: the contents of a disk as of one moment, as the body of a response.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Header of the response with the id of the job of the export. If the response ends before its end, the job
/// has the error.
pub const JOB_HEADER: &str = "x-forebay-job";
/// Header of the response with the size of the disk in bytes.
pub const SIZE_HEADER: &str = "x-forebay-disk-size";

/// The format in which a disk is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ExportFormat)]
pub enum Format {
    /// A qcow2 file without unallocated clusters.
    #[default]
    Qcow2,
    /// All bytes of the disk, also zeroes.
    Raw,
    /// The data of the disk, each piece after an [`ExtentHeader`]; holes and zeroes are not sent.
    Extents,
    /// The ranges that have changed, without their data: a [`DifferenceLine`] in each line.
    Changes,
    /// A stream that another pool receives: what has changed, with its data and checksums.
    Stream,
}

impl Format {
    /// The formats with the contents of a disk.
    pub const ALL: [Format; 3] = [Format::Qcow2, Format::Raw, Format::Extents];

    /// The name in a query.
    pub fn name(self) -> &'static str {
        match self {
            Format::Qcow2 => "qcow2",
            Format::Raw => "raw",
            Format::Extents => "extents",
            Format::Changes => "changes",
            Format::Stream => "stream",
        }
    }

    /// The media type of the response.
    pub fn media_type(self) -> &'static str {
        match self {
            Format::Qcow2 | Format::Raw => "application/octet-stream",
            Format::Extents => "application/vnd.forebay.extents",
            Format::Changes => "application/x-ndjson",
            Format::Stream => "application/vnd.forebay.stream",
        }
    }
}

/// The header before a piece of data in the format [`Format::Extents`]: two big-endian numbers of 64 bits. A
/// header at the size of the disk with a length of 0 is the end; a response without this end is incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentHeader {
    /// Offset of the data on the disk in bytes, after all earlier data.
    pub offset: u64,
    /// Length of the data in bytes.
    pub len: u64,
}

impl ExtentHeader {
    /// Length of an encoded header in bytes.
    pub const LEN: usize = 16;
    /// Maximum length of the data after a header, in bytes.
    pub const MAX_DATA: u64 = 1 << 20;

    /// Encodes the header.
    pub fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.offset.to_be_bytes());
        bytes[8..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// Decodes a header.
    pub fn decode(bytes: &[u8; Self::LEN]) -> ExtentHeader {
        let number = |at: usize| bytes[at..at + 8].iter().fold(0, |n, b| (n << 8) | u64::from(*b));
        ExtentHeader { offset: number(0), len: number(8) }
    }
}

/// A line of the difference between a disk and an earlier snapshot or image. The ranges are in order, do not
/// overlap, and contain every difference. All ranges between them are equal. The last line is `End`; a
/// response without it is incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "change", rename_all = "lowercase")]
pub enum DifferenceLine {
    /// A range that was written.
    Data {
        /// Offset of the range on the disk in bytes.
        offset_bytes: u64,
        /// Length of the range in bytes.
        length_bytes: u64,
    },
    /// A range that had data, and reads as zeroes now.
    Zero {
        /// Offset of the range on the disk in bytes.
        offset_bytes: u64,
        /// Length of the range in bytes.
        length_bytes: u64,
    },
    /// The end of the difference.
    End {
        /// Size of the disk in bytes. If the earlier disk is longer, the end of it was cut off.
        size_bytes: u64,
        /// Size of the earlier disk in bytes; absent without an earlier disk.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from_size_bytes: Option<u64>,
        /// Sum of all ranges that were written.
        data_bytes: u64,
        /// Sum of all ranges that read as zeroes now.
        zero_bytes: u64,
    },
}

/// The result of an export, in its job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exported {
    /// The format that was sent.
    pub format: Format,
    /// Size of the disk in bytes.
    pub size_bytes: u64,
    /// Bytes of the response.
    pub sent_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_decoded_as_they_were_encoded() {
        let header = ExtentHeader { offset: 0x0102_0304_0506_0708, len: 1 << 20 };
        let bytes = header.encode();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0x10, 0, 0]);
        assert_eq!(ExtentHeader::decode(&bytes), header);
    }
}
