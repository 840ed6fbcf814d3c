//! `/images`: golden images.
//!
//! The response to an import is a stream of events, one JSON object per line, and closing the connection
//! cancels the import; or it is a job, if the client prefers that.

use axum::http::HeaderMap;
use axum::response::Response;
use forebay_api::import::{Event, Request, Source};
use forebay_api::{ChangeProfile, CreateImage, DiskView, ProfileView};

use super::{create, jobs, run};
use crate::access::{Right, may};
use crate::http::auth::Caller;
use crate::http::extract::{Body, Param};
use crate::http::lines;
use crate::http::list::{self, DISKS, ListQuery};
use crate::http::problem::{ApiError, Refusal, Result};
use crate::http::route::{Content, Route};
use crate::import::{self};
use crate::operations::{Action, DiskList};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/images", "List all images", Right::Read, |c: Caller, q: ListQuery| {
            list::disks(c, q, DiskList::Images)
        })
        .lists::<DiskView>()
        .with_query(DISKS),
        Route::post(
            "/images",
            "Import an image from a file or URL; the response is a stream of progress events",
            Right::Administer,
            import_image,
        )
        .takes::<Request>()
        .streams::<Event>()
        .or_job(),
        Route::get("/images/{name}", "Show an image", Right::Read, |c: Caller, Param(name)| {
            run(c, Action::ShowImage { name })
        })
        .returns::<DiskView>(),
        Route::post(
            "/images/{name}",
            "Create an image from the current contents of a volume or snapshot",
            Right::Provision,
            |c: Caller, Param(name), Body(b): Body<CreateImage>| {
                create(c, Action::CreateImage { name, source: b.source })
            },
        )
        .takes::<CreateImage>()
        .returns::<DiskView>()
        .creates(),
        Route::delete(
            "/images/{name}",
            "Remove an image that has no clones",
            Right::Provision,
            |c: Caller, Param(name)| run(c, Action::RemoveImage { name }),
        ),
        Route::get(
            "/images/{name}/profile",
            "Show the boot profile of an image or VOLUME@SNAPSHOT",
            Right::Read,
            |c: Caller, Param(image)| run(c, Action::ShowProfile { image }),
        )
        .returns::<ProfileView>(),
        Route::post(
            "/images/{name}/profile",
            "Record the next boot of a clone, stop recording, or read the profile's blocks into the cache",
            Right::Administer,
            |c: Caller, Param(image), Body(b): Body<ChangeProfile>| {
                run(c, Action::ChangeProfile { image, action: b.action })
            },
        )
        .takes::<ChangeProfile>()
        .content(Content::Document),
        Route::delete(
            "/images/{name}/profile",
            "Delete a boot profile",
            Right::Administer,
            |c: Caller, Param(image)| run(c, Action::RemoveProfile { image }),
        ),
    ]
}

async fn import_image(caller: Caller, headers: HeaderMap, Body(request): Body<Request>) -> Result<Response> {
    let on_host = may(&caller.principal, Right::Local, None);
    if matches!(request.source, Source::File(_)) && !on_host {
        let message = "files of the server can be imported only over its control socket; use a URL instead";
        return Err(ApiError::refused(Refusal::NotHere, message));
    }
    if let Source::Url(url) = &request.source
        && !on_host
        && !caller.api.control.info().imports.allow_private
        && import::names_this_server(url)
    {
        let message = "the URL names the server itself or its link; import from there over the control socket, on the \
                       server with 'forebay image import', or start the server with --import-allow-private";
        return Err(ApiError::refused(Refusal::NotHere, message));
    }
    let client = import::Client { name: &caller.principal.name, on_host };
    let (job, mut events) = import::start(&caller.api.control, request, client).await?;
    if jobs::prefers_job(&headers) {
        // The import continues while its events are received.
        tokio::spawn(async move { while events.recv().await.is_some() {} });
        return Ok(jobs::accepted(job));
    }
    lines::respond(events, |error| Event::Failed { error }).await
}
