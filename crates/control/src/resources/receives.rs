//! `/receives`: streams of other pools that clients send, in pieces. The client that began a receive
//! continues it; every administrator sees all receives, and can end them.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use forebay_api::{CreateReceive, ReceiveView};
use hyper::body::Bytes;

use crate::access::Right;
use crate::http::auth::{Caller, Unaudited};
use crate::http::extract::{Body, Param};
use crate::http::list::{ListQuery, PAGE, page};
use crate::http::problem::Result;
use crate::http::route::{Answer, Route};
use crate::operations::transfer;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/receives", "Begin to receive a stream of another pool", Right::Administer, create)
            .takes::<CreateReceive>()
            .returns::<ReceiveView>()
            .creates(),
        Route::get("/receives", "List the receives of all clients", Right::Administer, list)
            .lists::<ReceiveView>()
            .with_query(PAGE),
        Route::get("/receives/{id}", "Show how much of a stream was received", Right::Administer, show)
            .returns::<ReceiveView>(),
        Route::put(
            "/receives/{id}/{offset}",
            "Send a piece of a stream, which begins at this byte of the stream",
            Right::Administer,
            append,
        )
        .takes_bytes()
        .returns::<ReceiveView>(),
        Route::post(
            "/receives/{id}/resume",
            "Continue an interrupted receive with another stream, which begins at its position",
            Right::Administer,
            resume,
        )
        .returns::<ReceiveView>(),
        Route::delete(
            "/receives/{id}",
            "End a receive, and discard what was received",
            Right::Administer,
            remove,
        ),
    ]
}

async fn create(caller: Caller, Body(request): Body<CreateReceive>) -> Answer {
    let (owner, client) = (caller.principal.owner(), &caller.principal.name);
    let view = transfer::begin(&caller.api.control, &owner, client, request.name)?;
    Ok((StatusCode::CREATED, Json(view)).into_response())
}

async fn list(caller: Caller, query: ListQuery) -> Result<Response> {
    query.refuse_filters()?;
    page(caller.api.control.receives().list(), &query, |receive| format!("{:020}", receive.id)).await
}

async fn show(caller: Caller, Param(id): Param<u64>) -> Result<Json<ReceiveView>> {
    Ok(Json(caller.api.control.receives().show(id, &caller.principal.owner())?))
}

/// The body was read before, within the limits of all bodies.
async fn append(caller: Caller, Param((id, offset)): Param<(u64, u64)>, piece: Bytes) -> Answer {
    let owner = caller.principal.owner();
    let view = transfer::append(&caller.api.control, &owner, id, offset, piece).await?;
    let mut response = Json(view).into_response();
    // The beginning of the receive is audited.
    response.extensions_mut().insert(Unaudited);
    Ok(response)
}

async fn resume(caller: Caller, Param(id): Param<u64>) -> Result<Json<ReceiveView>> {
    Ok(Json(transfer::resume(&caller.api.control, &caller.principal.owner(), id).await?))
}

async fn remove(caller: Caller, Param(id): Param<u64>) -> Result<Json<serde_json::Value>> {
    caller.api.control.receives().remove(&caller.api.control, id).await;
    Ok(Json(serde_json::json!({})))
}
