//! The layout of a qcow2 file that is written from its beginning to its end (QEMU, docs/interop/qcow2.rst).
//!
//! The parts follow each other in this order: header, reference count table, reference count blocks, L1
//! table, the L2 tables that refer to data, and the data clusters in the order of their guest offsets. So the
//! numbers of data clusters and of L2 tables determine every offset, and the memory needed is one bit for
//! each entry of the L1 table. Clusters without data are unallocated: they read as zeroes, since there is no
//! backing file.

/// Bits of the offset in a cluster: QEMU's default.
const CLUSTER_BITS: u32 = 16;
/// Size of a cluster in bytes.
pub(super) const CLUSTER: u64 = 1 << CLUSTER_BITS;
/// Entries of an L2 table: one table covers 512 MiB.
pub(super) const L2_ENTRIES: u64 = CLUSTER / 8;
/// Reference counts in a block, of 16 bits each.
const REFCOUNTS: u64 = CLUSTER / 2;
/// Flag of a table entry: the reference count of the cluster is one, so that it can be written in place.
const COPIED: u64 = 1 << 63;
/// Length of the header of version 3.
const HEADER_LEN: u32 = 104;

/// The layout of one file.
#[derive(Debug)]
pub(super) struct Layout {
    /// Size of the disk in bytes.
    size: u64,
    /// For each entry of the L1 table, whether there is data below it.
    used: Vec<bool>,
    /// Number of data clusters.
    data: u64,
}

impl Layout {
    /// The layout for a disk of `size` bytes, at first without data.
    pub fn new(size: u64) -> Layout {
        let entries = size.div_ceil(CLUSTER * L2_ENTRIES).max(1);
        Layout { size, used: vec![false; entries as usize], data: 0 }
    }

    /// Adds the clusters from `first` up to `end`, which have data. Ranges are added in order, and are within
    /// the disk.
    pub fn add(&mut self, first: u64, end: u64) {
        self.data += end - first;
        for entry in first / L2_ENTRIES..=(end - 1) / L2_ENTRIES {
            self.used[entry as usize] = true;
        }
    }

    fn l1_clusters(&self) -> u64 {
        (self.used.len() as u64 * 8).div_ceil(CLUSTER)
    }

    fn l2_tables(&self) -> u64 {
        self.used.iter().filter(|used| **used).count() as u64
    }

    /// Clusters of the reference count table, and of reference count blocks. Both count themselves.
    fn refcount_clusters(&self) -> (u64, u64) {
        let others = 1 + self.l1_clusters() + self.l2_tables() + self.data;
        let (mut table, mut blocks) = (1, 1);
        loop {
            let needed = (others + table + blocks).div_ceil(REFCOUNTS);
            let needed_table = (needed * 8).div_ceil(CLUSTER).max(1);
            if (needed_table, needed) == (table, blocks) {
                return (table, blocks);
            }
            (table, blocks) = (needed_table, needed);
        }
    }

    /// Number of clusters before the L1 table.
    fn before_l1(&self) -> u64 {
        let (table, blocks) = self.refcount_clusters();
        1 + table + blocks
    }

    /// Length of the file in bytes.
    pub fn len(&self) -> u64 {
        (self.first_data() + self.data) * CLUSTER
    }

    /// Number of clusters before the first data cluster.
    fn first_data(&self) -> u64 {
        self.before_l1() + self.l1_clusters() + self.l2_tables()
    }

    /// Number of clusters before the L2 tables. [`Layout::metadata`] returns the contents of each one.
    pub fn metadata_clusters(&self) -> u64 {
        self.before_l1() + self.l1_clusters()
    }

    /// The contents of a cluster before the L2 tables.
    pub fn metadata(&self, cluster: u64) -> Vec<u8> {
        let (table, blocks) = self.refcount_clusters();
        let mut bytes = vec![0; CLUSTER as usize];
        if cluster == 0 {
            self.write_header(&mut bytes, table);
        } else if cluster <= table {
            let first = (cluster - 1) * (CLUSTER / 8);
            put_numbers(&mut bytes, (first..blocks).map(|block| (1 + table + block) * CLUSTER));
        } else if cluster < self.before_l1() {
            let first = (cluster - 1 - table) * REFCOUNTS;
            let counted = (self.len() / CLUSTER).saturating_sub(first).min(REFCOUNTS);
            bytes[..counted as usize * 2].as_chunks_mut().0.fill(1u16.to_be_bytes());
        } else {
            let first = ((cluster - self.before_l1()) * (CLUSTER / 8)) as usize;
            let before = self.used[..first].iter().filter(|used| **used).count() as u64;
            let mut next = self.metadata_clusters() + before;
            let entries = self.used[first..].iter().map(|used| match used {
                true => {
                    next += 1;
                    ((next - 1) * CLUSTER) | COPIED
                }
                false => 0,
            });
            put_numbers(&mut bytes, entries);
        }
        bytes
    }

    fn write_header(&self, bytes: &mut [u8], table: u64) {
        let l1_at = self.before_l1() * CLUSTER;
        let (l1_entries, table) = (self.used.len() as u32, table as u32);
        bytes[..4].copy_from_slice(b"QFI\xfb");
        for (at, number) in
            [(4, 3), (20, CLUSTER_BITS), (36, l1_entries), (56, table), (96, 4), (100, HEADER_LEN)]
        {
            bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
        }
        for (at, number) in [(24, self.size), (40, l1_at), (48, CLUSTER)] {
            bytes[at..at + 8].copy_from_slice(&number.to_be_bytes());
        }
    }

    /// The tables of the second level, which are filled in order.
    pub fn l2_tables_in_order(&self) -> L2Tables {
        L2Tables { table: None, next: self.first_data() }
    }
}

/// Writes numbers to `bytes` until either ends.
fn put_numbers(bytes: &mut [u8], numbers: impl Iterator<Item = u64>) {
    for (place, number) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
        *place = number.to_be_bytes();
    }
}

/// The L2 tables of a file, one at a time.
pub(super) struct L2Tables {
    /// The table that is being filled, with the number of its L1 entry.
    table: Option<(u64, Vec<u8>)>,
    /// The data cluster of the next entry.
    next: u64,
}

impl L2Tables {
    /// Adds the clusters of one table from `first` up to `end`. Returns the table before, if it is complete.
    pub fn add(&mut self, first: u64, end: u64) -> Option<Vec<u8>> {
        let (number, at) = (first / L2_ENTRIES, first % L2_ENTRIES);
        let complete = match &self.table {
            Some((present, _)) if *present == number => None,
            _ => {
                let table = (number, vec![0; CLUSTER as usize]);
                self.table.replace(table).map(|(_, table)| table)
            }
        };
        if let Some((_, table)) = &mut self.table {
            let entries = (self.next..self.next + (end - first)).map(|cluster| (cluster * CLUSTER) | COPIED);
            put_numbers(&mut table[at as usize * 8..], entries);
            self.next += end - first;
        }
        complete
    }

    /// Returns the last table.
    pub fn end(self) -> Option<Vec<u8>> {
        self.table.map(|(_, table)| table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIB: u64 = 1 << 40;

    /// A layout whose clusters in these ranges have data.
    fn layout(size: u64, ranges: &[(u64, u64)]) -> Layout {
        let mut layout = Layout::new(size);
        ranges.iter().for_each(|(first, end)| layout.add(*first, *end));
        layout
    }

    #[test]
    fn an_empty_disk_has_only_its_header_and_tables() {
        for size in [512, CLUSTER, CLUSTER * L2_ENTRIES] {
            let layout = layout(size, &[]);
            assert_eq!((layout.len(), layout.metadata_clusters()), (4 * CLUSTER, 4), "{size}");
            assert!(layout.metadata(3).iter().all(|b| *b == 0), "the L1 table refers to nothing");
            assert!(layout.l2_tables_in_order().end().is_none());
        }
    }

    #[test]
    fn every_cluster_of_the_file_is_counted_once() {
        for (size, ranges) in [
            (TIB, vec![(0, 1), (8191, 8193), (16_777_215, 16_777_216)]),
            (TIB, vec![(0, 100_000), (3_000_000, 3_000_001)]),
            // The blocks of reference counts need a block of reference counts more.
            (TIB, vec![(0, REFCOUNTS - 4)]),
            (64 * TIB, vec![(0, 1 << 30)]),
        ] {
            let layout = layout(size, &ranges);
            let (table, blocks) = layout.refcount_clusters();
            let clusters = layout.len() / CLUSTER;
            assert!(blocks * REFCOUNTS >= clusters && (blocks - 1) * REFCOUNTS < clusters);
            let counted: u64 = [1 + table, table + blocks]
                .map(|block| layout.metadata(block).iter().map(|b| u64::from(*b)).sum())
                .iter()
                .sum();
            let last = clusters - (blocks - 1) * REFCOUNTS;
            let expected = if blocks == 1 { 2 * last } else { REFCOUNTS + last };
            assert_eq!(counted, expected, "{ranges:?}");
        }
    }

    #[test]
    fn tables_refer_to_the_data_in_order() {
        let layout = layout(TIB, &[(5, 7), (8190, 8194), (40_000, 40_001)]);
        let (mut tables, mut complete) = (layout.l2_tables_in_order(), Vec::new());
        for (first, end) in [(5, 7), (8190, 8192), (8192, 8194), (40_000, 40_001)] {
            complete.extend(tables.add(first, end));
        }
        complete.extend(tables.end());
        assert_eq!(complete.len() as u64, layout.l2_tables());
        let entries = |bytes: &[u8]| -> Vec<(usize, u64)> {
            let numbers = bytes.as_chunks::<8>().0.iter().map(|n| u64::from_be_bytes(*n));
            numbers.enumerate().filter(|(_, n)| *n != 0).map(|(i, n)| (i, (n & !COPIED) / CLUSTER)).collect()
        };
        let l1 = entries(&layout.metadata(layout.before_l1()));
        let first = layout.metadata_clusters();
        assert_eq!(l1, [(0, first), (1, first + 1), (4, first + 2)]);
        let data = first + 3;
        assert_eq!(entries(&complete[0]), [(5, data), (6, data + 1), (8190, data + 2), (8191, data + 3)]);
        assert_eq!(entries(&complete[1]), [(0, data + 4), (1, data + 5)]);
        assert_eq!(entries(&complete[2]), [(40_000 - 4 * 8192, data + 6)]);
        assert_eq!(layout.len(), (data + 7) * CLUSTER);
    }
}
