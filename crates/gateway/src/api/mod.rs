//! The HTTP API of a cluster, at any of its nodes: the API of the servers of its shards, in front of which the
//! gateway decides which server gets a request.
//!
//! - A request that concerns a disk goes to the owner of the shard that has the disk ([`route`]). The names
//!   of disks are those of the cluster.
//! - Lists of disks and of jobs are merged from all shards ([`lists`]); so is the health.
//! - A new volume, or an image that is imported, gets into a shard of this node; so does a target, unless the
//!   request names a disk: all disks of a target are in the target's shard.
//! - What each shard has of its own is at `/shards/NUMBER/...`.
//!
//! The gateway does not authenticate clients: it serves the control socket of the node, which only the user of
//! the node can open. It passes `Host`, `Origin` and the other headers on, so the servers of the shards make
//! the same checks as for their own clients.

mod forward;
mod lists;
mod problem;
mod route;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use forebay_api::{ClusterView, FORWARDED_CLIENT, HealthState, HealthView, LocationView, PREFIX, Resets};
use futures_util::future::join_all;
use http_body_util::{BodyExt, Limited};
use percent_encoding::percent_decode_str;
use serde_json::Value;

use self::problem::Failure;
use self::route::{Destination, destination};
use crate::{BoxFuture, Shards, Stream};

/// Longest body that the gateway reads itself, in bytes.
const MAX_BODY: usize = 2 << 20;
/// How long the health waits for a shard.
const HEALTH: Duration = Duration::from_secs(3);

/// The cluster as its API needs it.
pub trait Cluster: Shards {
    /// Opens a stream to the API of the present owner of a shard. It fails at once if the shard has no owner
    /// that answers.
    fn connect_api(&self, shard: u32) -> BoxFuture<'_, io::Result<Stream>>;

    /// The shard that has the target of this name, in lower case; `None` if no shard has one.
    fn locate_target<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Option<u32>>>;

    /// The nodes and shards.
    fn view(&self) -> ClusterView;

    /// The shards, in order.
    fn shards(&self) -> Vec<u32>;

    /// The shards that this node serves.
    fn own_shards(&self) -> Vec<u32>;
}

#[derive(Clone)]
struct Gateway {
    cluster: Arc<dyn Cluster>,
    /// Number of the next choice of a shard.
    next: Arc<AtomicUsize>,
}

/// The router of the API of a cluster.
pub fn router(cluster: Arc<dyn Cluster>) -> Router {
    Router::new().fallback(handle).with_state(Gateway { cluster, next: Arc::default() })
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
        let decoded: Vec<_> =
            raw.split('/').skip(1).map(|segment| percent_decode_str(segment).decode_utf8_lossy()).collect();
        let segments: Vec<&str> = decoded.iter().map(AsRef::as_ref).collect();
        let query = uri.query().unwrap_or_default();
        let cluster = &*self.cluster;
        match destination(request.method(), &segments, raw) {
            Destination::Disk(name) => self.forward(self.shard_of(&name).await?, request).await,
            Destination::DiskInBody(field) => {
                let (request, body) = read(request).await?;
                let name = text(&body, field)?;
                self.forward(self.shard_of(volume_of(&name)).await?, request).await
            }
            Destination::Target(name) => self.forward(self.shard_of_target(&name).await?, request).await,
            Destination::TargetWithDisk(name) => {
                let (request, body) = read(request).await?;
                let (shard, disk) = (self.shard_of_target(&name).await?, text(&body, "disk")?);
                match self.shard_of(volume_of(&disk)).await? {
                    other if other != shard => Err(Failure::other_shard(&name, shard, &disk, other)),
                    _ => self.forward(shard, request).await,
                }
            }
            Destination::NewTarget => {
                let (request, body) = read(request).await?;
                let shard = match body.get("disk").and_then(Value::as_str) {
                    Some(disk) => self.shard_of(volume_of(disk)).await?,
                    None => self.choose(false)?,
                };
                self.forward(shard, request).await
            }
            Destination::New => self.forward(self.choose(false)?, request).await,
            Destination::Import => {
                let (request, body) = read(request).await?;
                let is_file = body.get("source").is_some_and(|source| source.get("file").is_some());
                self.forward(self.choose(is_file)?, request).await
            }
            Destination::All(key) => {
                lists::list(self.cluster.clone(), request.headers().clone(), (uri.path(), query), key).await
            }
            Destination::Health => self.health(request.headers(), uri.path()).await,
            Destination::Resets => self.reset(request).await,
            Destination::Shard(shard, path) => {
                if !cluster.shards().contains(&shard) {
                    return Err(Failure::bad_request(format!("the cluster has no shard {shard}")));
                }
                let query = if query.is_empty() { String::new() } else { format!("?{query}") };
                forward::forward(cluster, shard, Some(&format!("{PREFIX}{path}{query}")), request).await
            }
            Destination::Cluster => Ok(axum::Json(cluster.view()).into_response()),
            Destination::Location(name, path) => self.location(&name, &path, request.headers()).await,
            Destination::EachShard => Err(Failure::each_shard()),
        }
    }

    async fn forward(&self, shard: u32, request: Request<Body>) -> Result<Response, Failure> {
        forward::forward(&*self.cluster, shard, None, request).await
    }

    /// The shard of the disk with this name.
    async fn shard_of(&self, name: &str) -> Result<u32, Failure> {
        let found = self.cluster.locate(name).await.map_err(|e| Failure::directory(&e))?;
        found.ok_or_else(|| Failure::not_found(name))
    }

    /// The shard of the target with this name.
    async fn shard_of_target(&self, name: &str) -> Result<u32, Failure> {
        // As servers of shards keep the names of targets.
        let found = self.cluster.locate_target(&name.to_ascii_lowercase()).await;
        found.map_err(|e| Failure::directory(&e))?.ok_or_else(|| Failure::no_target(name))
    }

    /// A shard for a new disk or target: one of this node, if it has any; one after another.
    fn choose(&self, must_be_here: bool) -> Result<u32, Failure> {
        let mut shards = self.cluster.own_shards();
        if shards.is_empty() && must_be_here {
            let why = "this node has no shard that could read the file; run the command on a node that has one, or import \
                       from a URL";
            return Err(Failure::bad_request(why));
        }
        if shards.is_empty() {
            shards = self.cluster.shards();
        }
        let next = self.next.fetch_add(1, Relaxed);
        let chosen = next.checked_rem(shards.len()).map(|index| shards[index]);
        chosen.ok_or_else(|| Failure::internal("the cluster has no shard"))
    }

    async fn location(&self, name: &str, path: &str, headers: &HeaderMap) -> Result<Response, Failure> {
        let number = self.shard_of(name).await?;
        if headers.contains_key(FORWARDED_CLIENT) {
            // The server of the shard knows whether the client may know of the disk.
            let path = format!("{PREFIX}{path}");
            let shown = forward::get(&*self.cluster, number, &path, headers, HEALTH).await?;
            if shown.status() != StatusCode::OK {
                return Ok(shown.map(Body::new));
            }
        }
        let view = self.cluster.view();
        let shard = view.shards.into_iter().find(|shard| shard.number == number);
        let shard = shard.ok_or_else(|| Failure::internal(format!("shard {number} is not in the map")))?;
        let node = view.nodes.into_iter().find(|node| Some(&node.name) == shard.owner.as_ref());
        let location = LocationView {
            name: name.to_owned(),
            shard: number,
            node: shard.owner,
            address: node.map_or_else(String::new, |node| node.address),
            nbd: shard.nbd,
        };
        Ok(axum::Json(location).into_response())
    }

    /// The health of all shards together: the worst state, and the conditions of all.
    async fn health(&self, headers: &HeaderMap, path: &str) -> Result<Response, Failure> {
        let shards = self.cluster.shards();
        let all = join_all(shards.iter().map(async |shard| {
            let response = forward::get(&*self.cluster, *shard, path, headers, HEALTH).await?;
            let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
            let bytes = body.map_err(|e| Failure::broken(*shard, &e))?.to_bytes();
            serde_json::from_slice::<HealthView>(&bytes).map_err(|e| Failure::broken(*shard, &e))
        }))
        .await;
        let mut conditions = Vec::new();
        for (shard, health) in shards.iter().zip(all) {
            match health {
                Ok(health) => conditions.extend(health.conditions.into_iter().map(|condition| {
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
    async fn reset(&self, request: Request<Body>) -> Result<Response, Failure> {
        let (request, body) = read(request).await?;
        let resets: Resets = serde_json::from_value(body).map_err(|e| Failure::bad_request(e.to_string()))?;
        let mut of_shards: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for volume in resets.volumes {
            of_shards.entry(self.shard_of(&volume).await?).or_default().push(volume);
        }
        let (head, _) = request.into_parts();
        let mut all = Vec::new();
        for (shard, volumes) in of_shards {
            let body =
                serde_json::to_vec(&Resets { volumes }).map_err(|e| Failure::internal(e.to_string()))?;
            let mut part = Request::from_parts(head.clone(), Body::from(body));
            part.headers_mut().remove(header::CONTENT_LENGTH);
            let response = self.forward(shard, part).await?;
            if response.status() != StatusCode::OK {
                return Ok(response);
            }
            let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
            let bytes = body.map_err(|e| Failure::broken(shard, &e))?.to_bytes();
            all.extend(serde_json::from_slice::<Vec<Value>>(&bytes).map_err(|e| Failure::broken(shard, &e))?);
        }
        Ok(axum::Json(all).into_response())
    }
}

/// The volume of a snapshot; the disk itself if it is none.
fn volume_of(disk: &str) -> &str {
    disk.split_once('@').map_or(disk, |(volume, _)| volume)
}

/// Reads the body of a request, which has it again afterwards.
async fn read(request: Request<Body>) -> Result<(Request<Body>, Value), Failure> {
    let (head, body) = request.into_parts();
    let read = Limited::new(body, MAX_BODY).collect().await;
    let bytes: Bytes = read.map_err(|e| Failure::bad_request(e.to_string()))?.to_bytes();
    let value = serde_json::from_slice(&bytes).map_err(|e| Failure::bad_request(e.to_string()))?;
    Ok((Request::from_parts(head, Body::from(bytes)), value))
}

fn text(body: &Value, field: &str) -> Result<String, Failure> {
    let text = body.get(field).and_then(Value::as_str);
    text.map(str::to_owned).ok_or_else(|| Failure::bad_request(format!("the body has no field {field}")))
}

#[cfg(test)]
mod tests {
    use axum::http::Method;
    use forebay_api::ErrorKind;
    use parking_lot::Mutex;

    use super::*;
    use crate::NbdClient;

    /// A cluster of three shards. The volume and the target of a number are in the shard of the number. No owner
    /// answers; the shards that were asked are recorded.
    #[derive(Default)]
    struct Silent(Mutex<Vec<u32>>);

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
            Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) })
        }

        fn locate_target<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Option<u32>>> {
            in_shard(name, "iqn.t")
        }

        fn view(&self) -> ClusterView {
            ClusterView { cluster: String::new(), version: 1, nodes: Vec::new(), shards: Vec::new() }
        }

        fn shards(&self) -> Vec<u32> {
            vec![1, 2, 3]
        }

        fn own_shards(&self) -> Vec<u32> {
            vec![3]
        }
    }

    /// The shards that a request reaches, and the problem with which it ends.
    async fn ask(method: Method, path: &str, body: &str) -> (Vec<u32>, forebay_api::Problem) {
        let cluster = Arc::new(Silent::default());
        let gateway = Gateway { cluster: cluster.clone(), next: Arc::default() };
        let mut request = Request::new(Body::from(body.to_owned()));
        *request.method_mut() = method;
        *request.uri_mut() = format!("{PREFIX}{path}").parse().unwrap();
        let failed = gateway.serve(request).await.unwrap_err().into_response();
        let bytes = failed.into_body().collect().await.unwrap().to_bytes();
        let asked = cluster.0.lock().clone();
        (asked, serde_json::from_slice(&bytes).unwrap())
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
        for (path, body) in
            [("/targets/iqn.x/luns", r#"{"disk": "v1"}"#), ("/targets/iqn.t1/luns", r#"{"disk": "x"}"#)]
        {
            let (asked, problem) = ask(Method::POST, path, body).await;
            assert_eq!((asked, problem.code.as_str()), (Vec::new(), ErrorKind::NotFound.code()), "{path}");
        }
        assert_eq!(ask(Method::DELETE, "/targets", "").await.1.code, "needs_shard");
    }
}
