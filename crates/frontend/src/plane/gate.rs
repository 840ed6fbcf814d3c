//! Whether replies may leave the server.
//!
//! A server whose pool another server may have taken over must not answer from its caches: a client may have
//! changed the data through the other server. So each reply is sent only while the server is certain to own
//! the pool. A check immediately before each write to a socket suffices: if the server is paused between the
//! check and the write, the reply was correct at the time of the check.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

/// Interval at which a connection with replies checks whether the gate is open again.
const LOOK: Duration = Duration::from_millis(20);

/// Whether the server is certain to own the pool. A gate without a condition is always open.
#[derive(Clone, Default)]
pub struct Gate(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Gate {
    /// A gate that is open while `owns` returns true.
    pub fn new(owns: Arc<dyn Fn() -> bool + Send + Sync>) -> Gate {
        Gate(Some(owns))
    }

    /// Whether the server is certain to own the pool at this moment.
    pub fn is_open(&self) -> bool {
        self.0.as_ref().is_none_or(|owns| owns())
    }
}

/// The wait of one connection for the gate.
#[derive(Default)]
pub(super) struct GateWait(Option<Pin<Box<Sleep>>>);

impl GateWait {
    /// Whether replies were withheld when they were last to be sent.
    pub fn is_waiting(&self) -> bool {
        self.0.is_some()
    }

    /// Returns `Ready` while the gate is open.
    pub fn poll(&mut self, gate: &Gate, cx: &mut Context<'_>) -> Poll<()> {
        while !gate.is_open() {
            let rest = self.0.get_or_insert_with(|| Box::pin(sleep(LOOK)));
            ready!(rest.as_mut().poll(cx));
            self.0 = None;
        }
        self.0 = None;
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_waits_until_the_gate_opens() {
        let owns = Arc::new(AtomicBool::new(false));
        let gate = Gate::new({
            let owns = owns.clone();
            Arc::new(move || owns.load(SeqCst))
        });
        let mut wait = GateWait::default();
        let passed = async { poll_fn(|cx| wait.poll(&gate, cx)).await };
        let opens = async {
            sleep(Duration::from_secs(1)).await;
            owns.store(true, SeqCst);
            tokio::time::Instant::now()
        };
        let begun = tokio::time::Instant::now();
        let ((), opened) = tokio::join!(passed, opens);
        assert!(begun.elapsed() >= Duration::from_secs(1) && opened.elapsed() <= LOOK);
        assert!(Gate::default().is_open());
    }
}
