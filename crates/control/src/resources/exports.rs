//! `/volumes/{name}/export`: the contents of a disk, as a file. `/volumes/{name}/differences` and `send`:
//! what has changed since an earlier snapshot or image.

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use forebay_api::export::{DifferenceLine, Format, JOB_HEADER, SIZE_HEADER};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::access::Right;
use crate::export::{self, Request};
use crate::http::auth::{Audited, Caller};
use crate::http::extract::Param;
use crate::http::problem::{ApiError, Refusal};
use crate::http::route::{Answer, Content, QueryParameter, Route};
use crate::operations::ControlError;
use crate::operations::transfer::stream::Position;

/// The query of an export.
const FORMAT: &[QueryParameter] = &[QueryParameter {
    name: "format",
    about: "The form of the contents: a qcow2 file, all bytes of the disk, or its extents with data",
    schema: r#"{"type": "string", "enum": ["qcow2", "raw", "extents"], "default": "qcow2"}"#,
}];

/// The query of a stream.
const SEND: &[QueryParameter] = &[
    QueryParameter {
        name: "from",
        about: "The earlier disk, which the receiver has: a snapshot of the volume by its name, otherwise an image \
                or VOLUME@SNAPSHOT; without it, all contents are sent",
        schema: r#"{"type": "string", "minLength": 1}"#,
    },
    QueryParameter {
        name: "resume",
        about: "Where the stream continues an interrupted one: OFFSET:RECORDS:BYTES of the receiver",
        schema: r#"{"type": "string", "example": "1048576:4:1048576"}"#,
    },
];

/// The query of a difference.
const FROM: &[QueryParameter] = &[QueryParameter {
    name: "from",
    about: "The earlier disk: a snapshot of the volume by its name, otherwise an image or VOLUME@SNAPSHOT; \
            without it, all data has changed",
    schema: r#"{"type": "string", "minLength": 1}"#,
}];

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/volumes/{name}/export",
            "Read a volume, image or VOLUME@SNAPSHOT as of one moment, as a qcow2 or raw file",
            Right::ReadData,
            read,
        )
        .with_query(FORMAT)
        .content(Content::Disk),
        Route::get(
            "/volumes/{name}/differences",
            "List the ranges of a volume, image or VOLUME@SNAPSHOT that have changed since an earlier disk",
            Right::ReadData,
            differences,
        )
        .with_query(FROM)
        .streams::<DifferenceLine>(),
        Route::get(
            "/volumes/{name}/send",
            "Read a snapshot or image as a stream that another pool receives",
            Right::ReadData,
            send,
        )
        .with_query(SEND)
        .content(Content::Disk),
    ]
}

/// The parameters `?from=SNAPSHOT&resume=POSITION`.
struct SendQuery(Option<String>, Position);

impl<S: Send + Sync> FromRequestParts<S> for SendQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let malformed = |why: &str| ApiError::refused(Refusal::Malformed, why.to_owned());
        let (mut from, mut position) = (None, Position::default());
        for pair in parts.uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode_str(value).decode_utf8().map_err(|_| malformed("not UTF-8"))?;
            match name {
                "from" if !value.is_empty() => from = Some(value.into_owned()),
                "resume" => {
                    let mut numbers = value.split(':').map(|number| number.parse::<u64>().ok());
                    let mut next = || numbers.next().flatten();
                    let found = (next(), next(), next());
                    let (Some(offset), Some(records), Some(data)) = found else {
                        return Err(malformed("resume is not OFFSET:RECORDS:BYTES"));
                    };
                    position = Position { offset, records, data };
                }
                _ => return Err(malformed("unknown query; use 'from=SNAPSHOT' and 'resume=POSITION'")),
            }
        }
        Ok(SendQuery(from, position))
    }
}

/// The parameter `?format=qcow2`.
struct FormatQuery(Format);

impl<S: Send + Sync> FromRequestParts<S> for FormatQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query = parts.uri.query().filter(|query| !query.is_empty());
        let Some(query) = query else { return Ok(FormatQuery(Format::default())) };
        let is_meant = |format: &Format| query.strip_prefix("format=") == Some(format.name());
        let found = Format::ALL.into_iter().find(is_meant).map(FormatQuery);
        let message = "unknown query; use 'format=qcow2', 'format=raw' or 'format=extents'";
        found.ok_or_else(|| ApiError::refused(Refusal::Malformed, message))
    }
}

/// The parameter `?from=SNAPSHOT`.
struct FromQuery(Option<String>);

impl<S: Send + Sync> FromRequestParts<S> for FromQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query = parts.uri.query().filter(|query| !query.is_empty());
        let Some(query) = query else { return Ok(FromQuery(None)) };
        let malformed = |why: &str| ApiError::refused(Refusal::Malformed, why.to_owned());
        let value = query.strip_prefix("from=").filter(|value| !value.is_empty() && !value.contains('&'));
        let value = value.ok_or_else(|| malformed("unknown query; use 'from=SNAPSHOT'"))?;
        let decoded = percent_decode_str(value).decode_utf8();
        let decoded = decoded.map_err(|_| malformed("the parameter 'from' is not UTF-8"))?;
        Ok(FromQuery(Some(decoded.into_owned())))
    }
}

async fn differences(caller: Caller, Param(disk): Param<String>, FromQuery(from): FromQuery) -> Answer {
    changes(caller, disk, from, Format::Changes, Position::default()).await
}

async fn send(caller: Caller, Param(disk): Param<String>, SendQuery(from, position): SendQuery) -> Answer {
    changes(caller, disk, from, Format::Stream, position).await
}

/// Responds with what has changed, in this format.
async fn changes(
    caller: Caller,
    disk: String,
    from: Option<String>,
    format: Format,
    position: Position,
) -> Answer {
    caller.check(&disk)?;
    let control = &caller.api.control;
    // The caller needs the right for the earlier disk, too, whose full name is found here.
    let since = match from {
        Some(from) => Some(control.pool().since(&disk, &from).map_err(ControlError::from)?.name()),
        None => None,
    };
    since.as_deref().map(|since| caller.check(since)).transpose()?;
    respond(caller, &disk, since.as_deref(), format, position).await
}

/// Begins an export, and responds with it. The caller has the rights for both disks.
async fn respond(
    caller: Caller,
    disk: &str,
    since: Option<&str>,
    format: Format,
    position: Position,
) -> Answer {
    let (control, owner) = (caller.api.control.clone(), caller.principal.owner());
    let client = caller.principal.name.clone();
    let request = Request { disk, format, since, position, client: &client, owner };
    let begun = export::start(&control, request, move || caller.check_valid()).await?;
    let mut response: Response = Body::new(begun.body).into_response();
    response.extensions_mut().insert(Audited);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(format.media_type()));
    headers.insert(HeaderName::from_static(JOB_HEADER), begun.job.id.into());
    headers.insert(HeaderName::from_static(SIZE_HEADER), begun.size.into());
    Ok(response)
}

async fn read(caller: Caller, Param(disk): Param<String>, FormatQuery(format): FormatQuery) -> Answer {
    caller.check(&disk)?;
    let mut response = respond(caller, &disk, None, format, Position::default()).await?;
    // RFC 6266 and RFC 8187: the characters of the name are escaped.
    let name = utf8_percent_encode(&disk, NON_ALPHANUMERIC);
    let disposition = format!("attachment; filename*=UTF-8''{name}.{}", format.name());
    if let Ok(disposition) = HeaderValue::try_from(disposition) {
        response.headers_mut().insert(header::CONTENT_DISPOSITION, disposition);
    }
    Ok(response)
}
