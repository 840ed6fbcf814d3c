//! The HTTP API of a cluster, which each node serves. The servers of the shards implement the API; the
//! gateway decides which server gets a request.
//!
//! - A request that concerns a disk goes to the owner of the shard that has the disk ([`route`]). The names
//!   of disks are unique in the cluster.
//! - Lists of disks and of jobs are merged from all shards ([`lists`]); so is the health.
//! - A new volume, or an image that is imported, gets into a shard of this node; so do clones of an image
//!   that every shard can clone, and a target, unless the request names a disk: all disks of a target are in
//!   the target's shard.
//! - What each shard has separately is at `/shards/NUMBER/...`.
//!
//! The gateway does not authenticate clients: the node has done that before, and names the client in a header
//! ([`FORWARDED_CLIENT`]). The servers of the shards decide what the client may do.

mod forward;
mod lists;
mod problem;
mod route;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use forebay_api::{
    CapacityView, ClusterImageView, ClusterView, FORWARDED_CLIENT, HealthState, HealthView, LocationView,
    NodeStateView, PORTALS, PREFIX, PortalsView, Resets, SOCKET_HOST,
};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use tokio::time::timeout;

use self::lists::Lists;
use self::problem::Failure;
use self::route::{Destination, destination};
use crate::{BoxFuture, Shards, Stream};

/// Maximum length of the body of a request in bytes, and the time in which the body has to arrive.
const MAX_BODY: usize = 2 << 20;
const BODY_TIME: Duration = Duration::from_secs(20);
/// Maximum length of a response that the gateway reads itself, in bytes.
const MAX_RESPONSE: usize = 32 << 20;
/// Maximum number of volumes that one request resets.
const MAX_RESETS: usize = 10_000;
/// Most shards that are asked for the room.
const CAPACITY_SHARDS: usize = 4;
/// How long a request for the health waits for a shard, and how long a request for metrics does.
const HEALTH: Duration = Duration::from_secs(3);

/// The operations of a cluster that its API needs.
pub trait Cluster: Shards {
    /// Opens a stream to the API of the present owner of a shard. It fails at once if the shard has no owner
    /// that answers.
    fn connect_api(&self, shard: u32) -> BoxFuture<'_, io::Result<Stream>>;

    /// The shard that has the target of this name, in lower case; `None` if no shard has one.
    fn locate_target<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Option<u32>>>;

    /// The shards of those of these names that a volume or an image has.
    fn locate_all<'a>(&'a self, names: &'a [&'a str]) -> BoxFuture<'a, io::Result<BTreeMap<String, u32>>>;

    /// Whether every shard can clone the image of this name without its home.
    fn is_shared<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<bool>>;

    /// The images that every shard can clone.
    fn images(&self) -> BoxFuture<'_, io::Result<Vec<ClusterImageView>>>;

    /// The nodes and shards, without the images.
    fn view(&self) -> ClusterView;

    /// The shards, in order.
    fn shards(&self) -> Vec<u32>;

    /// The shards that this node serves.
    fn own_shards(&self) -> Vec<u32>;

    /// Where clients connect: to this node, and to others that follow it. With `local`, addresses for clients
    /// of this host are included.
    fn portals(&self, local: bool) -> Vec<PortalsView>;
}

#[derive(Clone)]
struct Gateway {
    cluster: Arc<dyn Cluster>,
    lists: Lists,
    /// Number of the next choice of a shard.
    next: Arc<AtomicUsize>,
}

/// The router of the API of a cluster.
pub fn router(cluster: Arc<dyn Cluster>) -> Router {
    Router::new().fallback(handle).with_state(Gateway {
        cluster,
        lists: Lists::default(),
        next: Arc::default(),
    })
}

/// Gets a resource of each of these shards as text: `None` if the server of the shard does not answer in
/// time.
pub async fn texts(cluster: &Arc<dyn Cluster>, shards: &[u32], path: &str) -> Vec<(u32, Option<String>)> {
    let ask = |shard: u32| {
        let (cluster, path) = (cluster.clone(), path.to_owned());
        async move {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static(SOCKET_HOST));
            let answer = async {
                let response = forward::get(&*cluster, shard, &path, &headers, Duration::ZERO).await?;
                if response.status() != StatusCode::OK {
                    return Err(Failure::broken(shard, &response.status()));
                }
                forward::collect(shard, response.into_body(), MAX_RESPONSE).await
            };
            let bytes = timeout(HEALTH, answer).await.unwrap_or_else(|e| Err(Failure::broken(shard, &e)))?;
            String::from_utf8(bytes.into()).map_err(|e| Failure::broken(shard, &e))
        }
    };
    let answers = forward::ask_all(shards, ask).await;
    answers.into_iter().map(|(shard, answer)| (shard, answer.ok())).collect()
}

async fn handle(State(gateway): State<Gateway>, request: Request<Body>) -> Response {
    gateway.serve(request).await.unwrap_or_else(Failure::into_response)
}

impl Gateway {
    async fn serve(&self, request: Request<Body>) -> Result<Response, Failure> {
        let uri = request.uri().clone();
        let Some(raw) = uri.path().strip_prefix(PREFIX).filter(|raw| raw.starts_with('/')) else {
            return Err(Failure::each_shard());
        };
        let query = uri.query().unwrap_or_default();
        let cluster = &*self.cluster;
        let mut request = buffered(request).await?;
        self.tell_portals(raw, request.headers_mut())?;
        match destination(request.method(), raw) {
            Destination::Disk(name) => self.forward(self.shard_of(&name).await?, request).await,
            Destination::Clone => self.forward(self.shard_for_clone(&request).await?, request).await,
            Destination::Source => {
                let name = parse::<NamedDisk>(&request)?.source.ok_or_else(|| lacks("source"))?;
                self.forward(self.shard_of(volume_of(&name)).await?, request).await
            }
            Destination::Target(name) => self.forward(self.shard_of_target(&name).await?, request).await,
            Destination::TargetWithDisk(name) => {
                let disk = parse::<NamedDisk>(&request)?.disk.ok_or_else(|| lacks("disk"))?;
                let target = self.find_target(&name).await?;
                match (target, self.find(volume_of(&disk)).await?) {
                    (Some(shard), Some(other)) if other != shard => {
                        Err(Failure::other_shard(&name, shard, &disk, other))
                    }
                    // The answer of its server states what is missing.
                    (target, _) => {
                        self.forward(target.map_or_else(|| self.any_shard(&name), Ok)?, request).await
                    }
                }
            }
            Destination::NewTarget => {
                let shard = match parse::<NamedDisk>(&request)?.disk {
                    Some(disk) => self.shard_of(volume_of(&disk)).await?,
                    None => self.choose(false, request.headers())?,
                };
                self.forward(shard, request).await
            }
            Destination::New => self.forward(self.shard_for_volume(&request)?, request).await,
            Destination::Import => {
                let is_file = matches!(parse::<NamedSource>(&request)?.source, Some(SourceKind::File(_)));
                self.forward(self.choose(is_file, request.headers())?, request).await
            }
            Destination::All(key) => {
                let place = self.lists.begin(request.headers())?;
                let headers = request.headers().clone();
                lists::list(self.cluster.clone(), headers, (uri.path(), query), key, place).await
            }
            Destination::Health => self.health(request.headers(), uri.path()).await,
            Destination::Capacity => self.capacity(request.headers(), uri.path()).await,
            Destination::Resets => self.reset(request).await,
            Destination::Shard(shard, path) => {
                if !cluster.shards().contains(&shard) {
                    return Err(Failure::bad_request(format!("the cluster has no shard {shard}")));
                }
                let query = if query.is_empty() { String::new() } else { format!("?{query}") };
                forward::forward(cluster, shard, Some(&format!("{PREFIX}{path}{query}")), request).await
            }
            Destination::Cluster => {
                let images = cluster.images().await.map_err(|e| Failure::directory(&e))?;
                Ok(axum::Json(ClusterView { images, ..cluster.view() }).into_response())
            }
            Destination::Location(name, path) => self.location(&name, &path, request.headers()).await,
            Destination::EachShard => Err(Failure::each_shard()),
        }
    }

    /// The shard of the source of a clone; a shard for a new disk if every shard can clone the source.
    async fn shard_for_clone(&self, request: &Request<Bytes>) -> Result<u32, Failure> {
        let name = parse::<NamedDisk>(request)?.source.ok_or_else(|| lacks("source"))?;
        match self.is_shared(&name).await? {
            true => self.choose(false, request.headers()),
            false => self.shard_of(volume_of(&name)).await,
        }
    }

    /// Notifies the server of a shard where clients connect: it has the addresses of its node only.
    fn tell_portals(&self, raw: &str, headers: &mut HeaderMap) -> Result<(), Failure> {
        headers.remove(PORTALS);
        if raw.ends_with("/connect") && !raw.starts_with("/shards/") {
            let portals = serde_json::to_vec(&self.cluster.portals(true));
            let value = portals.map(|portals| HeaderValue::from_bytes(&portals));
            let value = value.map_err(|e| Failure::internal(e.to_string()))?;
            headers.insert(PORTALS, value.map_err(|e| Failure::internal(e.to_string()))?);
        }
        Ok(())
    }

    /// The shard for a new volume.
    fn shard_for_volume(&self, request: &Request<Bytes>) -> Result<u32, Failure> {
        // The server of the shard judges a body that cannot be read.
        match parse::<NewVolume>(request).is_ok_and(|new| new.spread) {
            true => self.choose_among(&shards_of_all(&self.cluster.view()), request.headers()),
            false => self.choose(false, request.headers()),
        }
    }

    async fn forward(&self, shard: u32, request: Request<Bytes>) -> Result<Response, Failure> {
        forward::forward(&*self.cluster, shard, None, request).await
    }

    /// The shard of the disk with this name. If no disk has the name, any shard: its server gives the answer,
    /// so that a client with a scope cannot distinguish a missing disk from a hidden one.
    async fn shard_of(&self, name: &str) -> Result<u32, Failure> {
        self.find(name).await?.map_or_else(|| self.any_shard(name), Ok)
    }

    /// Whether every shard can clone the image of this name.
    async fn is_shared(&self, name: &str) -> Result<bool, Failure> {
        self.cluster.is_shared(name).await.map_err(|e| Failure::directory(&e))
    }

    async fn find(&self, name: &str) -> Result<Option<u32>, Failure> {
        self.cluster.locate(name).await.map_err(|e| Failure::directory(&e))
    }

    /// The shard of the target with this name; any shard if there is no such target.
    async fn shard_of_target(&self, name: &str) -> Result<u32, Failure> {
        self.find_target(name).await?.map_or_else(|| self.any_shard(name), Ok)
    }

    async fn find_target(&self, name: &str) -> Result<Option<u32>, Failure> {
        // As servers of shards keep the names of targets.
        let found = self.cluster.locate_target(&name.to_ascii_lowercase()).await;
        found.map_err(|e| Failure::directory(&e))
    }

    /// A shard that a text selects: one of this node, if it has any.
    fn any_shard(&self, text: &str) -> Result<u32, Failure> {
        self.pick(&self.cluster.own_shards(), hash_of(text))
    }

    fn pick(&self, own: &[u32], number: usize) -> Result<u32, Failure> {
        let all = self.cluster.shards();
        let shards = if own.is_empty() { &all } else { own };
        let chosen = number.checked_rem(shards.len()).map(|index| shards[index]);
        chosen.ok_or_else(|| Failure::internal("the cluster has no shard"))
    }

    /// A shard for a new disk or target: one of this node, if it has any; one after another. A request that
    /// is repeated with its key gets to the same shard, which has the key.
    fn choose(&self, must_be_here: bool, headers: &HeaderMap) -> Result<u32, Failure> {
        let own = self.cluster.own_shards();
        if own.is_empty() && must_be_here {
            let why = "this node has no shard that could read the file; run the command on a node that has one, or import \
                       from a URL";
            return Err(Failure::bad_request(why));
        }
        self.choose_among(&own, headers)
    }

    /// One of these shards, or one of all if there are none.
    fn choose_among(&self, shards: &[u32], headers: &HeaderMap) -> Result<u32, Failure> {
        let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok());
        self.pick(shards, key.map_or_else(|| self.next.fetch_add(1, Relaxed), hash_of))
    }

    async fn location(&self, name: &str, path: &str, headers: &HeaderMap) -> Result<Response, Failure> {
        let number = self.shard_of(name).await?;
        if headers.contains_key(FORWARDED_CLIENT) {
            // The server of the shard decides whether the client may see the disk.
            let path = format!("{PREFIX}{path}");
            let shown = forward::get(&*self.cluster, number, &path, headers, HEALTH).await?;
            if shown.status() != StatusCode::OK {
                return Ok(shown);
            }
        }
        let view = self.cluster.view();
        let shard = view.shards.into_iter().find(|shard| shard.number == number);
        let shard = shard.ok_or_else(|| Failure::internal(format!("shard {number} is not in the map")))?;
        let node = view.nodes.into_iter().find(|node| Some(&node.name) == shard.owner.as_ref());
        let mut portals = self.cluster.portals(false);
        portals.retain(|one| !one.nbd.is_empty() || !one.iscsi.is_empty());
        portals.sort_by_key(|one| Some(&one.node) != shard.owner.as_ref());
        let location = LocationView {
            name: name.to_owned(),
            shard: number,
            node: shard.owner,
            address: node.map_or_else(String::new, |node| node.address),
            nbd: shard.nbd,
            portals,
        };
        Ok(axum::Json(location).into_response())
    }

    /// The room of the Ceph pool, in which all shards are. The place of the pool is the address of the
    /// cluster.
    async fn capacity(&self, headers: &HeaderMap, path: &str) -> Result<Response, Failure> {
        let (own, all) = (self.cluster.own_shards(), self.cluster.shards());
        let others = all.iter().filter(|shard| !own.contains(shard));
        let mut failure = Failure::internal("the cluster has no shard");
        for shard in own.iter().chain(others).take(CAPACITY_SHARDS) {
            let response = match forward::get(&*self.cluster, *shard, path, headers, Duration::ZERO).await {
                Ok(response) => response,
                Err(e) => {
                    failure = e;
                    continue;
                }
            };
            if response.status() != StatusCode::OK {
                return Ok(response);
            }
            let bytes = forward::collect(*shard, response.into_body(), MAX_RESPONSE).await?;
            let view: CapacityView =
                serde_json::from_slice(&bytes).map_err(|e| Failure::broken(*shard, &e))?;
            return Ok(axum::Json(CapacityView { pool: self.cluster.view().cluster, ..view }).into_response());
        }
        Err(failure)
    }

    /// The health of all shards together: the worst state, and the conditions of all.
    async fn health(&self, headers: &HeaderMap, path: &str) -> Result<Response, Failure> {
        let shards = self.cluster.shards();
        let ask = |shard: u32| {
            let (cluster, path, headers) = (self.cluster.clone(), path.to_owned(), headers.clone());
            async move {
                let response = forward::get(&*cluster, shard, &path, &headers, HEALTH).await?;
                if response.status() != StatusCode::OK {
                    return Ok(Err(response));
                }
                let bytes = forward::collect(shard, response.into_body(), MAX_RESPONSE).await?;
                serde_json::from_slice::<HealthView>(&bytes).map(Ok).map_err(|e| Failure::broken(shard, &e))
            }
        };
        let mut conditions = Vec::new();
        for (shard, health) in forward::ask_all(&shards, ask).await {
            match health {
                // The client has no right to it.
                Ok(Err(refused)) => return Ok(refused),
                Ok(Ok(health)) => conditions.extend(health.conditions.into_iter().map(|condition| {
                    let message = format!("shard {shard}: {}", condition.message);
                    forebay_api::ConditionView { message, ..condition }
                })),
                Err(_) => conditions.push(forebay_api::ConditionView {
                    code: "not_served".to_owned(),
                    state: HealthState::Problem,
                    message: format!("shard {shard}: no node serves the shard"),
                    remedy: "look at 'forebay cluster status' and at the logs of the nodes".to_owned(),
                    since_ms: 0,
                    disks: Vec::new(),
                }),
            }
        }
        let is_problem = |condition: &forebay_api::ConditionView| condition.state == HealthState::Problem;
        // The most urgent first, as at a server.
        conditions.sort_by_key(|condition| !is_problem(condition));
        let state = conditions.first().map_or(HealthState::Ok, |first| first.state);
        Ok(axum::Json(HealthView { state, conditions }).into_response())
    }

    /// Resets volumes of several shards. Each shard resets all of its volumes, or none.
    async fn reset(&self, request: Request<Bytes>) -> Result<Response, Failure> {
        let Resets { volumes, image } = parse(&request)?;
        let volumes: BTreeSet<String> = volumes.into_iter().collect();
        if volumes.len() > MAX_RESETS {
            return Err(Failure::bad_request(format!("a request can reset at most {MAX_RESETS} volumes")));
        }
        let names: Vec<&str> = volumes.iter().map(String::as_str).collect();
        let mut found = self.cluster.locate_all(&names).await.map_err(|e| Failure::directory(&e))?;
        // `None`: every shard can use the image.
        let at = match &image {
            Some(image) if !self.is_shared(image).await? => self.find(volume_of(image)).await?,
            _ => None,
        };
        let mut of_shards: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for volume in volumes {
            if let (Some(image), Some(at), Some(shard)) = (&image, at, found.get(&volume))
                && at != *shard
            {
                return Err(Failure::image_elsewhere(&volume, *shard, image, at));
            }
            let shard = found.remove(&volume).map_or_else(|| self.any_shard(&volume), Ok)?;
            of_shards.entry(shard).or_default().push(volume);
        }
        let (head, _) = request.into_parts();
        let mut all: Vec<Box<RawValue>> = Vec::new();
        for (shard, volumes) in of_shards {
            let part = Resets { volumes, image: image.clone() };
            let body = serde_json::to_vec(&part).map_err(|e| Failure::internal(e.to_string()))?;
            let mut part = Request::from_parts(head.clone(), Bytes::from(body));
            part.headers_mut().remove(header::CONTENT_LENGTH);
            let response = self.forward(shard, part).await?;
            if response.status() != StatusCode::OK {
                return Ok(response);
            }
            let bytes = axum::body::to_bytes(response.into_body(), MAX_RESPONSE).await;
            let bytes = bytes.map_err(|e| Failure::broken(shard, &e))?;
            all.extend(serde_json::from_slice::<Vec<_>>(&bytes).map_err(|e| Failure::broken(shard, &e))?);
        }
        Ok(axum::Json(all).into_response())
    }
}

fn hash_of(text: &str) -> usize {
    text.bytes().fold(0, |hash: usize, byte| hash.wrapping_mul(31).wrapping_add(byte.into()))
}

/// The shards of all nodes that serve, in an order in which successive shards are at different nodes.
fn shards_of_all(view: &ClusterView) -> Vec<u32> {
    let mut of_nodes: Vec<Vec<u32>> = Vec::new();
    for node in view.nodes.iter().filter(|node| node.state == NodeStateView::Up) {
        let own = view.shards.iter().filter(|shard| shard.owner.as_ref() == Some(&node.name));
        of_nodes.push(own.map(|shard| shard.number).collect());
    }
    let most = of_nodes.iter().map(Vec::len).max().unwrap_or(0);
    (0..most).flat_map(|n| of_nodes.iter().filter_map(move |shards| shards.get(n).copied())).collect()
}

/// The volume of a snapshot; the disk itself if it is none.
fn volume_of(disk: &str) -> &str {
    disk.split_once('@').map_or(disk, |(volume, _)| volume)
}

/// Reads the whole body of a request: a client that sends slowly keeps a place at the node, and none at the
/// server of a shard.
async fn buffered(request: Request<Body>) -> Result<Request<Bytes>, Failure> {
    let (head, body) = request.into_parts();
    match timeout(BODY_TIME, axum::body::to_bytes(body, MAX_BODY)).await {
        Ok(Ok(bytes)) => Ok(Request::from_parts(head, bytes)),
        Ok(Err(e)) => Err(Failure::bad_request(e.to_string())),
        Err(_) => Err(Failure::bad_request(format!("the body did not arrive within {BODY_TIME:?}"))),
    }
}

/// What the gateway needs of a body that names a disk. Other fields are skipped, and occupy no memory.
#[derive(Deserialize)]
struct NamedDisk {
    source: Option<String>,
    disk: Option<String>,
}

/// What the gateway needs of the request of a new volume.
#[derive(Deserialize)]
struct NewVolume {
    #[serde(default)]
    spread: bool,
}

/// What the gateway needs of the request of an import.
#[derive(Deserialize)]
struct NamedSource {
    source: Option<SourceKind>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum SourceKind {
    File(IgnoredAny),
    Url(IgnoredAny),
    Upload(IgnoredAny),
}

fn parse<'a, T: Deserialize<'a>>(request: &'a Request<Bytes>) -> Result<T, Failure> {
    serde_json::from_slice(request.body()).map_err(|e| Failure::bad_request(e.to_string()))
}

fn lacks(field: &str) -> Failure {
    Failure::bad_request(format!("the body has no field {field}"))
}

#[cfg(test)]
mod tests {
    use axum::http::Method;
    use parking_lot::Mutex;

    use forebay_api::{NodeView, ShardView};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::NbdClient;

    /// A cluster of three shards. The volume and the target of a number are in the shard of the number. No
    /// owner answers; the shards that were asked are recorded.
    #[derive(Default)]
    struct Silent(Mutex<Vec<u32>>, Dying);

    /// An owner that ends when it has a request, and whose successors answer.
    #[derive(Default)]
    struct Dying {
        is_used: bool,
        requests: Arc<AtomicUsize>,
    }

    impl Dying {
        fn connect(&self) -> Stream {
            let (near, mut far) = tokio::io::duplex(1 << 16);
            let requests = self.requests.clone();
            tokio::spawn(async move {
                let mut received = [0; 1 << 12];
                let _ = far.read(&mut received).await;
                if requests.fetch_add(1, Relaxed) > 0 {
                    let _ = far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
                }
            });
            Box::new(near)
        }
    }

    fn in_shard<'a>(name: &'a str, prefix: &'a str) -> BoxFuture<'a, io::Result<Option<u32>>> {
        Box::pin(async move { Ok(name.strip_prefix(prefix).and_then(|number| number.parse().ok())) })
    }

    impl Shards for Silent {
        fn locate<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Option<u32>>> {
            in_shard(name, "v")
        }

        fn names(&self) -> BoxFuture<'_, io::Result<Vec<String>>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn connect_nbd<'a>(&'a self, _: u32, _: &'a NbdClient) -> BoxFuture<'a, io::Result<Stream>> {
            Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) })
        }
    }

    impl Cluster for Silent {
        fn connect_api(&self, shard: u32) -> BoxFuture<'_, io::Result<Stream>> {
            let mut asked = self.0.lock();
            if asked.last() != Some(&shard) {
                asked.push(shard);
            }
            let stream = self.1.is_used.then(|| self.1.connect());
            Box::pin(async { stream.ok_or_else(|| io::ErrorKind::ConnectionRefused.into()) })
        }

        fn locate_target<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Option<u32>>> {
            in_shard(name, "iqn.t")
        }

        fn locate_all<'a>(&'a self, _: &'a [&'a str]) -> BoxFuture<'a, io::Result<BTreeMap<String, u32>>> {
            Box::pin(async { Ok(BTreeMap::new()) })
        }

        fn is_shared<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<bool>> {
            Box::pin(async move { Ok(name == "v1") })
        }

        fn images(&self) -> BoxFuture<'_, io::Result<Vec<ClusterImageView>>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn view(&self) -> ClusterView {
            let node = |number: u32, state| NodeView {
                number,
                name: format!("n{number}"),
                address: String::new(),
                state,
                iscsi: Vec::new(),
                homes: 1,
                owned: 1,
            };
            let states = [NodeStateView::Up, NodeStateView::Up, NodeStateView::Draining];
            let nodes = (1..).zip(states).map(|(number, state)| node(number, state)).collect();
            let shard = |(number, owner): (u32, u32)| ShardView {
                number,
                pool: String::new(),
                home: None,
                owner: Some(format!("n{owner}")),
                state: None,
                nbd: Vec::new(),
            };
            let shards = [(1, 1), (2, 1), (3, 3), (4, 2), (5, 1)].map(shard).into();
            ClusterView { cluster: String::new(), version: 1, nodes, shards, images: Vec::new() }
        }

        fn shards(&self) -> Vec<u32> {
            vec![1, 2, 3]
        }

        fn own_shards(&self) -> Vec<u32> {
            vec![3]
        }

        fn portals(&self, _: bool) -> Vec<PortalsView> {
            Vec::new()
        }
    }

    /// The shards that a request reaches, and the problem with which it ends.
    async fn ask(method: Method, path: &str, body: &str) -> (Vec<u32>, forebay_api::Problem) {
        let cluster = Arc::new(Silent::default());
        let gateway = Gateway { cluster: cluster.clone(), lists: Lists::default(), next: Arc::default() };
        let mut request = Request::new(Body::from(body.to_owned()));
        *request.method_mut() = method;
        *request.uri_mut() = format!("{PREFIX}{path}").parse().unwrap();
        let failed = gateway.serve(request).await.unwrap_err().into_response();
        let bytes = axum::body::to_bytes(failed.into_body(), 1 << 20).await.unwrap();
        let asked = cluster.0.lock().clone();
        (asked, serde_json::from_slice(&bytes).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_is_at_this_node_or_at_the_next_one() {
        assert_eq!(shards_of_all(&Silent::default().view()), [1, 4, 2, 5], "no shard of a node that drains");
        let own =
            ask(Method::POST, "/volumes", r#"{"name": "a", "size_bytes": 512, "spread": false}"#).await.0;
        assert_eq!(own, [3]);
        let cluster = Arc::new(Silent::default());
        let gateway = Gateway { cluster: cluster.clone(), lists: Lists::default(), next: Arc::default() };
        for _ in 0..5 {
            let mut request = Request::new(Body::from(r#"{"name": "a", "size_bytes": 512, "spread": true}"#));
            *request.method_mut() = Method::POST;
            *request.uri_mut() = format!("{PREFIX}/volumes").parse().unwrap();
            gateway.serve(request).await.unwrap_err();
        }
        assert_eq!(*cluster.0.lock(), [1, 4, 2, 5, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_query_is_repeated_if_the_owner_ends_and_a_change_is_not() {
        for (method, expected) in [(Method::GET, (2, 200)), (Method::POST, (1, 502))] {
            let dying = Dying { is_used: true, requests: Arc::default() };
            let cluster = Arc::new(Silent(Mutex::default(), dying));
            let gateway = Gateway { cluster: cluster.clone(), lists: Lists::default(), next: Arc::default() };
            let mut request = Request::new(Body::from("{}"));
            *request.method_mut() = method;
            *request.uri_mut() = format!("{PREFIX}/volumes/v1/snapshots").parse().unwrap();
            let response = gateway.serve(request).await.unwrap_or_else(Failure::into_response);
            assert_eq!((cluster.1.requests.load(Relaxed), response.status().as_u16()), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_room_is_that_of_any_shard() {
        let (asked, problem) = ask(Method::GET, "/capacity", "").await;
        assert_eq!((asked.as_slice(), problem.code.as_str()), ([3, 1, 2].as_slice(), "not_owner"));
    }

    #[tokio::test(start_paused = true)]
    async fn targets_are_in_the_shard_of_their_disks() {
        let shard = async |method: Method, path: &str, body: &str| ask(method, path, body).await.0;
        assert_eq!(shard(Method::POST, "/targets", r#"{"name": "iqn.t2", "disk": "v2@s"}"#).await, [2]);
        assert_eq!(
            shard(Method::POST, "/targets", r#"{"name": "iqn.t2"}"#).await,
            [3],
            "a shard of this node"
        );
        assert_eq!(shard(Method::DELETE, "/targets/IQN.T1", "").await, [1]);
        assert_eq!(shard(Method::PUT, "/targets/iqn.t1/initiators/iqn.x", "{}").await, [1]);
        assert_eq!(shard(Method::POST, "/targets/iqn.t2/luns", r#"{"disk": "v2"}"#).await, [2]);
        let (asked, problem) = ask(Method::PUT, "/targets/iqn.t2/luns/5", r#"{"disk": "v1"}"#).await;
        assert_eq!((asked, problem.code.as_str()), (Vec::new(), "other_shard"));
        for part in ["target iqn.t2 is in shard 2", "'v1' is in shard 1", "--for 'v1'", "--shard 2"] {
            assert!(problem.detail.contains(part), "{}", problem.detail);
        }
        assert_eq!(shard(Method::POST, "/clones", r#"{"source": "v2@s"}"#).await, [2]);
        assert_eq!(
            shard(Method::POST, "/clones", r#"{"source": "v1"}"#).await,
            [3],
            "every shard can clone the image"
        );
        for (path, body, expected) in
            [("/targets/iqn.x/luns", r#"{"disk": "v1"}"#, 3), ("/targets/iqn.t1/luns", r#"{"disk": "x"}"#, 1)]
        {
            let asked = ask(Method::POST, path, body).await.0;
            assert_eq!(asked, [expected], "the server of a shard says what is missing: {path}");
        }
        assert_eq!(ask(Method::DELETE, "/targets", "").await.1.code, "needs_shard");
    }
}
