//! Needs of a fleet, from what a running server has measured on a smaller fleet.

use forebay_api::{ActivityView, ServerView, StatsView};

use super::{BOOT_S, Fleet, LIVE_SHARE, Memory, Needs, cores};

/// The counters of a server.
pub struct Measured<'a> {
    /// Statistics of the pool.
    pub stats: &'a StatsView,
    /// Activity of the pool's disks.
    pub disks: &'a [ActivityView],
    /// Figures of the server process.
    pub server: &'a ServerView,
}

/// Minimum time and minimum number of operations from which figures are computed.
const MIN_UPTIME_S: u64 = 60;
const MIN_OPS: u64 = 1000;

impl Measured<'_> {
    /// Scales the figures to a fleet; an error names what is missing.
    pub fn needs(&self, fleet: &Fleet) -> Result<Needs, String> {
        let active: Vec<_> = self.disks.iter().filter(|d| d.clients > 0).collect();
        let uptime = self.server.uptime_s;
        let guest = &self.stats.guest;
        let ops = guest.read.ops + guest.write.ops;
        if active.is_empty() || uptime < MIN_UPTIME_S || ops < MIN_OPS {
            return Err(format!(
                "the server has measured too little: {} disks have clients, {ops} operations in {uptime} s; measure at least \
                 {MIN_OPS} operations in {MIN_UPTIME_S} s while guests work",
                active.len()
            ));
        }
        let (now, scale) = (active.len() as f64, fleet.count() / active.len() as f64);
        let guest_iops = ops as f64 / uptime as f64;
        let store = &self.stats.store;
        let store_iops = (store.read.ops + store.write.ops) as f64 / uptime as f64;
        let cached = active.iter().map(|d| d.cached_bytes).sum::<u64>() as f64 / now;
        let Memory { read_cache, desktops, ram } =
            fleet.memory(self.stats.read_cache.bytes as f64, cached * fleet.count());
        let model = fleet.needs();
        Ok(Needs {
            read_cache_bytes: read_cache as u64,
            desktop_memory_bytes: desktops as u64,
            ram_bytes: ram as u64,
            capacity_bytes: (self.stats.stored_bytes as f64 * scale.max(1.0) / LIVE_SHARE) as u64,
            guest_boot_iops: model.guest_boot_iops,
            guest_work_iops: guest_iops * scale,
            store_boot_iops: model.store_boot_iops,
            store_work_iops: store_iops * scale,
            cores: cores(model.guest_boot_iops.max(guest_iops * scale), super::CPU_S),
            assumptions: vec![
                format!(
                    "rates are means over {uptime} s of {} disks with clients, multiplied by {scale:.1}",
                    active.len()
                ),
                "reads of the image are shared by the fleet, so store operations grow less: this is an upper bound".into(),
                "stored data grows with the number of disks: the image is counted with them, an upper bound".into(),
                format!("boots are not measured: those of the model, within {:.0} minutes", BOOT_S / 60.0),
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ImageKind, Profile};
    use super::*;
    use forebay_api::{CountView, GuestView};

    #[test]
    fn rates_are_scaled_to_the_fleet() {
        let count = |ops| CountView { ops, bytes: ops * 4096 };
        let guest = GuestView { read: count(6000), write: count(6000), ..GuestView::default() };
        let mut stats = StatsView { guest, ..StatsView::default() };
        stats.store.read = count(120);
        let disk = |clients| ActivityView { name: "d".into(), clients, guest, cached_bytes: 100 << 20 };
        let disks = [disk(1), disk(1), disk(0)];
        let mut server = ServerView {
            version: String::new(),
            host: String::new(),
            data: String::new(),
            pool: String::new(),
            pid: 1,
            uptime_s: 600,
            nbd: Vec::new(),
            iscsi: Vec::new(),
            nvme: Vec::new(),
            nfs: Vec::new(),
            http: None,
            owner: None,
        };
        let fleet = Fleet {
            desktops: 20,
            profile: Profile::Knowledge,
            image: ImageKind::Win11,
            read_cache: None,
            desktop_memory: None,
            hours: 8.0,
        };
        let needs = Measured { stats: &stats, disks: &disks, server: &server }.needs(&fleet).unwrap();
        assert_eq!((needs.guest_work_iops, needs.store_work_iops), (200.0, 2.0));
        assert_eq!(needs.desktop_memory_bytes, 2304 << 20);
        server.uptime_s = 10;
        let refused = Measured { stats: &stats, disks: &disks, server: &server }.needs(&fleet).unwrap_err();
        assert!(refused.contains("measured too little"), "{refused}");
    }
}
