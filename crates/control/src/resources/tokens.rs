//! `/tokens`: tokens for clients over TCP.

use axum::Json;
use axum::http::StatusCode;
use forebay_api::{CreateToken, CreatedToken, TokenView};

use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::{Body, Param};
use crate::http::problem::Result;
use crate::http::route::Route;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/tokens", "List all tokens, without their secrets", Right::Administer, list)
            .lists::<TokenView>(),
        Route::post(
            "/tokens",
            "Create a token; the response shows its secret, once",
            Right::Administer,
            create,
        )
        .takes::<CreateToken>()
        .returns::<CreatedToken>()
        .creates(),
        Route::delete("/tokens/{name}", "Revoke a token, and end its sessions", Right::Administer, revoke),
    ]
}

async fn list(caller: Caller) -> Result<Json<Vec<TokenView>>> {
    Ok(Json(caller.api.access.tokens.list()?))
}

async fn create(caller: Caller, Body(new): Body<CreateToken>) -> Result<(StatusCode, Json<CreatedToken>)> {
    // A token cannot be created while another process takes over: it has read the file already.
    let _permit = caller.api.control.job_permit().await?;
    Ok((StatusCode::CREATED, Json(caller.api.access.tokens.create(new)?)))
}

async fn revoke(caller: Caller, Param(name): Param<String>) -> Result<Json<serde_json::Value>> {
    let _permit = caller.api.control.job_permit().await?;
    caller.api.access.tokens.revoke(&name)?;
    Ok(Json(serde_json::json!({})))
}
