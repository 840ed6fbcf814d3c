//! `/clones`: creation of clones of an image, volume or snapshot.

use forebay_api::{CloneVolumes, DiskView};

use super::create;
use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::Body;
use crate::http::route::Route;
use crate::operations::Action;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post(
            "/clones",
            "Create one clone, or `count` numbered clones; all or none",
            Right::Provision,
            |c: Caller, Body(b): Body<CloneVolumes>| create(c, Action::CloneVolumes(b)),
        )
        .takes::<CloneVolumes>()
        .lists::<DiskView>()
        .creates(),
    ]
}
