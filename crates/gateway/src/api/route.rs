//! Which shard a request of the API concerns.

use hyper::Method;
use percent_encoding::percent_decode_str;

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Destination {
    /// The shard that has the volume or image of this name.
    Disk(String),
    /// The shard that has the volume or image which the body names as its source.
    Source,
    /// The shard of the source, which the body names; or any shard, if every shard can clone the source.
    Clone,
    /// A shard for a new volume.
    New,
    /// The shard that has this target.
    Target(String),
    /// The shard that has this target. The body names a disk, which has to be in the same shard.
    TargetWithDisk(String),
    /// The shard of the disk that the body names, or a shard for a target without disks.
    NewTarget,
    /// A shard for an image that is imported. A file of this host needs a shard of this node.
    Import,
    /// All shards. Their lists are merged in the order of this field of the elements.
    All(&'static str),
    /// All shards. Their states are combined.
    Health,
    /// Any shard: all of them have the room of one Ceph pool.
    Capacity,
    /// The shards of the volumes that the body lists.
    Resets,
    /// This shard, with this path.
    Shard(u32, String),
    /// The nodes and the shards.
    Cluster,
    /// Where a volume or image is served. The path of the disk is given, too.
    Location(String, String),
    /// Each shard has a separate resource of this kind: the request has to name the shard.
    EachShard,
}

/// The destination of a request. `raw` is the path after the prefix of the API, as it was sent: only names
/// are decoded, so that what was checked before is what is matched.
pub(super) fn destination(method: &Method, raw: &str) -> Destination {
    use Destination as D;
    let decoded = |name: &str| percent_decode_str(name).decode_utf8_lossy().into_owned();
    let of_volume = |name: &str| {
        let name = decoded(name);
        name.split_once('@').map_or(name.as_str(), |(volume, _)| volume).to_owned()
    };
    let segments: Vec<&str> = raw.split('/').skip(1).collect();
    match segments.as_slice() {
        ["cluster"] => D::Cluster,
        ["shards", number, ..] => match number.parse() {
            Ok(number) => {
                let rest = raw.trim_start_matches('/').splitn(3, '/').nth(2).unwrap_or_default();
                D::Shard(number, format!("/{rest}"))
            }
            Err(_) => D::EachShard,
        },
        ["volumes"] | ["images"] | ["activity"] | ["targets"] if *method == Method::GET => D::All("name"),
        ["jobs"] if *method == Method::GET => D::All("id"),
        ["health"] => D::Health,
        ["capacity"] => D::Capacity,
        ["volumes"] => D::New,
        ["images"] => D::Import,
        ["clones"] => D::Clone,
        ["resets"] => D::Resets,
        ["volumes" | "images", name, "location"] => {
            D::Location(of_volume(name), raw.strip_suffix("/location").unwrap_or(raw).to_owned())
        }
        ["images", _] if *method == Method::POST => D::Source,
        ["targets"] if *method == Method::POST => D::NewTarget,
        ["targets", name, "luns", ..] if *method == Method::POST => D::TargetWithDisk(decoded(name)),
        ["targets", name, "luns", _] if *method == Method::PUT => D::TargetWithDisk(decoded(name)),
        ["targets", name, ..] => D::Target(decoded(name)),
        ["volumes" | "images" | "stats", name, ..] => D::Disk(of_volume(name)),
        _ => D::EachShard,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(method: Method, path: &str) -> Destination {
        destination(&method, path)
    }

    #[test]
    fn requests_go_to_the_shard_of_their_disk() {
        use Destination as D;
        let disk = |name: &str| D::Disk(name.to_owned());
        assert_eq!(to(Method::GET, "/volumes/a"), disk("a"));
        assert_eq!(to(Method::DELETE, "/volumes/a/snapshots/b"), disk("a"));
        assert_eq!(to(Method::GET, "/stats/a@b"), disk("a"), "a snapshot is in the shard of its volume");
        assert_eq!(to(Method::POST, "/images/new"), D::Source);
        assert_eq!(to(Method::POST, "/images/new/profile"), disk("new"));
        assert_eq!(to(Method::POST, "/clones"), D::Clone);
        assert_eq!(to(Method::POST, "/volumes"), D::New);
        assert_eq!(to(Method::GET, "/volumes"), D::All("name"));
        let target = |name: &str| D::Target(name.to_owned());
        assert_eq!(to(Method::GET, "/targets"), D::All("name"));
        assert_eq!(to(Method::POST, "/targets"), D::NewTarget);
        assert_eq!(to(Method::DELETE, "/targets"), D::EachShard, "the table of one shard");
        assert_eq!(to(Method::GET, "/targets/iqn.a"), target("iqn.a"));
        assert_eq!(to(Method::PUT, "/targets/iqn.a/initiators/iqn.b"), target("iqn.a"));
        assert_eq!(to(Method::POST, "/targets/iqn.a/luns"), D::TargetWithDisk("iqn.a".into()));
        assert_eq!(to(Method::PUT, "/targets/iqn.a/luns/7"), D::TargetWithDisk("iqn.a".into()));
        assert_eq!(to(Method::DELETE, "/targets/iqn.a/luns/7"), target("iqn.a"));
        assert_eq!(to(Method::GET, "/volumes/a/location"), D::Location("a".into(), "/volumes/a".into()));
        let twice = D::Location("location".into(), "/volumes/location".into());
        assert_eq!(to(Method::GET, "/volumes/location/location"), twice);
        assert_eq!(to(Method::GET, "/%63luster"), D::EachShard, "what was checked as another path");
        assert_eq!(to(Method::GET, "/volumes/a%2Fb%40s"), disk("a/b"));
        assert_eq!(to(Method::GET, "/shards/12/volumes/a%2Fb"), D::Shard(12, "/volumes/a%2Fb".into()));
        assert_eq!(to(Method::GET, "/shards/12"), D::Shard(12, "/".into()));
        assert_eq!(to(Method::GET, "/shards/x/stats"), D::EachShard);
        assert_eq!(to(Method::POST, "/pool/gc"), D::EachShard);
    }

    /// Every route of the API has a destination that was chosen: a new route fails here.
    #[test]
    fn each_route_was_considered() {
        let text = include_str!("../../../../docs/openapi.json");
        let document: serde_json::Value = serde_json::from_str(text).unwrap();
        let per_shard = [
            "events",
            "files",
            "jobs",
            "openapi.json",
            "pool",
            "receives",
            "session",
            "stats",
            "targets",
            "tenants",
            "tokens",
            "uploads",
        ];
        for (path, methods) in document["paths"].as_object().unwrap() {
            let path = path.strip_prefix(forebay_api::PREFIX).unwrap();
            for method in methods.as_object().unwrap().keys() {
                let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
                let is_per_shard = to(method.clone(), path) == Destination::EachShard;
                let first = path.split('/').nth(1).unwrap();
                assert!(!is_per_shard || per_shard.contains(&first), "{method} {path} has no destination");
            }
        }
    }
}
