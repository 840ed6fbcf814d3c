//! The resources of the API, one file for each: the routes, and the operations behind them.
//!
//! A route states the right that it requires, and its handler decodes the request into an [`Operation`]. The
//! type of the operation declares everything else: the disks that it concerns, the event that it causes, how
//! many disks it creates, its reply and its execution. CONTRIBUTING.md has an example.

mod classes;
mod clients;
mod clones;
mod connect;
mod events;
mod exports;
mod files;
mod images;
mod jobs;
mod luns;
mod pool;
mod profiles;
mod receives;
pub(crate) mod session;
mod snapshots;
mod stats;
mod targets;
mod tenants;
mod tokens;
mod uploads;
mod volume_limits;
mod volumes;

use std::sync::Arc;

use axum::http::StatusCode;
use axum::{Json, Router};
use serde::Serialize;
use serde_json::Value;

use crate::access::{Access, Right};
use crate::http::auth::Caller;
use crate::http::list::{ListQuery, page};
use crate::http::route::{Answer, Content, Route};
use crate::http::{self, Entry};
use crate::operations::{Control, Operation};
pub use clones::MAX_CLONES;

/// Returns all routes, grouped by resource.
pub fn routes() -> Vec<Route> {
    [
        images::routes(),
        profiles::routes(),
        uploads::routes(),
        volumes::routes(),
        volume_limits::routes(),
        classes::routes(),
        clients::routes(),
        connect::routes(),
        clones::routes(),
        snapshots::routes(),
        exports::routes(),
        receives::routes(),
        files::routes(),
        tenants::routes(),
        targets::routes(),
        luns::routes(),
        targets::initiator_routes(),
        stats::routes(),
        pool::routes(),
        jobs::routes(),
        events::routes(),
        tokens::routes(),
        session::routes(),
        vec![
            Route::get(
                "/openapi.json",
                "The description of this API in the OpenAPI format",
                Right::Read,
                async || Json(openapi_document()),
            )
            .content(Content::Document),
        ],
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Builds the router of a listener.
pub fn router(control: Control, access: Arc<Access>, entry: Entry) -> Router {
    http::router(routes(), control, access, entry)
}

/// Returns the OpenAPI document.
pub fn openapi_document() -> Value {
    http::document(&routes())
}

/// Runs an operation and responds with status 200.
async fn run<O: Operation>(caller: Caller, operation: O) -> Answer<Json<O::Reply>> {
    Ok(Json(caller.run(operation).await?))
}

/// Runs an operation that creates a resource, and responds with status 201.
async fn create<O: Operation>(caller: Caller, operation: O) -> Answer<(StatusCode, Json<O::Reply>)> {
    Ok((StatusCode::CREATED, Json(caller.run(operation).await?)))
}

/// Runs an operation that returns a list of tenants or targets, and responds with a page of the list. `name`
/// returns the name of an element.
async fn list<O, T>(caller: Caller, query: ListQuery, operation: O, name: fn(&T) -> &String) -> Answer
where
    O: Operation<Reply = Vec<T>>,
    T: Serialize,
{
    query.refuse_filters()?;
    // An error means that the semaphore was closed, which never happens.
    let _permit = caller.api.built.acquire().await;
    page(caller.run(operation).await?, &query, |one| name(one).clone()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_routes_are_distinct() {
        let mut seen = std::collections::HashSet::new();
        for r in routes() {
            assert!(seen.insert((r.method.clone(), r.path)), "{} {}", r.method, r.path);
        }
    }
}
