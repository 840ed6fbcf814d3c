//! Errors of the gateway: `application/problem+json` (RFC 9457), as the servers of shards have them.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use forebay_api::{ErrorKind, Problem};

/// Media type of errors.
const PROBLEM_JSON: &str = "application/problem+json";

/// An error of the gateway.
#[derive(Debug)]
pub(super) struct Failure {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    detail: String,
    remedy: &'static str,
}

impl Failure {
    /// A disk cannot be mapped to a target of another shard.
    pub fn other_shard(target: &str, shard: u32, disk: &str, other: u32) -> Failure {
        let disk = forebay_text::quoted(disk);
        Failure {
            status: StatusCode::CONFLICT,
            code: "other_shard",
            title: "In another shard",
            detail: format!(
                "target {} is in shard {shard} and {disk} is in shard {other}; all disks of a target are in the \
                 target's shard: create a target for the disk with 'forebay target create IQN --for {disk}', or a \
                 volume in the target's shard with 'forebay --shard {shard} volume create'",
                forebay_text::one_line(target)
            ),
            remedy: "map the disk to a target of the disk's shard",
        }
    }

    /// A clone cannot be reset to an image of another shard.
    pub fn image_elsewhere(clone: &str, shard: u32, image: &str, other: u32) -> Failure {
        let (clone, image) = (forebay_text::quoted(clone), forebay_text::quoted(image));
        Failure {
            status: StatusCode::CONFLICT,
            code: "other_shard",
            title: "In another shard",
            detail: format!(
                "{clone} is in shard {shard} and {image} is in shard {other}; a clone and its image are in one shard: \
                 import the image for these clones with 'forebay --shard {shard} image import', under another name"
            ),
            remedy: "reset the clone to an image of the clone's shard",
        }
    }

    pub fn bad_request(detail: impl Into<String>) -> Failure {
        Failure {
            status: StatusCode::BAD_REQUEST,
            code: ErrorKind::BadRequest.code(),
            title: "Invalid request",
            detail: detail.into(),
            remedy: "correct the request; /api/v1/openapi.json of a shard describes each route",
        }
    }

    /// A resource that each shard has.
    pub fn each_shard() -> Failure {
        Failure {
            status: StatusCode::NOT_FOUND,
            code: "needs_shard",
            title: "Shard missing",
            detail:
                "each shard of the cluster has a separate resource of this kind: name the shard with --shard NUMBER"
                    .to_owned(),
            remedy: "add --shard NUMBER to the command, or use the path /api/v1/shards/NUMBER/...",
        }
    }

    /// The directory of names cannot be read.
    pub fn directory(e: &std::io::Error) -> Failure {
        Failure {
            status: StatusCode::SERVICE_UNAVAILABLE,
            code: ErrorKind::Store.code(),
            title: "Names not available",
            detail: format!("the names of the cluster cannot be read: {e}"),
            remedy: "look at the state of Ceph, then repeat the request",
        }
    }

    /// No node serves the shard. Nothing was sent.
    pub fn no_owner(shard: u32, e: &std::io::Error) -> Failure {
        Failure {
            status: StatusCode::SERVICE_UNAVAILABLE,
            code: ErrorKind::NotOwner.code(),
            title: "Shard not served",
            detail: format!(
                "no node serves shard {shard} ({e}); nothing was changed: repeat the request in some seconds"
            ),
            remedy: "repeat the request; 'forebay cluster status' shows the owners of the shards",
        }
    }

    /// Too many lists are being sent to this client, or to all clients.
    pub fn too_many_lists() -> Failure {
        Failure {
            status: StatusCode::SERVICE_UNAVAILABLE,
            code: "too_many_responses",
            title: "Too many lists",
            detail: "too many lists are being sent: read those that were requested first".to_owned(),
            remedy: "read the responses, then repeat the request",
        }
    }

    /// The owner of the shard has ended before its answer was complete.
    pub fn broken(shard: u32, e: &dyn std::fmt::Display) -> Failure {
        Failure {
            status: StatusCode::BAD_GATEWAY,
            code: "not_answered",
            title: "Not answered",
            detail: format!(
                "the owner of shard {shard} has ended before it answered ({e}): look whether the change was made"
            ),
            remedy: "look whether the change was made, then repeat the request",
        }
    }

    /// A part of a request that concerns several shards was refused or has failed.
    pub fn internal(detail: impl Into<String>) -> Failure {
        Failure {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            code: ErrorKind::Internal.code(),
            title: "Defect",
            detail: detail.into(),
            remedy: "report the defect, with the log of the node",
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let problem = Problem {
            kind: format!("urn:forebay:problem:{}", self.code),
            title: self.title.to_owned(),
            status: self.status.as_u16(),
            detail: self.detail,
            code: self.code.to_owned(),
            remedy: self.remedy.to_owned(),
        };
        (self.status, [(header::CONTENT_TYPE, PROBLEM_JSON)], axum::Json(problem)).into_response()
    }
}
