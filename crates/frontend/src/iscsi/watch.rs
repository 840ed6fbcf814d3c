//! Events of a session that its initiator does not cause: another session replaces it, its target or its
//! units change, another nexus aborts its commands, or its initiator is silent. A separate task waits for
//! these events and leaves them in an inbox.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::lun_map::LunMap;
use crate::plane::{Backlog, Watching};
use crate::targets::EndRequest;

/// Time of silence after which an initiator is pinged; after twice this time its session ends.
const QUIET: Duration = Duration::from_secs(30);

/// Time that the commands of a session have to end when an administrator ends the session.
const DISCONNECT_TIME: Duration = Duration::from_secs(5);

/// Why a session ends if its initiator has lost its access.
pub(super) const NOT_ADMITTED: &str =
    "the target no longer admits the initiator, or requires another CHAP secret";

/// The events that a session has to handle.
pub(super) struct Inbox {
    backlog: Rc<Backlog>,
    last_received: Cell<Instant>,
    ended: Cell<Option<&'static str>>,
    aborts: Cell<bool>,
    ping: Cell<bool>,
    leaving: Cell<bool>,
    logged_out: Cell<bool>,
}

impl Inbox {
    pub fn new(backlog: Rc<Backlog>) -> Rc<Inbox> {
        Rc::new(Inbox {
            backlog,
            last_received: Cell::new(Instant::now()),
            ended: Cell::new(None),
            aborts: Cell::new(false),
            ping: Cell::new(false),
            leaving: Cell::new(false),
            logged_out: Cell::new(false),
        })
    }

    /// Records that bytes of the initiator were received.
    pub fn received(&self) {
        self.last_received.set(Instant::now());
    }

    /// The reason why the session has to end; `None` if it need not end.
    pub fn ended(&self) -> Option<&'static str> {
        self.ended.get()
    }

    /// Whether another nexus aborted commands, or units were withdrawn.
    pub fn take_aborts(&self) -> bool {
        self.aborts.take()
    }

    /// Whether a ping has to be sent to the initiator.
    pub fn take_ping(&self) -> bool {
        self.ping.take()
    }

    /// Whether an administrator ends the session, after its commands in progress.
    pub fn is_leaving(&self) -> bool {
        self.leaving.get()
    }

    /// Records that the initiator logged out. Nothing is received from then on, so silence is no sign of a
    /// failure until the logout is answered.
    pub fn log_out(&self) {
        self.logged_out.set(true);
    }

    /// Records that the logout is answered. The session ends if the initiator does not read the answer.
    pub fn log_out_answered(&self) {
        self.logged_out.set(false);
        self.received();
    }

    fn end(&self, why: &'static str) {
        self.ended.set(Some(why));
        self.backlog.wake();
    }
}

/// Watches a session. A discovery session ends after `discovery_idle` without a request. `end` is set when
/// another session takes the place of this one; `disconnect` is the request of an administrator; `changed`
/// is the subscription to changes of the target that precedes the first refresh of `luns`.
pub(super) fn watch(
    inbox: &Rc<Inbox>,
    luns: Option<Arc<LunMap>>,
    mut end: Option<watch::Receiver<Option<&'static str>>>,
    disconnect: EndRequest,
    mut changed: Option<watch::Receiver<u64>>,
    discovery_idle: Option<Duration>,
) -> Watching {
    let (inbox, inbox_of_panic) = (inbox.clone(), inbox.clone());
    let task = async move {
        let replaced = async {
            match &mut end {
                // The sender is dropped only together with the session.
                Some(end) => end.wait_for(Option::is_some).await.ok().and_then(|why| *why),
                None => std::future::pending().await,
            }
        };
        let follows = async {
            let (Some(luns), Some(changed)) = (&luns, &mut changed) else {
                return std::future::pending().await;
            };
            loop {
                tokio::select! {
                    change = changed.changed() => match change {
                        Ok(()) if luns.refresh().await => {}
                        Ok(()) => return,
                        Err(_) => return std::future::pending().await,
                    },
                    () = luns.followed.settle(), if luns.followed.is_behind() => {}
                }
            }
        };
        let aborts = async {
            let Some(luns) = &luns else { return std::future::pending().await };
            loop {
                luns.abort.notified().await;
                inbox.aborts.set(true);
                inbox.backlog.wake();
            }
        };
        let disconnected = async {
            disconnect.received().await;
            inbox.leaving.set(true);
            inbox.backlog.wake();
            tokio::time::sleep(DISCONNECT_TIME).await;
        };
        tokio::select! {
            () = disconnected => inbox.end("an administrator ended it, and its commands did not end in time"),
            why = replaced => inbox.end(why.unwrap_or("its registration ended")),
            () = follows => inbox.end(NOT_ADMITTED),
            () = aborts => {}
            () = idle(&inbox, discovery_idle) => inbox.end("the discovery session was idle"),
            () = ping(&inbox) => inbox.end("the initiator did not answer a ping"),
        }
    };
    Watching::spawn("the watch of a session", task, move || {
        inbox_of_panic.end("the watch of the session failed")
    })
}

/// Returns when nothing was received for `most`; never returns if `most` is `None`.
async fn idle(inbox: &Inbox, most: Option<Duration>) {
    let Some(most) = most else { return std::future::pending().await };
    loop {
        let quiet = inbox.last_received.get().elapsed();
        if quiet >= most {
            return;
        }
        tokio::time::sleep(most - quiet).await;
    }
}

/// Pings a silent initiator. Returns when it does not answer.
async fn ping(inbox: &Inbox) {
    let mut pinged = false;
    loop {
        let quiet = inbox.last_received.get().elapsed();
        if inbox.logged_out.get() {
            pinged = false;
            tokio::time::sleep(QUIET).await;
        } else if quiet < QUIET {
            pinged = false;
            tokio::time::sleep(QUIET - quiet).await;
        } else if !pinged {
            pinged = true;
            inbox.ping.set(true);
            inbox.backlog.wake();
            tokio::time::sleep(QUIET).await;
        } else {
            return;
        }
    }
}
