//! `/clones`: creation of clones of an image, volume or snapshot.

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
        about: "Create one clone, or `count` numbered clones; all or none",
        handler: post(|s: State<Api>, Body(b): Body<CloneVolumes>| create(s, Action::CloneVolumes(b))),
    }]
}
