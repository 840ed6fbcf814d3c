//! The table of routes: each route with its handler, the right that it requires, and its description.

use std::borrow::Cow;

use axum::extract::Request;
use axum::handler::Handler;
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, on};
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use super::Api;
use super::auth;
use crate::access::Right;

/// One method of one path. A route cannot be built without the right that it requires.
pub struct Route {
    /// The HTTP method.
    pub method: Method,
    /// The path after [`forebay_api::PREFIX`], with `{parameters}`.
    pub path: &'static str,
    /// The description in `docs/api.md`.
    pub about: &'static str,
    /// The right that the route requires.
    pub right: Right,
    pub(crate) body: Option<Shape>,
    /// The body is a sequence of bytes.
    pub(crate) takes_bytes: bool,
    pub(crate) reply: Reply,
    /// With `Prefer: respond-async`, the response of the route is a job.
    pub(crate) or_job: bool,
    pub(crate) query: &'static [QueryParameter],
    pub(crate) handler: MethodRouter<Api>,
}

/// A JSON type of the API.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub name: fn() -> Cow<'static, str>,
    /// Adds the schemas of the type and of the types of its fields.
    pub collect: fn(&mut Vec<(String, RefOr<Schema>)>),
}

impl Shape {
    pub fn of<T: ToSchema>() -> Shape {
        fn collect<T: ToSchema>(all: &mut Vec<(String, RefOr<Schema>)>) {
            all.push((T::name().into_owned(), T::schema()));
            T::schemas(all);
        }
        Shape { name: T::name, collect: collect::<T> }
    }
}

/// The response of a route that succeeds.
#[derive(Clone, Copy)]
pub(crate) struct Reply {
    pub status: StatusCode,
    pub content: Content,
}

/// The body of a response.
#[derive(Clone, Copy)]
pub(crate) enum Content {
    /// The response is `{}`.
    Empty,
    /// The response is one value.
    One(Shape),
    /// The response is an array of values.
    Many(Shape),
    /// The response has one value in each line, sent while the work runs.
    Lines(Shape),
    /// The response is a stream of server-sent events.
    Events(Shape),
    /// The response is an arbitrary JSON document.
    Document,
    /// The response has the bytes of a disk.
    Disk,
}

/// A parameter of a query.
pub(crate) struct QueryParameter {
    pub name: &'static str,
    pub about: &'static str,
    pub schema: &'static str,
}

impl Route {
    /// Creates a route that responds with status 200 and `{}`. `takes` and the following methods describe
    /// routes with other responses.
    pub(crate) fn new<H, T>(
        method: Method,
        path: &'static str,
        about: &'static str,
        right: Right,
        handler: H,
    ) -> Route
    where
        H: Handler<T, Api>,
        T: 'static,
    {
        let filter = MethodFilter::try_from(method.clone()).expect("the table has standard methods only");
        // Runs before the extractors: without the right, a request is refused before its body is read.
        let authorize = move |request: Request, next: Next| async move {
            match auth::authorize(right, request) {
                Ok(request) => next.run(request).await,
                Err(refused) => axum::response::IntoResponse::into_response(refused),
            }
        };
        Route {
            method,
            path,
            about,
            right,
            body: None,
            takes_bytes: false,
            reply: Reply { status: StatusCode::OK, content: Content::Empty },
            or_job: false,
            query: &[],
            handler: on(filter, handler).layer(from_fn(authorize)),
        }
    }

    pub(crate) fn get<H: Handler<T, Api>, T: 'static>(
        path: &'static str,
        about: &'static str,
        right: Right,
        handler: H,
    ) -> Route {
        Route::new(Method::GET, path, about, right, handler)
    }

    pub(crate) fn post<H: Handler<T, Api>, T: 'static>(
        path: &'static str,
        about: &'static str,
        right: Right,
        handler: H,
    ) -> Route {
        Route::new(Method::POST, path, about, right, handler)
    }

    pub(crate) fn put<H: Handler<T, Api>, T: 'static>(
        path: &'static str,
        about: &'static str,
        right: Right,
        handler: H,
    ) -> Route {
        Route::new(Method::PUT, path, about, right, handler)
    }

    pub(crate) fn delete<H: Handler<T, Api>, T: 'static>(
        path: &'static str,
        about: &'static str,
        right: Right,
        handler: H,
    ) -> Route {
        Route::new(Method::DELETE, path, about, right, handler)
    }

    /// The request has a body of this type.
    pub(crate) fn takes<T: ToSchema>(self) -> Route {
        Route { body: Some(Shape::of::<T>()), ..self }
    }

    /// The request has a body of bytes.
    pub(crate) fn takes_bytes(self) -> Route {
        Route { takes_bytes: true, ..self }
    }

    /// The query may have these parameters.
    pub(crate) fn with_query(self, query: &'static [QueryParameter]) -> Route {
        Route { query, ..self }
    }

    /// The response is a value.
    pub(crate) fn returns<T: ToSchema>(self) -> Route {
        self.content(Content::One(Shape::of::<T>()))
    }

    /// The response is an array.
    pub(crate) fn lists<T: ToSchema>(self) -> Route {
        self.content(Content::Many(Shape::of::<T>()))
    }

    /// The response is a stream of values.
    pub(crate) fn streams<T: ToSchema>(self) -> Route {
        self.content(Content::Lines(Shape::of::<T>()))
    }

    /// The response is a stream of server-sent events.
    pub(crate) fn follows<T: ToSchema>(self) -> Route {
        self.content(Content::Events(Shape::of::<T>()))
    }

    /// The client can prefer a job to the stream.
    pub(crate) fn or_job(self) -> Route {
        Route { or_job: true, ..self }
    }

    pub(crate) fn content(mut self, content: Content) -> Route {
        self.reply.content = content;
        self
    }

    /// The route creates a resource: status 201.
    pub(crate) fn creates(mut self) -> Route {
        self.reply.status = StatusCode::CREATED;
        self
    }
}

/// Whether a path after [`forebay_api::PREFIX`] belongs to tokens or sessions, whose requests or responses
/// have secrets.
pub(crate) fn is_of_access(path: &str) -> bool {
    ["/tokens", "/session"].iter().any(|of_access| path.starts_with(of_access))
}

/// The response of a handler.
pub(crate) type Answer<T = Response> = super::problem::Result<T>;
