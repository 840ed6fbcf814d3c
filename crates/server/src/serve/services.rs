//! The services of a server with an open pool: data plane, control plane, API, background tasks. They are
//! built from the listening sockets and from connections that another process, or an earlier incarnation of
//! this one, handed over; a start, an upgrade and an upgrade that failed differ only in these.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::serve::Listener;
use forebay_cluster::owned::OwnedNames;
use forebay_cluster::owned_images::OwnedImages;
use forebay_control::access::{Access, Audit};
use forebay_control::http::{Entry, Origin};
use forebay_control::limits::LimitTable;
use forebay_control::operations::{
    Control, DisksOfShard, ImagesOfShard, Observed, ServerInfo, ServerRequest,
};
use forebay_control::resources::router;
use forebay_engine::Pool;
use forebay_files::Files;
use forebay_frontend::iscsi::{self, PortGroups};
use forebay_frontend::plane::{self, ConnectionLimits, Gate, ListenAddr, Parked, Plane};
use forebay_frontend::scsi::Units;
use forebay_frontend::targets::Targets;
use forebay_frontend::{nbd, nfs, nvme};
use forebay_store::StoreError;
use forebay_store::rados::{StandbyWatch, images_namespace};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::ServeError;
use super::classes;
use super::health;
use super::host::descriptors::Descriptors;
use super::host::notify;
use super::host::pressure::{self, Budgets};
use super::listen::connection_limit::LimitedListener;
use super::listen::http::{self, ClientAddress};
use super::listen::https::HttpsCertificate;
use super::listen::sockets::{Sockets, specific};
use super::ownership::client_network;
use super::ownership::heirs;
use super::ownership::lease::Lease;
use super::ownership::publish::Publisher;
use super::reload::{self, Followers, Reloader};
use super::shard_process::{ShardOf, own_shard};
use super::upgrade::{CacheCopy, HandedOver};
use crate::config::{ServeConfig, TokenMode};

/// Time that requests and jobs in progress have to finish after a stop signal.
pub(super) const DRAIN: Duration = Duration::from_millis(2500);

/// How often the times at which tokens were last used are written.
const FLUSH_TOKENS: Duration = Duration::from_secs(60);

/// Time for requests on connections that were accepted just before an upgrade. Their clients repeat them.
const LATE_REQUESTS: Duration = Duration::from_millis(50);

/// Services that are ready to run and serve no client yet.
pub(super) struct Prepared {
    plane: Plane,
    cores: usize,
    pool: Arc<Pool>,
    gate: Gate,
    targets: Arc<Targets>,
    limits: Arc<LimitTable>,
    /// The files that are served over NFS.
    files: Option<Arc<Files>>,
    units: Arc<Units>,
    known_hosts: Arc<iscsi::KnownHosts>,
    certificates: nbd::Certificates,
    info: ServerInfo,
    control_listener: UnixListener,
    http: Option<TcpListener>,
    http_hosts: Arc<[String]>,
    https: Option<Arc<HttpsCertificate>>,
    /// Runtime on which requests of the API are served.
    requests: Handle,
    access: Arc<Access>,
    api_connections: usize,
    most_connections: usize,
    /// A copy of the read cache of the former process, in an upgrade.
    cache: Option<CacheCopy>,
    /// Publishes what other servers of a pool in Ceph need to know.
    publisher: Option<Publisher>,
    /// Watches the standbys of a pool in Ceph.
    standbys: Option<StandbyWatch>,
    /// The names and images of the cluster, if the pool is a shard of one.
    shared: Option<(Arc<OwnedNames>, Arc<OwnedImages>)>,
    /// The network interfaces to the clients, if the pool is in Ceph.
    client_interfaces: Vec<String>,
    /// What metrics report in addition to the pool.
    observed: Observed,
    /// Number of connections of the former process that continue.
    pub resumed: usize,
}

/// The running parts of a server with an open pool.
pub(super) struct Services {
    pub plane: plane::Handle,
    pub control: Control,
    pub access: Arc<Access>,
    pub units: Arc<Units>,
    /// Tasks that serve the listeners of the API.
    pub listeners: Vec<JoinHandle<()>>,
    /// Tasks that are aborted when the server stops.
    pub background: Vec<JoinHandle<()>>,
}

/// The settings of the iSCSI portals. At the process of a shard, initiators discover the portals of the node.
fn iscsi_settings<'a>(
    config: &'a ServeConfig,
    own: Option<&'a ShardOf>,
    groups: &Arc<PortGroups>,
    known: &Arc<iscsi::KnownHosts>,
) -> iscsi::Settings<'a> {
    let portals = own.map(|own| &*own.portals).filter(|portals| !portals.is_empty());
    iscsi::Settings {
        limits: config.iscsi_limits,
        chap_algorithms: &config.chap_algorithms,
        groups: groups.clone(),
        known: known.clone(),
        addresses: &config.iscsi,
        portals: portals.or(config.iscsi_paths.portals.as_deref()),
        is_shard: own.is_some(),
    }
}

impl Prepared {
    /// Builds the services of `pool`, and resumes connections. A connection that cannot be served any more is
    /// closed.
    pub async fn new(
        config: &ServeConfig,
        descriptors: &Descriptors,
        (pool, store): (Arc<Pool>, &Lease),
        groups: &Arc<PortGroups>,
        (sockets, requests): (&Sockets, &Handle),
        state: HandedOver,
    ) -> Result<Prepared, ServeError> {
        groups.activate(groups.own());
        let gate = store.gate();
        let targets = Arc::new(Targets::load(pool.clone()).await);
        if let Err(e) = targets.apply(&config.iscsi_targets).await {
            tracing::error!("cannot set up the iSCSI targets of the configuration: {e}");
        }
        // Before any client is served.
        let disk_limits = Arc::new(LimitTable::load(pool.clone()).await);
        let units = Arc::new(Units::new());
        let resumed_units = units.resume(&pool, &state.units).await?;
        let limits = connection_limits(config, descriptors);
        let mut plane = Plane::with_bound(limits, config.client_memory, sockets.data()?);
        plane.set_gate(gate.clone());
        plane.keep_until_resumed(Arc::new(resumed_units));
        let nbd::Listening { listeners, certificates, clients } =
            nbd::listen(&mut plane, &pool, &config.nbd)?;
        let known_hosts = iscsi::KnownHosts::load(&pool).await;
        let own = own_shard();
        let settings = iscsi_settings(config, own.as_ref(), groups, &known_hosts);
        let disks = iscsi::Disks::Own { pool: pool.clone(), units: units.clone() };
        let iscsi = iscsi::listen(&mut plane, disks, targets.served().clone(), &settings)?;
        let nvme = nvme::listen(
            &mut plane,
            (pool.clone(), units.clone()),
            (targets.served().clone(), known_hosts.clone()),
            &config.nvme.settings(),
        )?;
        let (nfs, files) = listen_nfs(&mut plane, &pool, config).await?;
        let publishes = !iscsi.is_empty() || own.is_some();
        let publisher =
            publishes.then(|| publisher(config, store, &pool, &targets, groups, &iscsi)).flatten();
        let failed = |source| ServeError::Store { pool: config.location.to_string(), source };
        let shared = own.map(|own| shared(&own, &pool, &targets, store)).transpose().map_err(failed)?;
        let resumed = resume(&mut plane, state.connections);
        let (control_listener, http) = {
            // The reactor of the thread of requests watches these listeners.
            let _context = requests.enter();
            (sockets.control()?, sockets.http()?)
        };
        let http_address = http.as_ref().map(TcpListener::local_addr).transpose()?;
        let info = server_info(config, listeners, (&iscsi, &nvme, &nfs), http_address);
        Ok(Prepared {
            plane,
            cores: config.cores,
            pool,
            gate,
            targets,
            limits: disk_limits,
            files,
            units,
            known_hosts,
            certificates,
            info,
            control_listener,
            http,
            http_hosts: config.http.hosts.clone().into(),
            https: config.http.https.as_ref().map(HttpsCertificate::load).transpose()?.map(Arc::new),
            requests: requests.clone(),
            access: access(config)?,
            api_connections: descriptors.control,
            most_connections: descriptors.clients,
            cache: state.cache,
            publisher,
            standbys: store.ownership().and_then(|ownership| ownership.standbys()),
            shared,
            client_interfaces: config.client_interfaces.clone(),
            observed: Observed { nbd: clients, ..observed(config, store) },
            resumed,
        })
    }

    /// Serves clients.
    pub fn run(
        self,
        upgrades: mpsc::Sender<ServerRequest>,
        reloader: Arc<Reloader>,
    ) -> Result<Services, ServeError> {
        let Prepared { pool, targets, units, .. } = self;
        let plane = self.plane.run(self.cores)?;
        if let Some(cache) = self.cache {
            cache.fill(Arc::downgrade(&pool));
        }
        let control = Control::new(pool.clone(), targets.clone(), units.clone(), self.limits, self.info);
        control.accept_upgrades(upgrades);
        control.set_gate(self.gate);
        if let Some(files) = self.files {
            control.set_files(files);
        }
        if let Some((names, images)) = &self.shared {
            control.set_names(names.clone());
            control.set_images(images.clone());
        }
        let observed = Observed { plane: plane.counters(), ..self.observed };
        control.observe(|it| *it = observed);
        let (budgets, configured) = watch::channel(Budgets::of(&pool));
        let followers = Followers {
            control: control.clone(),
            certificates: self.certificates,
            https: self.https.clone(),
            access: self.access.clone(),
            limits: plane.limits(),
            most_connections: self.most_connections,
            budgets,
        };
        let mut background = vec![
            tokio::spawn(pressure::watch(pool.clone(), configured)),
            tokio::spawn(iscsi::remember(self.known_hosts, pool.clone(), targets.served().clone())),
            tokio::spawn(iscsi::follow(targets, units.clone())),
            tokio::spawn(reload::on_hangup(reloader, followers)?),
            tokio::spawn(flush_tokens(self.access.clone())),
            tokio::spawn(classes::learn(control.clone())),
            tokio::spawn(health::watch(control.clone())),
            tokio::spawn(notify::feed_watchdog(plane.probe(), pool)),
        ];
        if let Some((names, images)) = self.shared {
            let maintain = async move { names.maintain(async |pause| tokio::time::sleep(pause).await).await };
            background.push(tokio::spawn(maintain));
            let publishing = images.clone();
            background.push(tokio::spawn(async move { images.maintain().await }));
            background.push(tokio::spawn(async move { publishing.publish_all().await }));
        }
        background.extend(self.publisher.map(|publisher| tokio::spawn(publisher.run())));
        background
            .extend(self.standbys.map(|standbys| tokio::spawn(heirs::watch(standbys, control.clone()))));
        if !self.client_interfaces.is_empty() {
            let watch = client_network::watch(self.client_interfaces, control.clone());
            background.push(tokio::spawn(watch));
        }
        let serve = Api { control: control.clone(), access: self.access.clone(), requests: self.requests };
        let socket_listener =
            LimitedListener::new(self.control_listener, self.api_connections, control.stopping());
        let socket_entry = Entry::new(Origin::Socket, &self.http_hosts);
        let uploads = socket_entry.uploads.clone();
        let mut listeners = vec![serve.listen(socket_listener, socket_entry, None)];
        if let Some(listener) = self.http {
            let origin = Origin::of_address(listener.local_addr()?.ip());
            let listener = LimitedListener::new(listener, self.api_connections, control.stopping());
            let entry = Entry { origin, tls: self.https.is_some(), hosts: self.http_hosts, uploads };
            listeners.push(serve.listen(listener, entry, self.https));
        }
        let access = self.access;
        Ok(Services { plane, control, access, units, listeners, background })
    }
}

impl Services {
    /// Finishes requests in progress, jobs and API calls, within [`DRAIN`].
    pub async fn drain(self) {
        self.background.iter().for_each(JoinHandle::abort);
        let drained = async {
            tokio::join!(self.plane.shutdown(), self.control.stop(DRAIN));
            for listener in self.listeners {
                // A listener that panicked has no requests left to finish.
                let _ = listener.await;
            }
        };
        // Connections that are still open then are cut, so that time is left to make everything durable.
        let in_time = tokio::time::timeout(DRAIN, drained).await;
        if let Err(e) = self.access.tokens.flush() {
            tracing::warn!("{e}");
        }
        if in_time.is_err() {
            tracing::warn!(
                "some clients did not receive their replies within {DRAIN:?}; their connections are cut"
            );
        }
    }
}

/// Opens the files of the pool and serves them, if NFS has an address.
async fn listen_nfs(
    plane: &mut Plane,
    pool: &Arc<Pool>,
    config: &ServeConfig,
) -> Result<(Vec<ListenAddr>, Option<Arc<Files>>), ServeError> {
    if config.nfs.listen.is_empty() {
        return Ok((Vec::new(), None));
    }
    let files = Files::open(pool.clone()).await.map_err(nfs::ListenFailed::from)?;
    Ok((nfs::listen(plane, files.clone(), &config.nfs.settings())?, Some(files)))
}

fn server_info(
    config: &ServeConfig,
    nbd: Vec<nbd::ServedListener>,
    (iscsi, nvme, nfs): (&[ListenAddr], &[ListenAddr], &[ListenAddr]),
    http: Option<SocketAddr>,
) -> ServerInfo {
    // Clients of a shard use the addresses of its node.
    let nbd = match own_shard() {
        Some(own) => {
            own.nbd.iter().filter_map(|text| text.parse().ok()).map(nbd::ServedListener::plain).collect()
        }
        None => nbd,
    };
    ServerInfo {
        host: forebay_host::name::host_name(),
        data: config.data.clone(),
        pool: config.location.to_string(),
        nbd,
        iscsi: iscsi.iter().map(ToString::to_string).collect(),
        nvme: nvme.iter().map(ToString::to_string).collect(),
        nfs: nfs.iter().map(ToString::to_string).collect(),
        http: http.map(|addr| addr.to_string()),
        imports: config.imports,
        started: Instant::now(),
    }
}

/// Resumes the connections that a predecessor has handed over. Returns how many can continue.
fn resume(plane: &mut Plane, connections: Vec<Parked>) -> usize {
    let resumed = connections.into_iter().map(|parked| plane.resume(parked));
    let failed = |reason: &String| tracing::warn!(reason, "a connection cannot continue and is closed");
    resumed.filter(|resumed| resumed.as_ref().inspect_err(|e| failed(e)).is_ok()).count()
}

/// What metrics report in addition to the pool, before the data plane runs.
fn observed(config: &ServeConfig, store: &Lease) -> Observed {
    Observed {
        held: store.held(),
        write_buffer: config.pool.write_buffer,
        series: config.metrics.clone(),
        ..Observed::default()
    }
}

/// The limits of the configuration, lowered to the number of available descriptors.
pub(super) fn connection_limits(config: &ServeConfig, descriptors: &Descriptors) -> ConnectionLimits {
    let wanted = config.connections;
    let limits = lowered(wanted, descriptors.clients);
    let all = limits.all;
    if all < wanted.all {
        let limit = descriptors.limit;
        tracing::warn!(
            wanted = wanted.all,
            connections = all,
            "the limit of {limit} open files allows fewer connections than configured (ulimit -n, LimitNOFILE=)"
        );
    }
    limits
}

/// The limits with at most this many connections. A part of them is reserved for clients that have
/// negotiated.
pub(crate) fn lowered(wanted: ConnectionLimits, most: usize) -> ConnectionLimits {
    let all = wanted.all.min(most);
    ConnectionLimits { all, negotiating: wanted.negotiating.min(all.div_ceil(2)), ..wanted }
}

/// What publishes the targets of a pool in Ceph for other servers.
fn publisher(
    config: &ServeConfig,
    store: &Lease,
    pool: &Arc<Pool>,
    targets: &Targets,
    groups: &Arc<PortGroups>,
    iscsi: &[ListenAddr],
) -> Option<Publisher> {
    let ownership = store.ownership().filter(|ownership| ownership.notice_board().is_some())?;
    let (paths, bound) = (&config.iscsi_paths, specific(iscsi));
    Some(Publisher::new(Arc::downgrade(&ownership), pool, targets.served(), groups, paths, bound))
}

/// The names and images of the cluster for the pool that is this shard of it.
fn shared(
    own: &ShardOf,
    pool: &Arc<Pool>,
    targets: &Arc<Targets>,
    store: &Lease,
) -> Result<(Arc<OwnedNames>, Arc<OwnedImages>), StoreError> {
    let ownership = store.ownership();
    let term = ownership.as_ref().and_then(|ownership| ownership.term());
    let Some((ownership, term)) = ownership.zip(term) else { return Err(StoreError::Fenced) };
    let disks =
        DisksOfShard { pool: pool.clone(), targets: targets.clone(), shard: own.shard, gate: store.gate() };
    let objects = ownership.beside(&own.cluster)?;
    let segments = ownership.beside(&images_namespace(&own.cluster))?;
    let names = OwnedNames::new(objects.clone(), own.shard, term, Arc::new(disks));
    let images = Arc::new(ImagesOfShard { pool: pool.clone() });
    let images = OwnedImages::new(objects, segments, (own.shard, term), images);
    Ok((Arc::new(names), Arc::new(images)))
}

/// The access control of a configuration.
fn access(config: &ServeConfig) -> Result<Arc<Access>, ServeError> {
    let audit = open_audit(config.audit.as_deref())?;
    Ok(Access::load(&config.data, config.http.tokens == TokenMode::Always, audit))
}

/// Opens the audit log.
pub(crate) fn open_audit(path: Option<&Path>) -> Result<Audit, ServeError> {
    let failed = |error| ServeError::Audit { path: path.unwrap_or(Path::new("")).to_owned(), error };
    Audit::open(path).map_err(failed)
}

/// Writes the times at which tokens were last used.
async fn flush_tokens(access: Arc<Access>) {
    loop {
        tokio::time::sleep(FLUSH_TOKENS).await;
        if let Err(e) = access.tokens.flush() {
            tracing::warn!("{e}");
        }
    }
}

/// What the listeners of the API share.
struct Api {
    control: Control,
    access: Arc<Access>,
    requests: Handle,
}

impl Api {
    /// Serves the API on a listener until the control plane stops.
    fn listen<L>(
        &self,
        listener: LimitedListener<L>,
        entry: Entry,
        certificate: Option<Arc<HttpsCertificate>>,
    ) -> JoinHandle<()>
    where
        L: Listener,
        L::Io: Sync,
        L::Addr: ClientAddress + Send,
    {
        let router = router(self.control.clone(), self.access.clone(), entry);
        let control = self.control.clone();
        self.requests.spawn(async move {
            let stop = async move {
                control.stopped().await;
                if control.is_upgrading() {
                    tokio::time::sleep(LATE_REQUESTS).await;
                }
            };
            http::serve(listener, router, certificate, stop).await;
        })
    }
}
