//! Panics in one connection do not affect the others on the same thread.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;

use super::handover::Phase;
use super::pace::Pace;
use super::*;

/// Echoes each byte; panics in the middle of a reply to `!`, and in a request for `?`.
struct Echo(Rc<Backlog>);

impl Protocol for Echo {
    type Error = std::io::Error;

    fn serve(&mut self, input: &[u8], output: &mut Output) -> std::io::Result<(usize, Stop)> {
        for byte in input {
            output.push(&[*byte]);
            assert_ne!(*byte, b'!', "expected by the test");
            if *byte == b'?' {
                let ticket = self.0.enter(1);
                spawn_request(&self.0, async move {
                    let _ticket = ticket;
                    tokio::task::yield_now().await;
                    panic!("expected by the test");
                });
            }
        }
        Ok((input.len(), Stop::Input { want: 1 }))
    }

    fn serve_long(&mut self, _: Vec<u8>, _: Charge, _: &mut Output) -> std::io::Result<Stop> {
        unreachable!("no message is long")
    }
}

impl PlainSocket for DuplexStream {
    fn plain(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

/// The state of one data-plane thread, without a data plane.
pub(crate) fn worker() -> Rc<Worker> {
    let (phase, followed) = watch::channel(Phase::Serving);
    // The phase never changes.
    std::mem::forget(phase);
    let memory = memory::Memory::new(MemoryLimits::default());
    let (total, latencies) = (Arc::new(AtomicUsize::new(0)), Arc::default());
    Worker::new(followed, total, Arc::default(), memory, Gate::default(), latencies, Pace::default())
}

fn connect(worker: &Rc<Worker>) -> (DuplexStream, tokio::task::JoinHandle<std::io::Result<()>>) {
    let (client, server) = duplex(1 << 16);
    let backlog = Backlog::new(worker);
    let received = Received::default();
    let served = Conversation::new(worker.clone(), server, None, received, backlog.clone(), Echo(backlog));
    (client, tokio::task::spawn_local(async { served.await.map(drop) }))
}

#[test]
fn a_panic_ends_its_connection_and_no_other() {
    let worker = worker();
    let done = worker.clone().block_on(async move {
        let (mut other, _served) = connect(&worker);
        for bomb in [b"abc!", b"abc?"] {
            let (mut client, served) = connect(&worker);
            let before = panics();
            client.write_all(bomb).await?;
            assert!(served.await.expect("the task does not panic").is_err());
            assert!(panics() > before);
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).await?;
            // Output that the panicking connection left in the thread's buffer is not sent to another client.
            other.write_all(b"hello").await?;
            let mut back = [0; 5];
            other.read_exact(&mut back).await?;
            assert_eq!(&back, b"hello");
        }
        Ok(())
    });
    done.unwrap();
}
