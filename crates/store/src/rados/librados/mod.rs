//! A Ceph cluster behind librados, which is loaded when the first pool in RADOS is opened.
//!
//! **In flight.** The call of an operation begins the operation: it passes the queue, whose bounds are below
//! the bounds of the library, and is submitted with a completion. The completion owns all memory into which
//! the library writes, so the future of an operation can be dropped at any time. An operation has no time
//! limit, because an operation that has failed by a time limit could still take effect. While the cluster
//! does not answer, operations wait.
//!
//! **Order.** RADOS executes operations on an object in the order of submission, with one exception: a plain
//! read can overtake a write that waits for the recovery of its object. [`Cluster::contents`] and
//! [`Cluster::len_of`] request this order from RADOS; [`Cluster::read`] does not, because reads that request
//! the order exclude each other on an object.
//!
//! **Monitors** are needed to connect, to learn of changes in the cluster, and to query free space. Commands
//! to monitors have a time limit.
//!
//! **End.** When a [`LibradosCluster`] is dropped, a separate thread waits for the operations that have
//! begun, and closes the connection. With the last connection of a client, the tasks of the client are
//! dropped and the client is shut down. During an outage this thread waits until the cluster answers or the
//! process ends, so the drop itself waits for this thread for a short time only.

mod api;
mod capacity;
mod connect;
mod operations;
mod queue;
mod read_op;
mod runtime;
mod ticks;
mod write_op;

use std::ffi::{CStr, c_char};
use std::mem::ManuallyDrop;
use std::net::{IpAddr, SocketAddr};
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

use self::api::{Api, Raw};
use self::capacity::Space;
use self::operations::Connection;
use self::runtime::{End, Runtime};
use super::{
    Answer, Cluster, Contents, Entries, Errno, Operation, RadosAddress, RadosOptions, Step, Wanted, WhenFull,
};
use crate::{BoxFuture, Capacity, IoBuf, StoreError};

/// The name that stands for all namespaces. No pool has this name.
const ALL_NAMESPACES: &str = "*";
/// Maximum time for which dropping a cluster waits for operations in flight.
const CLOSE_WAIT: Duration = Duration::from_secs(3);

/// A namespace of a pool in a Ceph cluster. Several namespaces can share one client of the cluster.
pub struct LibradosCluster {
    connection: Arc<Connection>,
    pool: String,
    space: Arc<Space>,
    /// `None` only while it is dropped.
    client: Option<Arc<Client>>,
}

/// A client of the cluster, with the thread on which its tasks run.
struct Client {
    api: &'static Api,
    raw: Raw,
    runtime: Runtime,
    end: Option<End>,
}

// SAFETY: librados locks its handles itself; its header allows their use by any number of threads.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end.wait();
        }
        // SAFETY: the connections of this client are closed, and nothing uses the handle any more.
        unsafe { (self.api.shutdown)(self.raw) };
    }
}

impl LibradosCluster {
    /// Connects to a cluster. Blocks, for about 10 s if no monitor answers.
    ///
    /// # Errors
    /// If librados is not installed, if the cluster does not answer or accept the user, or if the Ceph pool
    /// does not exist. The error's text states what to do.
    pub fn connect(
        address: &RadosAddress,
        options: &RadosOptions,
    ) -> Result<Arc<LibradosCluster>, StoreError> {
        let api = Api::get()?;
        let (runtime, end) = Runtime::start().map_err(|e| StoreError::Io {
            what: "a thread for RADOS cannot be started".to_owned(),
            reason: e.to_string(),
            errno: e.raw_os_error().unwrap_or(0),
        })?;
        let (raw, io) = connect::connect(api, address, options)?;
        let client = Client { api, raw, runtime, end: Some(end) };
        Ok(LibradosCluster::of_client(Arc::new(client), io, &address.pool))
    }

    /// The address of this host from which the client reaches the Ceph cluster; `None` if Ceph does not
    /// report it.
    pub fn own_address(&self) -> Option<IpAddr> {
        let client = self.client();
        let mut text: *mut c_char = std::ptr::null_mut();
        // SAFETY: the handle is open, and the function writes a pointer to a text that it allocated, or none.
        let result = unsafe { (client.api.getaddrs)(client.raw, &raw mut text) };
        if result < 0 || text.is_null() {
            return None;
        }
        // SAFETY: on success the text ends with a zero byte, and is freed by the function for that.
        let address = own_address_in(&unsafe { CStr::from_ptr(text) }.to_string_lossy());
        // SAFETY: as above; nothing uses the text any more.
        unsafe { (client.api.buffer_free)(text) };
        address
    }

    /// Another namespace of the same pool, reached by the same client of the cluster.
    ///
    /// # Errors
    /// If the client cannot open it, such as after a loss of its right to the pool.
    pub fn namespace(&self, name: &str) -> Result<Arc<LibradosCluster>, StoreError> {
        let client = self.client().clone();
        let io = connect::open_pool(client.api, client.raw, &self.pool, name)?;
        Ok(LibradosCluster::of_client(client, io, &self.pool))
    }

    fn of_client(client: Arc<Client>, io: Raw, pool: &str) -> Arc<LibradosCluster> {
        Arc::new(LibradosCluster {
            connection: Arc::new(Connection::new(client.api, client.raw, io)),
            pool: pool.to_owned(),
            space: Arc::default(),
            client: Some(client),
        })
    }

    fn client(&self) -> &Arc<Client> {
        self.client.as_ref().expect("only the drop takes the client")
    }

    fn runtime(&self) -> &Runtime {
        &self.client().runtime
    }
}

impl Drop for LibradosCluster {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else { return };
        let connection = self.connection.clone();
        connection.closing.store(true, Ordering::Relaxed);
        let is_this_thread = client.runtime.is_this_thread();
        // If the thread cannot be started, the client stays: shutting it down needs that nothing is in
        // flight.
        let client = ManuallyDrop::new(client);
        let (done, closed) = mpsc::channel::<()>();
        let close = move || {
            connection.queue.wait_until_idle();
            connection.close();
            drop(ManuallyDrop::into_inner(client));
            drop(done);
        };
        if let Err(e) = thread::Builder::new().name("rados-close".into()).spawn(close) {
            tracing::warn!("the connection to Ceph stays open: a thread cannot be started: {e}");
            return;
        }
        // A task drops it: the thread waits for the end of this task.
        if is_this_thread {
            return;
        }
        if closed.recv_timeout(CLOSE_WAIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!("operations on the Ceph pool {} are still in flight", self.pool);
        }
    }
}

impl Cluster for LibradosCluster {
    fn beside(&self, namespace: &str) -> Result<Arc<dyn Cluster>, StoreError> {
        Ok(self.namespace(namespace)?)
    }

    fn operate(&self, object: &str, steps: Vec<Step>, full: WhenFull) -> Operation<()> {
        self.connection.operate(object, steps, full)
    }

    fn read(&self, object: &str, offset: u64, len: usize) -> Operation<IoBuf> {
        self.connection.read(object, offset, len)
    }

    fn contents(&self, object: &str, len: usize) -> Operation<Contents> {
        self.connection.contents(object, len)
    }

    fn entries(&self, object: &str, wanted: Wanted) -> Operation<Entries> {
        self.connection.entries(object, wanted)
    }

    fn len_of(&self, object: &str) -> Operation<u64> {
        self.connection.len_of(object)
    }

    fn list(&self) -> Operation<Vec<String>> {
        let (answer, answered) = oneshot::channel();
        let connection = self.connection.clone();
        let names = move || Ok(list(&connection)?.into_iter().map(|(_, name)| name).collect());
        self.runtime().call(&self.connection, move || drop(answer.send(names())));
        Operation::awaited(answered)
    }

    fn capacity(&self) -> Operation<Capacity> {
        self.space.get(&self.connection, &self.pool, self.runtime())
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        self.runtime().sleep(time)
    }

    fn now(&self) -> Duration {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` can be written. The call cannot fail: Linux has this clock.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
    }

    fn ticks(&self) -> Option<u64> {
        ticks::ticks()
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.runtime().spawn(task);
    }

    fn finish(&self, task: BoxFuture<'static, ()>, time: Duration) {
        let (done, ended) = mpsc::channel();
        self.runtime().spawn(Box::pin(async move {
            task.await;
            let _ = done.send(());
        }));
        if !self.runtime().is_this_thread() {
            let _ = ended.recv_timeout(time);
        }
    }
}

/// The namespaces of a Ceph pool that have an object of this name. Blocks.
///
/// # Errors
/// As [`LibradosCluster::connect`].
pub(super) fn namespaces_with(
    pool: &str,
    options: &RadosOptions,
    object: &str,
) -> Result<Vec<String>, StoreError> {
    let address = RadosAddress { pool: pool.to_owned(), name: ALL_NAMESPACES.to_owned() };
    let cluster = LibradosCluster::connect(&address, options)?;
    let found = list(&cluster.connection).map_err(|e| super::store_error("listing the pools", e))?;
    Ok(found.into_iter().filter(|(_, name)| name == object).map(|(namespace, _)| namespace).collect())
}

/// The first IP address in the addresses of a client, such as `10.0.0.1:0/3710147553` or
/// `v2:[fd00::1]:0/1,v1:...`.
fn own_address_in(text: &str) -> Option<IpAddr> {
    // A list of several addresses has brackets, and so has an IPv6 address.
    let list = text.strip_prefix("[v").and_then(|_| text.strip_prefix('[')?.strip_suffix(']'));
    let first = list.unwrap_or(text).split(',').next()?.split('/').next()?;
    let first = first.strip_prefix("v2:").or_else(|| first.strip_prefix("v1:")).unwrap_or(first);
    let address: Option<SocketAddr> = first.parse().ok();
    address.map(|address| address.ip()).filter(|ip| !ip.is_unspecified())
}

/// Lists the namespaces and names of all objects. Blocks.
fn list(connection: &Connection) -> Answer<Vec<(String, String)>> {
    let api = connection.api;
    let check = |result: i32| if result < 0 { Err(Errno(result.saturating_neg())) } else { Ok(()) };
    let mut listing = null_mut();
    // SAFETY: the pool's handle is valid.
    check(unsafe { (api.nobjects_list_open)(connection.io, &raw mut listing) })?;
    let mut names = Vec::new();
    let text = |bytes: *const c_char, len: usize| match bytes.is_null() {
        true => String::new(),
        // SAFETY: the text has this length, and is valid until the next call for the listing.
        false => String::from_utf8_lossy(unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len) })
            .into_owned(),
    };
    let mut next = || {
        let (mut name, mut len): (*const c_char, usize) = (null(), 0);
        let (mut space, mut space_len): (*const c_char, usize) = (null(), 0);
        let (n, l, s, sl) = (&raw mut name, &raw mut len, &raw mut space, &raw mut space_len);
        // SAFETY: the listing is open. The locator is optional.
        check(unsafe { (api.nobjects_list_next2)(listing, n, null_mut(), s, l, null_mut(), sl) })?;
        names.push((text(space, space_len), text(name, len)));
        Ok(())
    };
    let end = loop {
        if let Err(e) = next() {
            break e;
        }
    };
    // SAFETY: it is open, and not used any more.
    unsafe { (api.nobjects_list_close)(listing) };
    match end {
        Errno(libc::ENOENT) => Ok(names),
        e => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::own_address_in;

    #[test]
    fn the_own_address_is_found_in_what_ceph_returns() {
        let find = |text: &str| own_address_in(text).map(|ip| ip.to_string());
        assert_eq!(find("10.0.0.1:0/3710147553").as_deref(), Some("10.0.0.1"));
        assert_eq!(find("v1:10.0.0.1:0/3710147553").as_deref(), Some("10.0.0.1"));
        assert_eq!(find("[fd00::1]:0/1").as_deref(), Some("fd00::1"));
        assert_eq!(find("[v2:10.0.0.2:0/7,v1:10.0.0.2:0/7]").as_deref(), Some("10.0.0.2"));
        for none in ["", "-", ":/0", "0.0.0.0:0/5"] {
            assert_eq!(find(none), None, "{none}");
        }
    }
}
