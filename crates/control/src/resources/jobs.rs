//! `/jobs`: long work.

use axum::Json;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use forebay_api::{ErrorKind, JobView, PREFIX};

use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::Param;
use crate::http::list::{ListQuery, PAGE, page};
use crate::http::problem::Result;
use crate::http::route::Route;
use crate::operations::ControlError;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/jobs", "List the running jobs and the last that ended, newest first", Right::Read, list)
            .lists::<JobView>()
            .with_query(PAGE),
        Route::get("/jobs/{id}", "Show a job: state, progress, result", Right::Read, show)
            .returns::<JobView>(),
        Route::delete("/jobs/{id}", "Cancel a job, if its kind permits it", Right::Administer, cancel)
            .returns::<JobView>(),
    ]
}

impl Caller {
    /// Whether the principal can see a job: a job on a disk in its scope, or any job without a scope.
    fn sees_job(&self, job: &JobView) -> bool {
        self.principal.scope.is_none() || job.disk.as_ref().is_some_and(|disk| self.check(disk).is_ok())
    }
}

async fn list(caller: Caller, query: ListQuery) -> Result<Response> {
    query.refuse_filters()?;
    let jobs = caller.api.control.jobs().list().into_iter().filter(|job| caller.sees_job(job)).collect();
    page(jobs, &query, |job| format!("{:020}", u64::MAX - job.id)).await
}

async fn show(caller: Caller, Param(id): Param<u64>) -> Result<Json<JobView>> {
    let job = caller.api.control.jobs().get(id).filter(|job| caller.sees_job(job));
    let none = || ControlError::new(ErrorKind::NotFound, format!("there is no job {id}"));
    Ok(Json(job.ok_or_else(none)?))
}

async fn cancel(caller: Caller, Param(id): Param<u64>) -> Result<Json<JobView>> {
    Ok(Json(caller.api.control.jobs().cancel(id)?))
}

/// Whether a client prefers a job to a stream (`Prefer: respond-async`, RFC 7240, section 4.1).
pub(super) fn prefers_job(headers: &HeaderMap) -> bool {
    let values = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case("respond-async"))
}

/// The response that leads to a job.
pub(super) fn accepted(job: JobView) -> Response {
    let location = HeaderValue::from_str(&format!("{PREFIX}/jobs/{}", job.id));
    let mut response = (StatusCode::ACCEPTED, Json(job)).into_response();
    if let Ok(location) = location {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}
