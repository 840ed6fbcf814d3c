//! Requests that are not idempotent, and their repetitions; see [`crate::replies`].

use tokio::sync::watch;

use crate::replies::Admission;
use crate::types::{FileId, RequestKey};
use crate::{Files, Result};

/// A request that changes the namespace and is being performed.
pub struct Ticket<'a> {
    files: &'a Files,
    key: RequestKey,
    _running: watch::Sender<()>,
}

impl Ticket<'_> {
    pub(crate) fn key(&self) -> RequestKey {
        self.key
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.files.table.write().replies.end(&self.key);
    }
}

/// Whether a request is performed.
pub enum Begun<'a> {
    /// The request is new: it is performed with this ticket.
    New(Ticket<'a>),
    /// The request was performed before, and has succeeded. Its reply named this object, if any.
    Repeated(Option<FileId>),
}

impl Files {
    /// Begins a request that changes the namespace. If the same request is being performed, waits until it
    /// has ended. A repeated request is durable on return.
    ///
    /// # Errors
    /// The errors of a flush.
    pub async fn begin(&self, key: RequestKey) -> Result<Begun<'_>> {
        loop {
            let admission = self.table.write().replies.begin(key, self.now());
            match admission {
                Admission::New(running) => {
                    return Ok(Begun::New(Ticket { files: self, key, _running: running }));
                }
                Admission::Running(mut running) => {
                    // The sender is dropped, and never sends.
                    let _ = running.changed().await;
                }
                Admission::Done(object) => {
                    self.flush().await?;
                    return Ok(Begun::Repeated((object.number != 0).then_some(object)));
                }
            }
        }
    }
}
