//! Making a lost connection again, in another thread: a server that starts may keep a client waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::device::{Device, Needs};
use crate::targets::Place;

/// Interval between attempts.
pub(super) const RETRY: Duration = Duration::from_millis(20);

/// A connection that is being made. The thread ends when this is dropped, at its next attempt.
pub(super) struct Connecting {
    result: Receiver<Box<dyn Device>>,
    stop: Arc<AtomicBool>,
    since: Instant,
}

/// The state of an attempt to connect.
pub(super) enum Attempt {
    Made(Box<dyn Device>),
    Waits,
    Failed,
}

impl Connecting {
    /// Starts to connect.
    pub fn start(place: &Place, needs: Needs) -> Connecting {
        let (sender, result) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (place, stopped) = (place.clone(), stop.clone());
        std::thread::spawn(move || {
            while !stopped.load(Relaxed) {
                if let Ok(device) = place.open(needs) {
                    // Without a receiver, the stream is over.
                    let _ = sender.send(device);
                    return;
                }
                sleep(RETRY);
            }
        });
        Connecting { result, stop, since: Instant::now() }
    }

    /// The connection, once it is made; it fails after `patience`.
    pub fn poll(&self, now: Instant, patience: Duration) -> Attempt {
        match self.result.try_recv() {
            Ok(device) => Attempt::Made(device),
            Err(TryRecvError::Empty) if now.saturating_duration_since(self.since) < patience => {
                Attempt::Waits
            }
            Err(_) => Attempt::Failed,
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}
