//! The resources of the API: each file has the routes of one resource, and the operations behind them.
//!
//! A handler decodes its request into an [`Action`] and passes it to the control plane.

mod clones;
mod events;
mod images;
mod jobs;
mod pool;
mod session;
mod snapshots;
mod stats;
mod targets;
mod tenants;
mod tokens;
mod volumes;

use axum::Json;
use axum::http::StatusCode;
use axum::response::IntoResponse;

use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::list::{ListQuery, page};
use crate::http::openapi_document;
use crate::http::problem::Result;
use crate::http::route::{Answer, Content, Route};
use crate::operations::{Action, Reply};
pub(crate) use events::Streams;

/// Returns all routes, grouped by resource.
pub fn routes() -> Vec<Route> {
    [
        images::routes(),
        volumes::routes(),
        clones::routes(),
        snapshots::routes(),
        tenants::routes(),
        targets::routes(),
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

/// Runs an action and responds with status 200.
async fn run(caller: Caller, action: Action) -> Result<Json<Reply>> {
    Ok(Json(caller.run(action).await?))
}

/// Runs an action that creates a resource, and responds with status 201.
async fn create(caller: Caller, action: Action) -> Result<(StatusCode, Json<Reply>)> {
    Ok((StatusCode::CREATED, Json(caller.run(action).await?)))
}

/// Runs an action that returns a list of tenants or targets, and responds with a page of it.
async fn list(caller: Caller, query: ListQuery, action: Action) -> Answer {
    query.refuse_filters()?;
    // An error means that the semaphore was closed, which never happens.
    let _permit = caller.api.built.acquire().await;
    match caller.run(action).await? {
        Reply::Tenants(tenants) => page(tenants, &query, |tenant| tenant.name.clone()).await,
        Reply::Targets(targets) => page(targets, &query, |target| target.name.clone()).await,
        other => Ok(Json(other).into_response()),
    }
}
