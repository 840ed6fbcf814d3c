//! `/clones`: volumes that start from an image, a volume or a snapshot.

use axum::extract::State;
use axum::http::Method;
use axum::routing::post;

use super::extract::Body;
use super::{Api, Route, create};
use crate::control::{Action, CloneVolumes};

pub(super) fn routes() -> Vec<Route> {
    vec![Route {
        method: Method::POST,
        path: "/clones",
        about: "Makes one clone, or `count` numbered ones: all or none.",
        handler: post(|s: State<Api>, Body(b): Body<CloneVolumes>| create(s, Action::CloneVolumes(b))),
    }]
}
