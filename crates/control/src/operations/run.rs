//! Running an operation: a permit, retries, its event and its lines in the log.

use std::time::{Duration, Instant};

use forebay_api::ErrorKind;
use forebay_text::shortened;
use tokio::sync::OwnedMutexGuard;
use tracing::Instrument;

use super::operation::MAX_LOGGED;
use super::{Change, Control, ControlError, EventDisk, Operation, Reply, Result, Topic};

/// Maximum number of events of one operation.
const MAX_DISK_EVENTS: usize = 1000;
/// How long an operation that requires exclusive use of a disk or target is retried while connections use it:
/// the server detects a disconnect a moment after the client has disconnected.
const IN_USE_RETRY_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between attempts while a disk is in use.
const IN_USE_RETRY_INTERVAL: Duration = Duration::from_millis(10);

impl Control {
    /// Runs an operation to its end. `owner` is the name of the client; `order` is held until the operation
    /// has ended, also if the client has disconnected.
    pub(super) async fn run<O: Operation>(
        &self,
        operation: O,
        owner: &str,
        order: Option<OwnedMutexGuard<()>>,
    ) -> Result<O::Reply> {
        self.check_running()?;
        let permit = self.job_permit().await?;
        let (this, owner) = (self.clone(), owner.to_owned());
        let run = async move {
            // The event of a removal names the tenant of the disk, which is known only before the removal.
            let before = operation.event_disk().map(|name| this.event_disk(&name));
            let executed = this.execute_with_retry(&operation, &owner).await;
            let mut result = executed.map_err(|e| this.with_clients(e));
            drop((permit, order));
            // A change was made by the owner, since the store compares that.
            if O::CHANGE.is_none() {
                result = this.check_owner().and(result);
            }
            this.publish::<O>(&owner, before, &result);
            if let Some(change) = O::CHANGE {
                log(&change(&operation), &owner, result.as_ref().err());
            }
            if O::CHANGE.is_some() {
                // The portals of other nodes of a cluster then serve what was changed.
                this.targets().served().published().await;
            }
            // Without the permit, since the commands may be slow, and an upgrade waits for permits.
            this.targets().served().revoked(|target| operation.revokes_at(target)).await;
            result
        };
        // Events of the operation name the request that it serves.
        let task = tokio::spawn(run.in_current_span());
        task.await.unwrap_or_else(|e| {
            Err(ControlError::internal(format!("the action failed ({e}); see the server's log")))
        })
    }

    /// Executes an operation. Retries it for [`IN_USE_RETRY_TIMEOUT`] while a disk or target is in use.
    async fn execute_with_retry<O: Operation>(&self, operation: &O, owner: &str) -> Result<O::Reply> {
        let begun = Instant::now();
        loop {
            match operation.execute(self, owner).await {
                Err(e) if e.is_in_use() && begun.elapsed() < IN_USE_RETRY_TIMEOUT => {
                    tokio::time::sleep(IN_USE_RETRY_INTERVAL).await;
                }
                result => return result,
            }
        }
    }

    /// Publishes the event of an operation that changed disks, or found that the pool has stopped.
    fn publish<O: Operation>(&self, owner: &str, before: Option<EventDisk>, result: &Result<O::Reply>) {
        let events = self.events();
        match result {
            Ok(reply) => {
                let Some(what) = O::EVENT else { return };
                // Each disk has a separate event, so that a client sees the events of disks in its scope; if
                // there are many disks, only a few have events.
                let in_reply = reply.disks().take(MAX_DISK_EVENTS).map(|name| self.event_disk(name));
                for disk in before.into_iter().chain(in_reply) {
                    events.publish(owner, Topic::Volume, what, vec![disk], serde_json::Value::Null);
                }
            }
            Err(e) if matches!(e.kind, ErrorKind::Latched | ErrorKind::Fenced | ErrorKind::Damaged) => {
                let data = serde_json::json!({"message": e.message});
                events.publish(owner, Topic::Error, e.kind.code(), Vec::new(), data);
            }
            Err(_) => {}
        }
    }
}

/// Logs an operation that has ended.
fn log(change: &Change, by: &str, error: Option<&ControlError>) {
    let error = error.map(|e| shortened(format_args!("{e}"), MAX_LOGGED));
    tracing::info!(by, error, "{}", change.sentence(error.is_none()));
}
