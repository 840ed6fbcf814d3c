//! NTFS: clusters and file records of 1024 bytes.

use super::put;

const RECORD: usize = 1024;
const MFT: usize = 4;
const FIRST_USER: u32 = 24;
const ROOT: u32 = 5;

/// A volume under construction.
struct Volume {
    disk: Vec<u8>,
    /// Start and end of the last attribute of each record.
    used: Vec<(usize, usize)>,
}

impl Volume {
    fn new(records: usize, more_clusters: usize) -> Volume {
        let clusters = MFT + records + more_clusters;
        let mut disk = vec![0; (clusters + 1) * RECORD];
        put(&mut disk, 3, b"NTFS    \0\x02\x02");
        put(&mut disk, 40, &(clusters as u64 * 2).to_le_bytes());
        put(&mut disk, 48, &(MFT as u64).to_le_bytes());
        put(&mut disk, 56, &(MFT as u64).to_le_bytes());
        disk[64] = 1;
        let mut volume = Volume { disk, used: vec![(56, 56); records] };
        (0..records).for_each(|number| volume.record(number, None));
        let table = pairs(&[(records as u32, Some(MFT as i32))]);
        volume.clusters(0, 0x80, 0, (records * RECORD) as u64, &table);
        volume
    }

    /// Writes a record in use: an extension record if it has a `base`.
    fn record(&mut self, number: usize, base: Option<u32>) {
        let at = (MFT + number) * RECORD;
        let record = &mut self.disk[at..at + RECORD];
        put(record, 0, b"FILE\x30\0\x03\0");
        // The fixups and the ends of the sectors are zero.
        (record[16], record[20], record[22]) = (1, 56, 1);
        put(record, 24, &(RECORD as u32).to_le_bytes());
        put(record, 32, &base.map_or(0, |base| 1 << 48 | u64::from(base)).to_le_bytes());
        put(record, 56, &[0xff; 4]);
    }

    fn attribute(&mut self, number: usize, attribute: &[u8]) {
        let (last, used) = self.used[number];
        let record = &mut self.disk[(MFT + number) * RECORD..][..RECORD];
        // The end of a sector is reserved for the fixup: extend the previous attribute across it instead.
        let crosses = used < 510 && used + attribute.len() + 4 > 510;
        let at = if crosses { 512 } else { used };
        if crosses {
            put(record, last + 4, &((at - last) as u32).to_le_bytes());
        }
        assert!(at + attribute.len() + 4 <= RECORD - 2, "no room in record {number}");
        put(record, at, attribute);
        put(record, at + attribute.len(), &[0xff; 4]);
        self.used[number] = (at, at + attribute.len());
    }

    fn clusters(&mut self, number: usize, kind: u32, first_vcn: u64, size: u64, pairs: &[u8]) {
        let len = (64 + pairs.len()).next_multiple_of(8);
        let mut attribute = vec![0; len];
        put(&mut attribute, 0, &kind.to_le_bytes());
        put(&mut attribute, 4, &(len as u32).to_le_bytes());
        (attribute[8], attribute[32]) = (1, 64);
        put(&mut attribute, 16, &first_vcn.to_le_bytes());
        put(&mut attribute, 48, &size.to_le_bytes());
        put(&mut attribute, 56, &size.to_le_bytes());
        put(&mut attribute, 64, pairs);
        self.attribute(number, &attribute);
    }

    fn name(&mut self, number: usize, parent: u32, name: &str) {
        let len = (24 + 66 + name.len() * 2).next_multiple_of(8);
        let mut attribute = vec![0; len];
        put(&mut attribute, 0, &0x30_u32.to_le_bytes());
        put(&mut attribute, 4, &(len as u32).to_le_bytes());
        put(&mut attribute, 16, &(66 + name.len() as u32 * 2).to_le_bytes());
        attribute[20] = 24;
        put(&mut attribute, 24, &(1 << 48 | u64::from(parent)).to_le_bytes());
        attribute[24 + 64] = name.len() as u8;
        name.bytes().enumerate().for_each(|(i, byte)| attribute[24 + 66 + i * 2] = byte);
        self.attribute(number, &attribute);
    }
}

/// Encodes runs: a length, and the distance from the previous run, or `None` for a sparse run.
fn pairs(runs: &[(u32, Option<i32>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (len, distance) in runs {
        bytes.push(if distance.is_some() { 0x44 } else { 0x04 });
        bytes.extend(len.to_le_bytes());
        bytes.extend(distance.map(i32::to_le_bytes).into_iter().flatten());
    }
    bytes.push(0);
    bytes
}

/// A file with as many extension records as an attribute list can reference, each with the maximum number of
/// runs. `number` 0 is the MFT itself.
pub fn records(number: u32) -> Vec<u8> {
    const COUNT: u32 = 8000;
    let mut list = Vec::new();
    for other in FIRST_USER + 1..FIRST_USER + COUNT {
        let mut entry = [0; 32];
        (entry[0], entry[4]) = (0x80, 32);
        put(&mut entry, 16, &(1 << 48 | u64::from(other)).to_le_bytes());
        list.extend(entry);
    }
    let clusters = list.len().div_ceil(RECORD);
    let records = (FIRST_USER + COUNT) as usize;
    let mut volume = Volume::new(records, clusters);
    let lcn = MFT + records;
    put(&mut volume.disk[lcn * RECORD..], 0, &list);
    let run = pairs(&[(clusters as u32, Some(lcn as i32))]);
    volume.clusters(number as usize, 0x20, 0, list.len() as u64, &run);
    // One byte of length and one of distance: 3 bytes on disk for a run that needs 32 bytes of memory.
    let mut runs = [[0x11, 1, 0]; 120].concat();
    runs[2] = 1;
    runs.push(0);
    for other in FIRST_USER + 1..FIRST_USER + COUNT {
        volume.record(other as usize, Some(number));
        // One attribute in each half of the record.
        for part in 0..2 {
            volume.clusters(other as usize, 0x80, 1 << 30 | u64::from(other) << 9 | part << 8, 0, &runs);
        }
    }
    volume.disk
}

/// Nested directories with long names, below a temporary one. Files are in the last two directories in turns,
/// so that the path of each file has to be resolved again.
pub fn paths(depth: u32, files: u32) -> Vec<u8> {
    let mut volume = Volume::new((FIRST_USER + depth + files) as usize, 0);
    let long = "x".repeat(100);
    let first = FIRST_USER;
    for n in 0..depth {
        let number = (first + n) as usize;
        volume.disk[(MFT + number) * RECORD + 22] = 3;
        let (parent, name) = if n == 0 { (ROOT, "Temp") } else { (first + n - 1, &long[..]) };
        volume.name(number, parent, name);
    }
    for n in 0..files {
        let number = (first + depth + n) as usize;
        volume.name(number, first + depth - 1 - n % 2, "file");
        volume.clusters(number, 0x80, 0, 1024, &pairs(&[(1, Some(1))]));
    }
    volume.disk
}

/// An MFT with a sparse run after its records, whose length in bytes overflows.
pub fn hole() -> Vec<u8> {
    let mut volume = Volume::new(40, 0);
    let hole = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f, 0];
    let at = MFT * RECORD + 56;
    volume.used[0] = (56, 56);
    put(&mut volume.disk, at, &[0xff; 4]);
    let table = [&pairs(&[(40, Some(MFT as i32))])[..9], &hole].concat();
    volume.clusters(0, 0x80, 0, u64::MAX, &table);
    volume.disk
}

/// An MFT whose runs repeat the same clusters.
pub fn repeated_table() -> Vec<u8> {
    const CLUSTERS: u16 = 1900;
    let mut volume = Volume::new(40, CLUSTERS.into());
    volume.disk[(MFT + 40) * RECORD..][..usize::from(CLUSTERS) * RECORD].fill(b'A');
    volume.used[0] = (56, 56);
    put(&mut volume.disk, MFT * RECORD + 56, &[0xff; 4]);
    let mut runs = vec![0x12, 40, 0, MFT as u8];
    let [low, high] = CLUSTERS.to_le_bytes();
    (0..90).for_each(|_| runs.extend([0x12, low, high, 0]));
    runs.push(0);
    let clusters = 40 + 90 * u64::from(CLUSTERS);
    volume.clusters(0, 0x80, 0, clusters * RECORD as u64, &runs);
    volume.disk
}
