//! `/images`: golden images.
//!
//! The response to an import is a stream of events, one JSON object per line, and closing the connection
//! cancels the import; or it is a job, if the client prefers that.

use std::slice;

use axum::http::HeaderMap;
use forebay_api::import::{Event, Request, Source};
use forebay_api::{self as api, DiskView};
use forebay_cluster::names::Kind;
use forebay_engine::Role;
use forebay_text::quoted;

use super::volumes::ShowDisk;
use super::{create, jobs, run};
use crate::access::{Right, may};
use crate::http::auth::Caller;
use crate::http::extract::{Body, Param};
use crate::http::lines;
use crate::http::list::{self, DISKS, ListQuery};
use crate::http::problem::{ApiError, Refusal};
use crate::http::route::{Answer, Route};
use crate::import;
use crate::operations::{Change, Changes, Control, DiskList, Disks, Done, Operation, Result, shown};

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
            run(c, ShowDisk { name, role: Role::Image })
        })
        .returns::<DiskView>(),
        Route::post(
            "/images/{name}",
            "Create an image from the current contents of a volume or snapshot",
            Right::Provision,
            |c: Caller, Param(name), Body(b): Body<api::CreateImage>| {
                create(c, CreateImage { name, source: b.source })
            },
        )
        .takes::<api::CreateImage>()
        .returns::<DiskView>()
        .creates(),
        Route::delete(
            "/images/{name}",
            "Remove an image that has no clones",
            Right::Provision,
            |c: Caller, Param(name)| run(c, RemoveImage { name }),
        ),
    ]
}

struct CreateImage {
    name: String,
    source: String,
}

impl Operation for CreateImage {
    type Reply = DiskView;
    const CHANGE: Changes<Self> =
        Some(|op| Change::create(format_args!("image {} from {}", quoted(&op.name), quoted(&op.source))));
    const EVENT: Option<&str> = Some("created");
    const DISKS: Disks<Self> = |op| vec![op.name.clone(), op.source.clone()];

    fn creates(&self) -> u32 {
        1
    }

    async fn execute(&self, control: &Control, _: &str) -> Result<DiskView> {
        let create = async {
            let mut image = control.pool().create_image(&self.name, &self.source).await?;
            control.inherit_tenant(&self.source, slice::from_mut(&mut image)).await?;
            shown(&image)
        };
        control.create_named(&[&self.name], Kind::Image, create).await
    }
}

struct RemoveImage {
    name: String,
}

impl Operation for RemoveImage {
    type Reply = Done;
    const CHANGE: Changes<Self> = Some(|op| Change::remove(format_args!("image {}", quoted(&op.name))));
    const EVENT: Option<&str> = Some("removed");
    const DISKS: Disks<Self> = |op| vec![op.name.clone()];

    fn event_disk(&self) -> Option<String> {
        Some(self.name.clone())
    }

    async fn execute(&self, control: &Control, _: &str) -> Result<Done> {
        control.remove_disk(&self.name, Role::Image).await
    }
}

async fn import_image(caller: Caller, headers: HeaderMap, Body(request): Body<Request>) -> Answer {
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
    let owner = caller.principal.owner();
    let client = import::Client {
        name: &caller.principal.name,
        uploads: Some((&caller.api.entry.uploads, &owner)),
        on_host,
    };
    let (job, mut events) = import::start(&caller.api.control, request, client).await?;
    if jobs::prefers_job(&headers) {
        // The import continues while its events are received.
        tokio::spawn(async move { while events.recv().await.is_some() {} });
        return Ok(jobs::accepted(job));
    }
    lines::respond(events, |error| Event::Failed { error }).await
}
