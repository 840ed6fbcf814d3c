//! The values in effect, under the keys of the configuration file: for `forebay config show`, and for a
//! reload to determine what has changed.

use std::collections::BTreeMap;

use forebay_guest::{Class, Treatment};
use forebay_text::Size;

use super::explain::joined;
use super::nfs::rule_text;
use super::{PoolLocation, ServeConfig, line_of};

/// The action that applies a change of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppliedBy {
    /// A reload applies a change of the value.
    Reload,
    /// An upgrade or a restart applies a change of the value.
    Upgrade,
    /// Only a restart applies a change of the value.
    Restart,
}

/// A value in effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The key, such as `memory.read_cache`.
    pub key: &'static str,
    /// The value in the syntax of the file; `None` if the key has no value.
    pub value: Option<String>,
    /// What applies a change.
    pub applied_by: AppliedBy,
}

fn quoted(text: impl std::fmt::Display) -> String {
    // A string of JSON is a string of TOML as well.
    serde_json::Value::String(text.to_string()).to_string()
}

fn size(bytes: u64) -> String {
    quoted(Size(bytes).to_string().replace(' ', ""))
}

fn list(items: impl IntoIterator<Item = impl std::fmt::Display>) -> String {
    format!("[{}]", items.into_iter().map(quoted).collect::<Vec<_>>().join(", "))
}

/// Values that are shown in a short form only, in a text that differs when they differ.
fn lower(value: impl std::fmt::Debug) -> String {
    quoted(format!("{value:?}").to_lowercase())
}

fn key_of(class: Class) -> &'static str {
    match class {
        Class::Other => "classes.other",
        Class::Page => "classes.page",
        Class::Temporary => "classes.temporary",
        Class::Code => "classes.code",
        Class::Metadata => "classes.metadata",
        Class::Free => "classes.free",
    }
}

fn treatment(t: Treatment) -> String {
    format!("{{ dedup = {}, compress = {}, cache = {} }}", t.dedup, t.compress, lower(t.cache))
}

/// All values in effect, in the order of `docs/configuration.md`. Secrets are not included.
pub fn settings(c: &ServeConfig) -> Vec<Setting> {
    use AppliedBy::{Reload, Restart, Upgrade};
    let mut all = Vec::new();
    let mut add = |key, value, applied_by| all.push(Setting { key, value, applied_by });
    add("data", Some(quoted(c.data.display())), Restart);
    add("socket", Some(quoted(c.socket.display())), Restart);
    add("cores", Some(c.cores.to_string()), Upgrade);
    let pool = &c.pool;
    add("memory.read_cache", Some(size(pool.read_cache)), Reload);
    add("memory.map_cache", Some(size(pool.map_cache)), Upgrade);
    add("memory.write_buffer", Some(size(pool.write_buffer)), Upgrade);
    add("memory.desktops", Some(size(pool.desktops)), Reload);
    add("memory.mark", Some(size(pool.mark_memory)), Upgrade);
    add("memory.directory", Some(quoted(c.memory_dir.display())), Restart);
    add("store.limit", c.store_limit.map(size), Upgrade);
    if let PoolLocation::Rados(rados) = &c.location {
        add("store.pool", Some(quoted(&rados.address)), Restart);
        add("store.ceph_conf", rados.options.conf.as_ref().map(|path| quoted(path.display())), Upgrade);
        add("store.ceph_user", rados.options.user.as_ref().map(quoted), Upgrade);
        add("store.standby", Some(c.standby.to_string()), Restart);
        let interfaces = &c.client_interfaces;
        add("store.client_interfaces", (!interfaces.is_empty()).then(|| format!("{interfaces:?}")), Upgrade);
    }
    add("store.slow", c.store_slow.map(lower), Upgrade);
    add("log.segment", Some(size(pool.segment_bytes.into())), Upgrade);
    add("log.checkpoint", Some(size(pool.checkpoint_bytes)), Upgrade);
    add("commit.coalesce", Some(lower(pool.coalesce)), Upgrade);
    add("commit.max_delay_ms", Some(pool.commit_delay.as_millis().to_string()), Upgrade);
    add("durability.remote_answers", Some(lower(pool.remote_answers)), Upgrade);
    add("durability.on_memory_loss", Some(lower(pool.on_memory_loss)), Upgrade);
    add("boot.profile", Some(lower(pool.boot_profile)), Upgrade);
    add("classes.learn", Some(pool.learn_classes.to_string()), Upgrade);
    for class in Class::ALL {
        add(key_of(class), Some(treatment(pool.classes.of(class))), Upgrade);
    }
    add("reduce.compress", Some(pool.compress.to_string()), Upgrade);
    add("dedup.index", Some(size(pool.dedup_index)), Upgrade);
    front_ends(c, &mut add);
    let (limits, memory) = (&c.connections, &c.client_memory);
    add("limits.connections", Some(limits.all.to_string()), Reload);
    add("limits.connections_per_address", Some(limits.per_address.to_string()), Reload);
    add("limits.negotiating", Some(limits.negotiating.to_string()), Reload);
    add("limits.negotiation_timeout_s", Some(limits.negotiation.as_secs().to_string()), Reload);
    add("limits.client_memory", Some(size(memory.budget)), Upgrade);
    add("limits.stall_timeout_s", Some(memory.stall.as_secs().to_string()), Upgrade);
    add("metrics.volumes", Some(list(&c.metrics.volumes)), Reload);
    add("metrics.max_volumes", Some(c.metrics.max.to_string()), Reload);
    let https = c.http.https.as_ref();
    add("http.listen", c.http.listen.map(quoted), Restart);
    add("http.certificate", https.map(|files| quoted(files.certificate.display())), Upgrade);
    add("http.key", https.map(|files| quoted(files.key.display())), Upgrade);
    add("http.tokens", Some(lower(c.http.tokens)), Upgrade);
    add("http.hosts", Some(list(&c.http.hosts)), Upgrade);
    add("audit.file", c.audit.as_ref().map(|file| quoted(file.display())), Upgrade);
    add("import.max_size", Some(size(c.imports.max_bytes)), Upgrade);
    add("import.first_byte_timeout_s", Some(c.imports.first_byte.as_secs().to_string()), Upgrade);
    add("import.timeout_s", Some(c.imports.timeout.as_secs().to_string()), Upgrade);
    add("import.allow_private", Some(c.imports.allow_private.to_string()), Upgrade);
    add("logging.format", Some(lower(c.log.format)), Upgrade);
    add("logging.filter", Some(quoted(&c.log.filter)), Reload);
    all
}

/// Adds the values of NBD and iSCSI.
fn front_ends(c: &ServeConfig, add: &mut dyn FnMut(&'static str, Option<String>, AppliedBy)) {
    use AppliedBy::{Reload, Restart, Upgrade};
    let (main, others) = c.nbd.listeners.split_first().map_or((None, &[][..]), |(m, o)| (Some(m), o));
    add("nbd.listen", main.map(|l| list(&l.listen)), Restart);
    add("nbd.allow_remote", main.map(|l| l.allow_remote.to_string()), Upgrade);
    add("nbd.tls.mode", main.map(|l| lower(l.tls)), Upgrade);
    add("nbd.tls.certificates", c.nbd.tls.dir.as_ref().map(|dir| quoted(dir.display())), Upgrade);
    add(
        "nbd.tls.verify_peer",
        Some((c.nbd.tls.clients == forebay_frontend::nbd::ClientCertificates::Required).to_string()),
        Upgrade,
    );
    add("nbd.listener", (!others.is_empty()).then(|| list(others.iter().map(|l| format!("{l:?}")))), Upgrade);
    add("nfs.listen", Some(list(&c.nfs.listen)), Restart);
    add("nfs.portmap", Some(list(&c.nfs.portmap)), Restart);
    add("nfs.allow_remote", Some(c.nfs.allow_remote.to_string()), Restart);
    let rules: Vec<String> = c.nfs.access.iter().map(rule_text).collect();
    add("nfs.access", Some(rules.join(" ")), Upgrade);
    add("nvme.listen", Some(list(&c.nvme.listen)), Restart);
    add("nvme.discovery", Some(list(&c.nvme.discovery)), Restart);
    add("nvme.allow_remote", Some(c.nvme.allow_remote.to_string()), Restart);
    add("nvme.max_controllers", Some(c.nvme.limits.all.to_string()), Upgrade);
    add("nvme.max_controllers_per_address", Some(c.nvme.limits.per_address.to_string()), Upgrade);
    add("iscsi.listen", Some(list(&c.iscsi)), Restart);
    add("iscsi.portals", c.iscsi_paths.portals.as_ref().map(list), Upgrade);
    add("iscsi.while_standby", Some(lower(c.iscsi_paths.while_standby)), Upgrade);
    add("iscsi.port_group", Some(c.iscsi_paths.group.to_string()), Upgrade);
    add("iscsi.max_sessions", Some(c.iscsi_limits.all.to_string()), Upgrade);
    add("iscsi.max_sessions_per_initiator", Some(c.iscsi_limits.per_initiator.to_string()), Upgrade);
    add("iscsi.max_sessions_per_address", Some(c.iscsi_limits.per_address.to_string()), Upgrade);
    add("iscsi.chap_algorithms", Some(list(c.chap_algorithms.iter().map(|a| a.name().to_owned()))), Upgrade);
    add("iscsi.target", Some(list(c.iscsi_targets.iter().map(|t| &t.name))), Reload);
}

/// The keys that a file sets, such as `memory.read_cache`, with their lines. A separate table, such as
/// `store.slow`, counts as one key as well.
pub fn lines_of_keys(text: &str) -> BTreeMap<String, usize> {
    fn add(found: &mut BTreeMap<String, usize>, prefix: &str, table: &toml::de::DeTable<'_>, text: &str) {
        for (key, value) in table {
            let name = joined(prefix, key.get_ref());
            found.insert(name.clone(), line_of(text, key.span().start));
            if let toml::de::DeValue::Table(inner) = value.get_ref() {
                add(found, &name, inner, text);
            }
        }
    }
    let mut found = BTreeMap::new();
    if let Ok(table) = toml::de::DeTable::parse(text) {
        add(&mut found, "", table.get_ref(), text);
    }
    found
}
