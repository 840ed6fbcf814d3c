//! The quota of a tenant, as its clients see it.

use forebay_engine::{DiskLimits, Limits, SyncMode};
use forebay_wire::nbd::*;

use super::client::Client;
use super::support::{SIZE, TestServer};

const MIB: u64 = 1 << 20;

/// Bytes that are not zero.
fn data(len: u64) -> Vec<u8> {
    vec![7; len as usize]
}

#[test]
fn a_full_tenant_gets_enospc_and_the_others_do_not() {
    let server = TestServer::start();
    server.block_on(server.pool.create_volume("other", SIZE, SyncMode::Flush, 0)).unwrap();
    for (volume, tenant) in [("vol", "acme"), ("other", "umbrella")] {
        let limits = DiskLimits { tenant: Some(tenant.into()), limits: Limits::default() };
        server.pool.set_limits(volume, &limits).unwrap();
        server.pool.set_tenant_limits(tenant, Limits { quota: Some(4 * MIB), ..Limits::default() });
    }
    let mut vol = Client::open(&server.socket(), "vol");
    let mut other = Client::open(&server.socket(), "other");
    assert_eq!(vol.put(0, 0, &data(4 * MIB)).error, 0);
    for (flags, offset, len) in [(0, 4 * MIB, 4096), (CMD_FLAG_FUA, 32 * MIB, 512), (0, 3 * MIB, 2 * MIB)] {
        let refused = vol.put(flags, offset, &data(len));
        assert_eq!(refused.error, 28, "ENOSPC");
        assert!(refused.text.is_empty() || refused.text.contains("'acme'"), "{}", refused.text);
    }
    assert_eq!(other.put(0, 0, &data(4 * MIB)).error, 0, "another tenant is not affected");
    // Overwrites, flushes and reads are accepted, on the same connection.
    assert_eq!(vol.put(CMD_FLAG_FUA, MIB, &data(MIB)).error, 0);
    assert_eq!(vol.ask(0, CMD_FLUSH, 0, 0).error, 0);
    assert_eq!(vol.ask(0, CMD_READ, 4 * MIB, 4096).data, [0; 4096]);
    // A discard makes room, and so does a larger quota.
    assert_eq!(vol.ask(0, CMD_TRIM, 0, MIB as u32).error, 0);
    assert_eq!(vol.put(0, 8 * MIB, &data(MIB)).error, 0);
    assert_eq!(vol.put(0, 9 * MIB, &data(4096)).error, 28);
    server.pool.set_tenant_limits("acme", Limits { quota: Some(5 * MIB), ..Limits::default() });
    assert_eq!(vol.put(CMD_FLAG_FUA, 9 * MIB, &data(MIB)).error, 0);
    let usage = server.pool.tenants()[0].usage.unwrap();
    assert_eq!((usage.used_bytes, usage.refused), (5 * MIB, 4));
}
