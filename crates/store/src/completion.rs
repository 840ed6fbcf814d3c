//! The results of operations that have begun.
//!
//! A result that another thread sends, or that is known already, needs no allocation; an operation with
//! further steps is a boxed future. The time of an operation is measured in its completion, so that
//! [`Metered`](crate::Metered) adds no future to each one.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::{Result, StoreError};

/// A future of any kind.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The result of an operation that has begun. The operation progresses without being polled; dropping the
/// completion at any time does not cancel it.
#[must_use = "the result of the operation is not awaited"]
pub struct Completion<T, E = StoreError> {
    state: State<T, E>,
    observer: Option<(Arc<dyn Observer>, Observed)>,
}

enum State<T, E> {
    /// The operation has ended with this result; `None` once the result was returned.
    Ended(Option<Result<T, E>>),
    /// The operation is in progress; another thread sends the result.
    Awaited(oneshot::Receiver<Result<T, E>>),
    Steps(BoxFuture<'static, Result<T, E>>),
}

/// What an observer learns about an operation: its kind and the time at which it began; `None` if only
/// failures count.
pub(crate) type Observed = Option<(usize, Duration)>;

/// An observer learns how operations end. It never learns the end of an operation whose completion was
/// dropped.
pub(crate) trait Observer: Send + Sync {
    fn ended(&self, operation: Observed, is_success: bool);
}

/// An error type that has a value for an operation whose result will never be sent.
pub trait Unsent {
    /// Returns the error for an operation that was not sent.
    fn unsent() -> Self;
}

impl Unsent for StoreError {
    fn unsent() -> StoreError {
        StoreError::Io {
            what: "waiting for the store".into(),
            reason: "the store was closed".into(),
            errno: libc::ESHUTDOWN,
        }
    }
}

impl<T, E> Completion<T, E> {
    /// An operation that has ended.
    pub fn ended(result: Result<T, E>) -> Completion<T, E> {
        Completion { state: State::Ended(Some(result)), observer: None }
    }

    /// An operation that ends when a future ends. What the future begins, begins when the future is first
    /// polled.
    pub fn of(steps: impl Future<Output = Result<T, E>> + Send + 'static) -> Completion<T, E> {
        Completion { state: State::Steps(Box::pin(steps)), observer: None }
    }

    /// An operation whose result another thread sends.
    pub(crate) fn awaited(result: oneshot::Receiver<Result<T, E>>) -> Completion<T, E> {
        Completion { state: State::Awaited(result), observer: None }
    }

    /// Reports the end of the operation to an observer, which replaces any earlier observer.
    pub(crate) fn observed(self, by: Arc<dyn Observer>, operation: Observed) -> Completion<T, E> {
        Completion { observer: Some((by, operation)), ..self }
    }
}

/// No field is pinned: the future in the completion has a separate allocation.
impl<T, E> Unpin for Completion<T, E> {}

impl<T, E: Unsent> Future for Completion<T, E> {
    type Output = Result<T, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, E>> {
        let polled = match &mut self.state {
            State::Ended(result) => Poll::Ready(result.take().expect("a result is returned once")),
            State::Awaited(sent) => {
                Pin::new(sent).poll(context).map(|sent| sent.unwrap_or_else(|_| Err(E::unsent())))
            }
            State::Steps(steps) => steps.as_mut().poll(context),
        };
        if let (Poll::Ready(result), Some((observer, operation))) = (&polled, &self.observer) {
            observer.ended(*operation, result.is_ok());
        }
        polled
    }
}
