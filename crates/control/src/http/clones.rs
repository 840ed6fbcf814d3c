//! `/clones`: creation of clones of an image, volume or snapshot.

use forebay_api::{CloneVolumes, DiskView};

use super::auth::Caller;
use super::create;
use super::extract::Body;
use super::route::Route;
use crate::access::Right;
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
