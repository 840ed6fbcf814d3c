//! The OpenAPI document, generated from the table of routes and from the types of the API.

use std::collections::BTreeMap;

use axum::http::{Method, StatusCode};
use forebay_api::export::Format;
use forebay_api::{HEADER, JobView, PREFIX, Problem};
use serde_json::{Map, Value, json};

use super::extract::MAX_BODY;
use super::problem::PROBLEM_JSON;
use super::route::{Content, Route, Shape, is_of_access};
use crate::access::Right;

/// Returns the document of these routes (OpenAPI 3.1).
pub(crate) fn document(routes: &[Route]) -> Value {
    let mut paths: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    let mut schemas = Vec::new();
    [Shape::of::<Problem>(), Shape::of::<JobView>()].iter().for_each(|shape| (shape.collect)(&mut schemas));
    for route in routes {
        let shapes = [route.body, shape(&route.reply.content)];
        shapes.into_iter().flatten().for_each(|shape| (shape.collect)(&mut schemas));
        let path = paths.entry(format!("{PREFIX}{}", route.path)).or_default();
        path.insert(route.method.as_str().to_ascii_lowercase(), operation(route));
    }
    let schemas: BTreeMap<String, Value> = schemas.into_iter().map(|(name, s)| (name, json!(s))).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Forebay",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "Administration of a Forebay server. docs/api.md explains it.",
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {"problem": {
                "description": "The request failed",
                "content": {PROBLEM_JSON: {"schema": reference(&Shape::of::<Problem>())}},
            }},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": super::auth::cookie_name(true)},
            },
        },
    })
}

fn shape(content: &Content) -> Option<Shape> {
    match content {
        Content::One(shape) | Content::Many(shape) | Content::Lines(shape) | Content::Events(shape) => {
            Some(*shape)
        }
        Content::Empty | Content::Document | Content::Disk => None,
    }
}

fn reference(shape: &Shape) -> Value {
    json!({"$ref": format!("#/components/schemas/{}", (shape.name)())})
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "operationId": operation_id(route),
        "tags": [route.path.split('/').nth(1).unwrap_or_default()],
        "summary": route.about,
        "x-forebay-right": route.right.name(),
        "parameters": parameters(route),
        "responses": responses(route),
    });
    if route.right == Right::Anyone {
        operation["security"] = json!([]);
    }
    if let Some(body) = &route.body {
        operation["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": reference(body)}}});
    }
    if route.takes_bytes {
        let bytes = json!({"schema": {"type": "string", "format": "binary", "maxLength": MAX_BODY}});
        operation["requestBody"] = json!({"required": true, "content": {"application/octet-stream": bytes}});
    }
    operation
}

/// Id of an operation, such as `get_volumes_name_limits`.
fn operation_id(route: &Route) -> String {
    let path = route.path.replace(['{', '}', '.'], "").replace('/', "_");
    format!("{}{path}", route.method.as_str().to_ascii_lowercase())
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path = in_path.map(|name| {
        let schema = match name {
            "lun" => json!({"type": "integer", "minimum": 0, "maximum": 255}),
            "id" | "offset" => json!({"type": "integer", "format": "int64", "minimum": 0}),
            _ => json!({"type": "string", "minLength": 1}),
        };
        json!({"name": name, "in": "path", "required": true, "schema": schema})
    });
    let in_query = route.query.iter().map(|q| {
        let schema: Value = serde_json::from_str(q.schema).unwrap_or_default();
        json!({"name": q.name, "in": "query", "description": q.about, "schema": schema})
    });
    let csrf = (!route.method.is_safe()).then(|| {
        json!({"name": HEADER, "in": "header", "required": route.body.is_none(),
            "description": "Any value; required unless the body is declared as JSON",
            "schema": {"type": "string", "pattern": "^[!-~]+$", "example": "1"}})
    });
    let header = |name: &str, about: &str, example: &str| json!({"name": name, "in": "header", "description": about, "schema": {"type": "string", "example": example}});
    let mut all: Vec<Value> = in_path.chain(in_query).chain(csrf).collect();
    if has_tag(route) {
        all.push(header("If-None-Match", "The tag of a representation that the client has", "\"0123\""));
    }
    if route.method == Method::PUT {
        all.push(header("If-Match", "Replace only the representation with this tag", "*"));
    }
    if route.method == Method::POST && !is_of_access(route.path) {
        let about = "A key of 1 to 128 characters; a repetition with the same key has no second effect";
        all.push(header("Idempotency-Key", about, "f6a1c2"));
    }
    if route.or_job {
        all.push(header("Prefer", "respond-async: respond with a job instead of a stream", "respond-async"));
    }
    all
}

fn has_tag(route: &Route) -> bool {
    route.method == Method::GET && !matches!(route.reply.content, Content::Events(_) | Content::Disk)
}

fn responses(route: &Route) -> Map<String, Value> {
    let content = match &route.reply.content {
        Content::Empty => json!({"application/json": {"schema": {"type": "object"}}}),
        Content::Document => json!({"application/json": {"schema": {"type": "object"}}}),
        Content::One(shape) => json!({"application/json": {"schema": reference(shape)}}),
        Content::Many(shape) => {
            json!({"application/json": {"schema": {"type": "array", "items": reference(shape)}}})
        }
        Content::Lines(shape) => json!({"application/x-ndjson": {"schema": reference(shape)}}),
        Content::Disk => {
            let bytes = json!({"schema": {"type": "string", "format": "binary"}});
            [Format::Qcow2, Format::Extents].into_iter().map(|f| (f.media_type(), bytes.clone())).collect()
        }
        // The data of each event.
        Content::Events(shape) => json!({"text/event-stream": {"schema": reference(shape)}}),
    };
    let about = route.reply.status.canonical_reason().unwrap_or_default();
    let success = json!({"description": about, "content": content});
    let mut all = Map::from_iter([(route.reply.status.as_str().to_owned(), success)]);
    if route.or_job {
        let job = json!({"application/json": {"schema": reference(&Shape::of::<JobView>())}});
        all.insert("202".into(), json!({"description": "The work continues as a job", "content": job}));
    }
    if has_tag(route) {
        all.insert("304".into(), json!({"description": "The client has the present representation"}));
    }
    for status in problems(route) {
        all.insert(status.as_str().to_owned(), json!({"$ref": "#/components/responses/problem"}));
    }
    all
}

/// The statuses with which a route can fail.
fn problems(route: &Route) -> Vec<StatusCode> {
    let mut all = vec![
        StatusCode::BAD_REQUEST,
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::INTERNAL_SERVER_ERROR,
        StatusCode::SERVICE_UNAVAILABLE,
    ];
    if route.takes_bytes {
        all.extend([StatusCode::REQUEST_TIMEOUT, StatusCode::PAYLOAD_TOO_LARGE]);
    }
    if route.path.contains('{') || route.body.is_some() {
        all.extend([StatusCode::NOT_FOUND, StatusCode::CONFLICT]);
    }
    if route.body.is_some() {
        all.extend([
            StatusCode::REQUEST_TIMEOUT,
            StatusCode::PAYLOAD_TOO_LARGE,
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            StatusCode::UNPROCESSABLE_ENTITY,
            StatusCode::BAD_GATEWAY,
        ]);
    }
    if route.method != Method::GET {
        all.extend([StatusCode::CONFLICT, StatusCode::INSUFFICIENT_STORAGE]);
    }
    match route.method {
        Method::PUT => all.push(StatusCode::PRECONDITION_FAILED),
        Method::POST => all.extend([
            StatusCode::REQUEST_TIMEOUT,
            StatusCode::PAYLOAD_TOO_LARGE,
            StatusCode::UNPROCESSABLE_ENTITY,
        ]),
        _ => {}
    }
    all
}
