//! Operations on objects: how they are built, submitted and completed.

use std::ffi::{CStr, CString, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::oneshot;

use super::api::{self, Api, Raw};
use super::queue::{Limits, Queue};
use super::read_op::{Page, ReadOp};
use super::write_op::{WriteOp, cost_of};
use crate::IoBuf;
use crate::rados::header::HEADER;
use crate::rados::{Answer, Contents, Entries, Errno, Operation, Step, Wanted, WhenFull};

/// Limits of operations in flight. The limits of the library are higher, so that submitting never blocks.
const LIMITS: Limits = Limits { operations: 1_000, bytes: 96 << 20 };
/// Bytes that an operation counts in addition to its data.
const OVERHEAD: usize = 512;

/// A connection that operations in flight and helper threads use.
pub(super) struct Connection {
    pub(super) api: &'static Api,
    /// The handle of the client, which [`super::Client`] shuts down after the last connection of it is
    /// closed.
    pub(super) cluster: Raw,
    pub(super) io: Raw,
    pub(super) queue: Queue,
    /// The connection's owner was dropped: no new operation is begun.
    pub(super) closing: AtomicBool,
}

// SAFETY: librados locks its handles of clusters and of pools itself; the header allows their use by any
// number of threads.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

/// Receives the result of an operation: 0 or more, or a negative errno.
type Finish = Box<dyn FnOnce(c_int) + Send>;
/// Passes an operation and its completion to the library.
pub(super) type Submit = Box<dyn FnOnce(&Connection, Raw) -> c_int + Send>;

/// What a completion owns.
struct InFlight {
    connection: Arc<Connection>,
    cost: usize,
    finish: Finish,
}

impl InFlight {
    fn end(self, result: c_int) {
        // A panic must not unwind into the library.
        if catch_unwind(AssertUnwindSafe(|| (self.finish)(result))).is_err() {
            tracing::error!("the handler of a completed RADOS operation panicked");
        }
        self.connection.queue.ended(self.cost);
    }
}

/// Called by a thread of the library.
unsafe extern "C" fn completed(completion: Raw, argument: *mut c_void) {
    // SAFETY: `start` passed this box, and the library calls once for each completion.
    let in_flight = unsafe { Box::from_raw(argument.cast::<InFlight>()) };
    let api = in_flight.connection.api;
    // SAFETY: the completion is valid until it is released here.
    let result = unsafe { (api.aio_get_return_value)(completion) };
    // SAFETY: as above; the library holds another reference during the callback.
    unsafe { (api.aio_release)(completion) };
    in_flight.end(result);
}

impl Connection {
    pub(super) fn new(api: &'static Api, cluster: Raw, io: Raw) -> Connection {
        Connection { api, cluster, io, queue: Queue::new(LIMITS), closing: AtomicBool::new(false) }
    }

    /// Adds an operation on an object to the queue. An operation on the header is submitted at once: a
    /// heartbeat must not wait for data.
    fn begin(self: &Arc<Self>, object: &CStr, cost: usize, submit: Submit, finish: Finish) {
        let in_flight = InFlight { connection: self.clone(), cost, finish };
        let job = Box::new(move || start(in_flight, submit));
        match object.to_bytes() == HEADER.as_bytes() {
            true => self.queue.add_urgent(cost, job),
            false => self.queue.add(cost, job),
        }
    }

    /// Closes the connection. Nothing may be in flight, and no call may follow.
    pub(super) fn close(&self) {
        // SAFETY: no operation or call uses the handle, and none will.
        unsafe { (self.api.ioctx_destroy)(self.io) };
    }

    /// See [`super::super::Cluster::operate`].
    pub(super) fn operate(self: &Arc<Self>, object: &str, steps: Vec<Step>, full: WhenFull) -> Operation<()> {
        let cost = OVERHEAD + steps.iter().map(cost_of).sum::<usize>();
        let built = c_string(object).and_then(|o| Ok((o, WriteOp::new(self.api, steps)?)));
        let (object, op) = match built {
            Ok(built) => built,
            Err(e) => return failed(e),
        };
        let flags = match full {
            WhenFull::Fail => api::FULL_TRY,
            WhenFull::Proceed => api::FULL_FORCE,
        };
        let name = object.clone();
        self.answered(&name, cost, op.submit(object, flags), |result| result.map(|_| ()))
    }

    /// See [`super::super::Cluster::read`].
    pub fn read(self: &Arc<Self>, object: &str, offset: u64, len: usize) -> Operation<IoBuf> {
        if len == 0 {
            // For an OSD, a read of 0 bytes is a read of the whole object.
            let exists = self.len_of(object);
            return Operation::of(async { exists.await.map(|_| IoBuf::with_capacity(0)) });
        }
        let object = match c_string(object) {
            Ok(object) => object,
            Err(e) => return failed(e),
        };
        let name = object.clone();
        let mut buffer = IoBuf::with_capacity(len);
        let target = Target(buffer.as_mut_ptr());
        let submit: Submit = Box::new(move |c, completion| {
            let target = &target;
            // SAFETY: the completion owns the buffer, whose memory stays in place until it is called.
            unsafe { (c.api.aio_read)(c.io, object.as_ptr(), completion, target.0.cast(), len, offset) }
        });
        self.answered(&name, OVERHEAD + len, submit, move |result| {
            buffer.set_len(result?.min(len));
            Ok(buffer)
        })
    }

    /// See [`super::super::Cluster::len_of`].
    pub(super) fn len_of(self: &Arc<Self>, object: &str) -> Operation<u64> {
        let object = match c_string(object) {
            Ok(object) => object,
            Err(e) => return failed(e),
        };
        let (op, output) = (ReadOp::new(self.api), Output::new(0u64));
        // SAFETY: the operation is valid, and the completion owns the output.
        unsafe { (self.api.read_op_stat)(op.raw, output.as_ptr(), null_mut(), null_mut()) };
        let name = object.clone();
        self.answered(&name, OVERHEAD, op.submit(object), move |result| result.map(|_| *output.into_box()))
    }

    /// See [`super::super::Cluster::contents`].
    pub(super) fn contents(self: &Arc<Self>, object: &str, len: usize) -> Operation<Contents> {
        let object = match c_string(object) {
            Ok(object) => object,
            Err(e) => return failed(e),
        };
        let api = self.api;
        let request = move |known: &Contents| {
            let first = known.keys.is_empty().then_some(len);
            let after = known.keys.last().map_or(Ok(CString::default()), |last| c_string(last))?;
            Ok((Page::request(api, &after, first), first.unwrap_or(0)))
        };
        self.all_pages(object, request, Page::take)
    }

    /// See [`super::super::Cluster::entries`].
    pub(super) fn entries(self: &Arc<Self>, object: &str, wanted: Wanted) -> Operation<Entries> {
        let object = match c_string(object) {
            Ok(object) => object,
            Err(e) => return failed(e),
        };
        let api = self.api;
        let request = move |known: &Entries| {
            let after = known.entries.last().map(|(key, _)| key.as_str());
            Ok((Page::request_entries(api, &wanted, after)?, 0))
        };
        self.all_pages(object, request, Page::take_entries)
    }

    /// Reads an object's map in pages. `request` makes the request for the page after what is known, and
    /// returns the bytes that the request reads in addition; `take` adds a page to what is known.
    fn all_pages<T: Default + Send + 'static>(
        self: &Arc<Self>,
        object: CString,
        request: impl Fn(&T) -> Answer<((ReadOp, Output<Page>), usize)> + Send + 'static,
        take: fn(&mut Page, T) -> Answer<(T, bool)>,
    ) -> Operation<T> {
        let (answer, answered) = oneshot::channel();
        self.page(object, T::default(), request, take, answer);
        Operation::awaited(answered)
    }

    /// Reads the page after what is known, and then the next page.
    fn page<T: Send + 'static>(
        self: &Arc<Self>,
        object: CString,
        known: T,
        request: impl Fn(&T) -> Answer<((ReadOp, Output<Page>), usize)> + Send + 'static,
        take: fn(&mut Page, T) -> Answer<(T, bool)>,
        answer: oneshot::Sender<Answer<T>>,
    ) {
        let ((op, page), more) = match request(&known) {
            Ok(requested) => requested,
            Err(e) => return drop(answer.send(Err(e))),
        };
        let this = self.clone();
        let (name, next) = (object.clone(), object.clone());
        let finish: Finish =
            Box::new(move |result| match as_answer(result).and_then(|_| take(&mut page.into_box(), known)) {
                Ok((known, true)) if !answer.is_closed() => this.page(next, known, request, take, answer),
                Ok((known, _)) => drop(answer.send(Ok(known))),
                Err(e) => drop(answer.send(Err(e))),
            });
        self.begin(&name, OVERHEAD + more + (64 << 10), op.submit(object), finish);
    }

    /// Begins an operation whose result is converted by `convert` when it has ended, also if the answer is
    /// not awaited.
    fn answered<T: Send + 'static>(
        self: &Arc<Self>,
        object: &CStr,
        cost: usize,
        submit: Submit,
        convert: impl FnOnce(Answer<usize>) -> Answer<T> + Send + 'static,
    ) -> Operation<T> {
        let (answer, answered) = oneshot::channel();
        self.begin(
            object,
            cost,
            submit,
            Box::new(move |result| drop(answer.send(convert(as_answer(result))))),
        );
        Operation::awaited(answered)
    }
}

/// Submits an operation with a new completion.
fn start(in_flight: InFlight, submit: Submit) {
    let connection = in_flight.connection.clone();
    let api = connection.api;
    let argument = Box::into_raw(Box::new(in_flight));
    let mut completion = null_mut();
    // SAFETY: the argument stays valid until the callback, which is the only other user of it.
    let mut result = unsafe { (api.aio_create_completion2)(argument.cast(), completed, &raw mut completion) };
    if result >= 0 {
        result = submit(&connection, completion);
        if result >= 0 {
            return;
        }
        // SAFETY: the library has refused the operation, so it neither calls nor uses the completion.
        unsafe { (api.aio_release)(completion) };
    }
    // SAFETY: as above: the callback is not called.
    let in_flight = unsafe { Box::from_raw(argument) };
    in_flight.end(result);
}

/// Memory into which the library reads.
struct Target(*mut u8);

// SAFETY: it is passed to the library once, while the completion owns the memory.
unsafe impl Send for Target {}

/// A value that the library sets before it calls the completion. It is owned through a raw pointer, because
/// its owner is moved while the library has its address.
pub(super) struct Output<T>(NonNull<T>);

// SAFETY: it is the only owner, like a box, and the library writes only before the completion.
unsafe impl<T> Send for Output<T> {}

impl<T> Output<T> {
    pub(super) fn new(value: T) -> Output<T> {
        // SAFETY: a box is not null.
        Output(unsafe { NonNull::new_unchecked(Box::into_raw(Box::new(value))) })
    }
    pub(super) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
    /// The value, when the library does not write any more.
    fn into_box(self) -> Box<T> {
        // SAFETY: it is the box of `new`, and the drop that would release it as well is prevented.
        unsafe { Box::from_raw(std::mem::ManuallyDrop::new(self).0.as_ptr()) }
    }
}

impl<T> Drop for Output<T> {
    fn drop(&mut self) {
        // SAFETY: it is the box of `new`, and this is its owner.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

pub(super) fn as_answer(result: c_int) -> Answer<usize> {
    usize::try_from(result).map_err(|_| Errno(result.saturating_neg()))
}

fn failed<T>(e: Errno) -> Operation<T> {
    Operation::ended(Err(e))
}

pub(super) fn c_string(text: &str) -> Answer<CString> {
    CString::new(text).map_err(|_| Errno(libc::EINVAL))
}
