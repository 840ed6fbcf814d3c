//! `/uploads`: image files that clients send, to be imported. The client that began an upload continues it;
//! every administrator sees all uploads, and can end them.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use forebay_api::{CreateUpload, UploadView};
use hyper::body::Bytes;

use crate::access::Right;
use crate::http::auth::{Caller, Unaudited};
use crate::http::extract::{Body, Param};
use crate::http::list::{ListQuery, PAGE, page};
use crate::http::problem::Result;
use crate::http::route::{Answer, Route};
use crate::import::upload::{self, Uploader};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/uploads", "Begin an upload of an image file", Right::Administer, create)
            .takes::<CreateUpload>()
            .returns::<UploadView>()
            .creates(),
        Route::get(
            "/uploads",
            "List the uploads of all clients, with the time of the last byte",
            Right::Administer,
            list,
        )
        .lists::<UploadView>()
        .with_query(PAGE),
        Route::get("/uploads/{id}", "Show how much of an upload was received", Right::Administer, show)
            .returns::<UploadView>(),
        Route::put(
            "/uploads/{id}/{offset}",
            "Send a piece of an upload, which begins at this byte of the file",
            Right::Administer,
            append,
        )
        .takes_bytes()
        .returns::<UploadView>(),
        Route::delete(
            "/uploads/{id}",
            "End an upload, and discard what was received",
            Right::Administer,
            remove,
        ),
    ]
}

async fn create(caller: Caller, Body(request): Body<CreateUpload>) -> Answer {
    let (owner, client) = (caller.principal.owner(), &caller.principal.name);
    let by = Uploader { owner: &owner, client };
    let upload = upload::create(&caller.api.control, &caller.api.entry.uploads, by, request).await?;
    Ok((StatusCode::CREATED, Json(upload)).into_response())
}

async fn list(caller: Caller, query: ListQuery) -> Result<Response> {
    query.refuse_filters()?;
    page(caller.api.entry.uploads.list(), &query, |upload| format!("{:020}", upload.id)).await
}

async fn show(caller: Caller, Param(id): Param<u64>) -> Result<Json<UploadView>> {
    Ok(Json(upload::show(&caller.api.entry.uploads, &caller.principal.owner(), id)?))
}

/// The body was read before, within the limits of all bodies.
async fn append(caller: Caller, Param((id, offset)): Param<(u64, u64)>, piece: Bytes) -> Answer {
    let owner = caller.principal.owner();
    let upload = upload::append(&caller.api.entry.uploads, &owner, id, offset, piece).await?;
    let mut response = Json(upload).into_response();
    // The beginning of the upload and the import are audited.
    response.extensions_mut().insert(Unaudited);
    Ok(response)
}

async fn remove(caller: Caller, Param(id): Param<u64>) -> Result<Json<serde_json::Value>> {
    caller.api.entry.uploads.remove(id, None);
    Ok(Json(serde_json::json!({})))
}
