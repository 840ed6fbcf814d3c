//! Events of a queue that its host does not cause: its controller ends, the table of targets changes, another
//! nexus aborts commands, or the host is silent. A separate task waits for these events and leaves them in an
//! inbox.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_wire::nvme::AsyncEvent;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::controller::Controller;
use crate::plane::{Backlog, Watching};
use crate::targets::EndRequest;

/// Why a controller ends if its host has lost its access.
pub(super) const NOT_ADMITTED: &str = "the target no longer admits the host";

/// The events that a queue has to handle.
pub(super) struct Inbox {
    backlog: Rc<Backlog>,
    ended: Cell<Option<&'static str>>,
    interrupts: Cell<bool>,
}

impl Inbox {
    pub fn new(backlog: Rc<Backlog>) -> Rc<Inbox> {
        Rc::new(Inbox { backlog, ended: Cell::new(None), interrupts: Cell::new(false) })
    }

    /// The reason why the queue has to end; `None` if it need not end.
    pub fn ended(&self) -> Option<&'static str> {
        self.ended.get()
    }

    /// Whether another nexus aborted commands, or namespaces were withdrawn.
    pub fn take_interrupts(&self) -> bool {
        self.interrupts.take()
    }

    fn end(&self, why: &'static str) {
        self.ended.set(Some(why));
        self.backlog.wake();
    }
}

/// Watches a queue. `admin` is set for an admin queue: the subscription to changes of targets, and the
/// request of an administrator to end the controller. A discovery controller without keep alive timeout ends
/// after `discovery_idle` without a command.
pub(super) fn watch(
    inbox: &Rc<Inbox>,
    controller: &Arc<Controller>,
    admin: Option<(watch::Receiver<u64>, EndRequest)>,
    discovery_idle: Option<Duration>,
) -> Watching {
    let is_admin = admin.is_some();
    let (inbox, inbox_of_panic, controller) = (inbox.clone(), inbox.clone(), controller.clone());
    let task = async move {
        let mut ended = controller.ended();
        let ends = async {
            // The sender is a part of the controller.
            ended.wait_for(Option::is_some).await.ok().and_then(|why| *why)
        };
        let administered = async {
            match admin {
                Some((changed, disconnect)) => administer(&inbox, &controller, changed, disconnect).await,
                None => std::future::pending().await,
            }
        };
        let silent = async {
            match is_admin {
                true => silence(&controller, discovery_idle).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            why = ends => inbox.end(why.unwrap_or("its controller ended")),
            why = administered => controller.end(why),
            () = interrupted(&inbox, &controller) => {}
            why = silent => controller.end(why),
        }
        // The end of the controller ends this queue too.
        let why = *controller.ended().borrow();
        inbox.end(why.unwrap_or("its controller ended"));
    };
    Watching::spawn("the watch of a queue", task, move || inbox_of_panic.end("the watch of the queue failed"))
}

/// Follows the table of targets. Returns why the controller has to end.
async fn administer(
    inbox: &Inbox,
    controller: &Controller,
    mut changed: watch::Receiver<u64>,
    disconnect: EndRequest,
) -> &'static str {
    let follows = async {
        loop {
            let is_behind =
                controller.namespaces.as_ref().is_some_and(|namespaces| namespaces.followed.is_behind());
            let settles = async {
                match controller.namespaces.as_ref().filter(|_| is_behind) {
                    Some(namespaces) => namespaces.followed.settle().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                change = changed.changed() => {
                    if change.is_err() {
                        return std::future::pending().await;
                    }
                    match &controller.namespaces {
                        None => controller.note(AsyncEvent::DiscoveryChanged),
                        Some(namespaces) => match namespaces.refresh().await {
                            Some(namespaces) => controller.note_changed(&namespaces),
                            None => return NOT_ADMITTED,
                        },
                    }
                    inbox.backlog.wake();
                }
                () = settles => {}
            }
        }
    };
    tokio::select! {
        why = follows => why,
        () = disconnect.received() => "an administrator ended it",
    }
}

/// Reports that commands that gather data have to end.
async fn interrupted(inbox: &Inbox, controller: &Controller) {
    let Some(namespaces) = &controller.namespaces else { return std::future::pending().await };
    let mut interrupts = namespaces.interrupts();
    while interrupts.changed().await.is_ok() {
        inbox.interrupts.set(true);
        inbox.backlog.wake();
    }
    std::future::pending().await
}

/// Returns when no queue of the controller has received anything for the keep alive timeout (Base 3.9).
async fn silence(controller: &Controller, discovery_idle: Option<Duration>) -> &'static str {
    loop {
        let changes = controller.keep_alive_changed.notified();
        let Some(timeout) = controller.keep_alive().or(discovery_idle) else {
            changes.await;
            continue;
        };
        let end = controller.last() + timeout;
        if end <= Instant::now() {
            return "its host was silent for the keep alive timeout";
        }
        tokio::select! {
            () = changes => {}
            () = sleep_until(end) => {}
        }
    }
}
