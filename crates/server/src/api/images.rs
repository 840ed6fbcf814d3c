//! `/images`: golden images.
//!
//! The response to an import is a stream of events, one JSON object per line. Closing the connection cancels
//! the import.

use axum::extract::State;
use axum::http::Method;
use axum::response::Response;
use axum::routing::{delete, get, post};

use super::error::{ApiError, Refusal, Result};
use super::extract::{Body, Param};
use super::lines;
use super::{Api, Origin, Route, create, run};
use crate::control::{Action, ChangeProfile, CreateImage};
use crate::import::{self, Event, Source};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route {
            method: Method::GET,
            path: "/images",
            about: "List all images",
            handler: get(|s: State<Api>| run(s, Action::ListImages)),
        },
        Route {
            method: Method::POST,
            path: "/images",
            about: "Import an image from a file or URL; the response is a stream of progress events",
            handler: post(import_image),
        },
        Route {
            method: Method::GET,
            path: "/images/{name}",
            about: "Show an image",
            handler: get(|s: State<Api>, Param(name)| run(s, Action::ShowImage { name })),
        },
        Route {
            method: Method::POST,
            path: "/images/{name}",
            about: "Create an image from the current contents of a volume or snapshot",
            handler: post(|s: State<Api>, Param(name), Body(b): Body<CreateImage>| {
                create(s, Action::CreateImage { name, source: b.source })
            }),
        },
        Route {
            method: Method::DELETE,
            path: "/images/{name}",
            about: "Remove an image that has no clones",
            handler: delete(|s: State<Api>, Param(name)| run(s, Action::RemoveImage { name })),
        },
        Route {
            method: Method::GET,
            path: "/images/{name}/profile",
            about: "Show the boot profile of an image or VOLUME@SNAPSHOT",
            handler: get(|s: State<Api>, Param(image)| run(s, Action::ShowProfile { image })),
        },
        Route {
            method: Method::POST,
            path: "/images/{name}/profile",
            about: "Record the next boot of a clone, stop recording, or read the profile's blocks into the cache",
            handler: post(|s: State<Api>, Param(image), Body(b): Body<ChangeProfile>| {
                run(s, Action::ChangeProfile { image, action: b.action })
            }),
        },
        Route {
            method: Method::DELETE,
            path: "/images/{name}/profile",
            about: "Delete a boot profile",
            handler: delete(|s: State<Api>, Param(image)| run(s, Action::RemoveProfile { image })),
        },
    ]
}

async fn import_image(State(api): State<Api>, Body(request): Body<import::Request>) -> Result<Response> {
    if api.origin != Origin::Socket && matches!(request.source, Source::File(_)) {
        let message = "files of the server can be imported only over its control socket; use a URL instead";
        return Err(ApiError::refused(Refusal::NotHere, message));
    }
    let events = import::start(&api.control, request).await?;
    lines::respond(events, |error| Event::Failed { error }).await
}
