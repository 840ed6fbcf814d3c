//! SIGHUP: the configuration is read again, and what can change while clients are connected takes effect.
//!
//! **All or nothing.** The whole new configuration is checked first; if it is wrong, the server continues
//! with its present configuration, and the log names the error. Keys that need an upgrade or a restart are
//! named in the log and keep their values. [`Reloader::current`] is the configuration in effect, also if the
//! pool is opened again after an upgrade that failed.

use std::sync::Arc;

use forebay_control::access::Access;
use forebay_control::operations::Control;
use forebay_engine::PoolConfig;
use forebay_frontend::nbd;
use forebay_frontend::plane::LimitsHandle;
use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::host::pressure::Budgets;
use super::host::{memory_limits, notify};
use super::listen::https::HttpsCertificate;
use super::services::lowered;
use crate::config::{AppliedBy, ConfigError, ServeConfig, settings};
use crate::log::set_filter;

/// Reads the configuration of the process again.
pub type Load = Box<dyn Fn() -> Result<ServeConfig, ConfigError> + Send + Sync>;

/// The configuration in effect, and its source.
pub(super) struct Reloader {
    load: Load,
    current: Mutex<Arc<ServeConfig>>,
}

/// The parts of a server that follow the configuration.
pub(super) struct Followers {
    pub control: Control,
    pub certificates: nbd::Certificates,
    pub https: Option<Arc<HttpsCertificate>>,
    pub access: Arc<Access>,
    pub limits: LimitsHandle,
    /// Maximum number of connections that the file descriptors allow.
    pub most_connections: usize,
    pub budgets: watch::Sender<Budgets>,
}

impl Reloader {
    pub fn new(config: ServeConfig, load: Load) -> Reloader {
        Reloader { load, current: Mutex::new(Arc::new(config)) }
    }

    /// The configuration in effect.
    pub fn current(&self) -> Arc<ServeConfig> {
        self.current.lock().clone()
    }

    /// Reads the configuration, and applies it.
    async fn reload(&self, followers: &Followers) {
        let loaded = (self.load)().map_err(|e| e.to_string());
        let checked = loaded.and_then(|new| match super::check(&new) {
            Ok(()) => Ok(new),
            Err(e) => Err(e.to_string()),
        });
        let new = match checked {
            Ok(new) => new,
            Err(e) => {
                return tracing::error!("the configuration was not reloaded, the former one stays: {e}");
            }
        };
        let old = self.current();
        let changed = changed(&old, &new);
        for (key, by) in changed.iter().filter(|(_, by)| *by != AppliedBy::Reload) {
            let with = if *by == AppliedBy::Upgrade { "'forebay upgrade' or a restart" } else { "a restart" };
            tracing::warn!("{key} cannot change while the server runs; {with} applies it");
        }
        let applied = apply(&old, new, followers).await;
        // The values in effect are compared: other values apply later, and are compared then.
        if changed.iter().any(|(key, by)| key.starts_with("memory.") && *by == AppliedBy::Reload) {
            memory_limits::log_warnings(&applied, memory_limits::Measured::AtReload);
        }
        *self.current.lock() = Arc::new(applied);
        let applied = changed.iter().filter(|(_, by)| *by == AppliedBy::Reload);
        let keys: Vec<&str> = applied.map(|(key, _)| *key).collect();
        match keys.is_empty() {
            true => tracing::info!("configuration reloaded; nothing has changed"),
            false => tracing::info!("configuration reloaded; changed: {}", keys.join(", ")),
        }
    }
}

/// The keys whose values differ between two configurations.
fn changed(old: &ServeConfig, new: &ServeConfig) -> Vec<(&'static str, AppliedBy)> {
    let (old, new) = (settings(old), settings(new));
    let of = |key| new.iter().find(|s| s.key == key);
    let gone = old.iter().filter(|s| of(s.key).map(|n| &n.value) != Some(&s.value));
    let added = new.iter().filter(|n| old.iter().all(|s| s.key != n.key));
    gone.chain(added).map(|s| (s.key, s.applied_by)).collect()
}

/// Applies what can change, and returns the configuration in effect afterwards.
async fn apply(old: &ServeConfig, new: ServeConfig, followers: &Followers) -> ServeConfig {
    let control = &followers.control;
    if new.log.filter != old.log.filter && !set_filter(&new.log.filter) {
        tracing::warn!("FOREBAY_LOG sets the filter of the log; logging.filter has no effect");
    }
    let (read_cache, desktops) = (new.pool.read_cache, new.pool.desktops);
    followers.budgets.send_replace(Budgets { read_cache, desktops });
    followers.limits.set(lowered(new.connections, followers.most_connections));
    control.set_volume_series(new.metrics.clone());
    match followers.certificates.reload() {
        Ok(true) => tracing::info!("TLS certificates read again"),
        Ok(false) => {}
        Err(e) => tracing::error!("cannot reload the TLS certificates, those in use are kept: {e}"),
    }
    match followers.https.as_ref().map(|https| https.reload()) {
        Some(Ok(())) => tracing::info!("the certificate of the API was read again"),
        Some(Err(e)) => tracing::error!("cannot reload the certificate of the API: {e}"),
        None => {}
    }
    if let Err(error) = followers.access.audit.reopen() {
        tracing::error!(%error, "cannot open the audit log again; the file in use is kept");
    }
    if let Err(e) = control.targets().apply(&new.iscsi_targets).await {
        tracing::error!("cannot apply the iSCSI targets of the configuration: {e}");
    }
    let pool = PoolConfig { read_cache, desktops, ..old.pool.clone() };
    let log = crate::log::LogConfig { filter: new.log.filter, ..old.log.clone() };
    let (connections, metrics, iscsi_targets) = (new.connections, new.metrics, new.iscsi_targets);
    ServeConfig { pool, log, connections, metrics, iscsi_targets, ..old.clone() }
}

/// Reloads the configuration on each SIGHUP.
pub(super) fn on_hangup(
    reloader: Arc<Reloader>,
    followers: Followers,
) -> std::io::Result<impl Future<Output = ()>> {
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        while hangup.recv().await.is_some() {
            notify::reloading();
            reloader.reload(&followers).await;
            notify::notify("READY=1");
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigFile, Overrides};

    fn config(text: &str) -> ServeConfig {
        ServeConfig::resolve(ConfigFile::parse("f", text).unwrap(), Overrides::default()).unwrap()
    }

    #[test]
    fn changed_keys_are_found_with_what_applies_them() {
        let old = config("data = '/d'\n[memory]\nread_cache = '1G'");
        let new = config("data = '/e'\n[memory]\nread_cache = '2G'\nmap_cache = '1G'\n[store]\nlimit = '1G'");
        let expected = [
            ("data", AppliedBy::Restart),
            ("socket", AppliedBy::Restart),
            ("memory.read_cache", AppliedBy::Reload),
            ("memory.map_cache", AppliedBy::Upgrade),
            ("store.limit", AppliedBy::Upgrade),
        ];
        assert_eq!(changed(&old, &new), expected);
        assert!(changed(&old, &old).is_empty());
    }
}
