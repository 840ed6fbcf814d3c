//! What happens to a session that is not its initiator's doing: it is replaced, its target goes, disks come and go,
//! nothing is heard for long. A task of its own waits for all that and leaves it in an inbox.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::units::View;
use crate::plane::{Backlog, contained};

/// After so long without a word the initiator is asked whether it is there; after twice as long it is not.
const QUIET: Duration = Duration::from_secs(30);

/// Why a session ends whose initiator lost its access.
pub(super) const NOT_ADMITTED: &str = "its target does not admit it any more, or asks for another secret";

/// What a session has to attend to.
pub(super) struct Inbox {
    backlog: Rc<Backlog>,
    last_heard: Cell<Instant>,
    ended: Cell<Option<&'static str>>,
    aborts: Cell<bool>,
    ping: Cell<bool>,
}

impl Inbox {
    pub fn new(backlog: Rc<Backlog>) -> Rc<Inbox> {
        Rc::new(Inbox {
            backlog,
            last_heard: Cell::new(Instant::now()),
            ended: Cell::new(None),
            aborts: Cell::new(false),
            ping: Cell::new(false),
        })
    }

    /// The initiator said something.
    pub fn heard(&self) {
        self.last_heard.set(Instant::now());
    }

    /// Why the session has to end, if it has to.
    pub fn ended(&self) -> Option<&'static str> {
        self.ended.get()
    }

    /// Whether another nexus has had commands aborted; see [`View::take_aborted`].
    pub fn take_aborts(&self) -> bool {
        self.aborts.take()
    }

    /// Whether the initiator is to be asked whether it is there.
    pub fn take_ping(&self) -> bool {
        self.ping.take()
    }

    fn end(&self, why: &'static str) {
        self.ended.set(Some(why));
        self.backlog.wake();
    }
}

/// Ends the watching when dropped.
pub(super) struct Watching(AbortHandle);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Watches over a session. A discovery session ends after `discovery_idle` without a request. `end` becomes true when
/// another session takes its place; `changed` is the subscription to the table of targets that was made before the
/// view was first refreshed.
pub(super) fn watch(
    inbox: &Rc<Inbox>,
    view: Option<Arc<View>>,
    mut end: Option<watch::Receiver<bool>>,
    mut changed: watch::Receiver<u64>,
    discovery_idle: Option<Duration>,
) -> Watching {
    let (inbox, inbox_of_panic) = (inbox.clone(), inbox.clone());
    let task = async move {
        let replaced = async {
            match &mut end {
                // A sender that has gone went with the session.
                Some(end) => drop(end.wait_for(|end| *end).await),
                None => std::future::pending().await,
            }
        };
        let follows = async {
            while changed.changed().await.is_ok() {
                if let Some(view) = &view
                    && !view.refresh().await
                {
                    return;
                }
            }
            std::future::pending().await
        };
        let aborts = async {
            let Some(view) = &view else { return std::future::pending().await };
            loop {
                view.abort.notified().await;
                inbox.aborts.set(true);
                inbox.backlog.wake();
            }
        };
        tokio::select! {
            () = replaced => inbox.end("its initiator has logged in anew"),
            () = follows => inbox.end(NOT_ADMITTED),
            () = aborts => {}
            () = idle(&inbox, discovery_idle) => inbox.end("an idle discovery session"),
            () = listen(&inbox) => inbox.end("nothing was heard of the initiator"),
        }
    };
    let watched = async move {
        if contained("the watch over a session", task).await.is_err() {
            inbox_of_panic.end("watching over it failed");
        }
    };
    Watching(tokio::task::spawn_local(watched).abort_handle())
}

/// Ends when nothing was heard for `most`; never, where that is `None`.
async fn idle(inbox: &Inbox, most: Option<Duration>) {
    let Some(most) = most else { return std::future::pending().await };
    loop {
        let quiet = inbox.last_heard.get().elapsed();
        if quiet >= most {
            return;
        }
        tokio::time::sleep(most - quiet).await;
    }
}

/// Asks an initiator that is quiet whether it is there. Ends when it is not.
async fn listen(inbox: &Inbox) {
    let mut asked = false;
    loop {
        let quiet = inbox.last_heard.get().elapsed();
        if quiet < QUIET {
            asked = false;
            tokio::time::sleep(QUIET - quiet).await;
        } else if !asked {
            asked = true;
            inbox.ping.set(true);
            inbox.backlog.wake();
            tokio::time::sleep(QUIET).await;
        } else {
            return;
        }
    }
}
