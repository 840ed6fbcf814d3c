//! `/images`: golden images.
//!
//! An import is answered with one JSON object a line, as it goes on; it lasts as long as the connection.

use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use axum::routing::{delete, get, post};

use super::extract::{Body, Param};
use super::lines;
use super::{Api, Origin, Route, create, run};
use crate::control::{Action, ControlError, CreateImage};
use crate::import::{self, Event, Source};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route {
            method: Method::GET,
            path: "/images",
            about: "All images.",
            handler: get(|s: State<Api>| run(s, Action::ListImages)),
        },
        Route {
            method: Method::POST,
            path: "/images",
            about: "Imports an image from a file or URL; answers with progress, a line at a time.",
            handler: post(import_image),
        },
        Route {
            method: Method::GET,
            path: "/images/{name}",
            about: "One image.",
            handler: get(|s: State<Api>, Param(name)| run(s, Action::ShowImage { name })),
        },
        Route {
            method: Method::POST,
            path: "/images/{name}",
            about: "Makes an image of what a volume or snapshot holds.",
            handler: post(|s: State<Api>, Param(name), Body(b): Body<CreateImage>| {
                create(s, Action::CreateImage { name, source: b.source })
            }),
        },
        Route {
            method: Method::DELETE,
            path: "/images/{name}",
            about: "Removes an image that has no clones.",
            handler: delete(|s: State<Api>, Param(name)| run(s, Action::RemoveImage { name })),
        },
    ]
}

async fn import_image(
    State(api): State<Api>,
    Body(request): Body<import::Request>,
) -> Result<Response, ControlError> {
    if api.origin != Origin::Socket && matches!(request.source, Source::File(_)) {
        return Err(ControlError::new(
            StatusCode::FORBIDDEN,
            "not_here",
            "files of the server can be imported only over its control socket; give a URL instead",
        ));
    }
    let events = import::start(&api.control, request).await?;
    lines::respond(events, |error| Event::Failed { error }).await
}
