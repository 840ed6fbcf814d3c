//! What several tests need.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_store::rados::{Cluster, Contents, Entries, Operation, SimulatedClient, Step, Wanted, WhenFull};
use forebay_store::{BoxFuture, Capacity, IoBuf, StoreError};

/// In the simulated cluster without time, everything is answered at once.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}

/// A client of the cluster whose changes are made by a function. Everything else is passed on.
pub(crate) struct Intercepted<F> {
    pub client: Arc<SimulatedClient>,
    pub operate: F,
}

impl<F> Cluster for Intercepted<F>
where
    F: Fn(&SimulatedClient, &str, Vec<Step>, WhenFull) -> Operation<()> + Send + Sync + 'static,
{
    fn beside(&self, namespace: &str) -> Result<Arc<dyn Cluster>, StoreError> {
        self.client.beside(namespace)
    }
    fn operate(&self, object: &str, steps: Vec<Step>, full: WhenFull) -> Operation<()> {
        (self.operate)(&self.client, object, steps, full)
    }
    fn read(&self, object: &str, offset: u64, len: usize) -> Operation<IoBuf> {
        self.client.read(object, offset, len)
    }
    fn contents(&self, object: &str, len: usize) -> Operation<Contents> {
        self.client.contents(object, len)
    }
    fn entries(&self, object: &str, wanted: Wanted) -> Operation<Entries> {
        self.client.entries(object, wanted)
    }
    fn len_of(&self, object: &str) -> Operation<u64> {
        self.client.len_of(object)
    }
    fn list(&self) -> Operation<Vec<String>> {
        self.client.list()
    }
    fn capacity(&self) -> Operation<Capacity> {
        self.client.capacity()
    }
    fn now(&self) -> Duration {
        self.client.now()
    }
    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        self.client.sleep(time)
    }
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.client.spawn(task);
    }
    fn finish(&self, task: BoxFuture<'static, ()>, time: Duration) {
        self.client.finish(task, time);
    }
}
