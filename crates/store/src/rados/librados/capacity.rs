//! Free space of the pool. The engine requests the free space after each commit, but all clients of the
//! cluster share the monitors. Therefore an answer is kept for a second, and a helper thread makes one query
//! at a time.
//!
//! While no monitor answers, the last answer is used: operations on objects do not need monitors, and must
//! not wait for them.

use std::ffi::{CStr, c_char};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::oneshot;

use super::api::ClusterStat;
use super::operations::Connection;
use super::runtime::Runtime;
use crate::Capacity;
use crate::rados::{Answer, Errno, Operation};

/// Maximum age of an answer that is used without a query.
const FRESH: Duration = Duration::from_secs(1);
/// Maximum age of an answer that is used while a query runs.
const USABLE: Duration = Duration::from_secs(5);
/// How long a caller waits for a query if there is an older answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The query. The quota is only in the details.
const QUERY: &CStr = cr#"{"prefix":"df","detail":"detail","format":"json"}"#;
/// Assumed number of copies of data in a pool, if it is not known.
const USUAL_COPIES: u64 = 3;

type Waiter = oneshot::Sender<Answer<Capacity>>;

/// The last answer about the space of the pool.
#[derive(Default)]
pub(super) struct Space(Mutex<State>);

#[derive(Default)]
struct State {
    last: Option<(Instant, Capacity)>,
    query_since: Option<Instant>,
    waiters: Vec<Waiter>,
}

impl State {
    fn query_is_overdue(&self) -> bool {
        self.query_since.is_some_and(|since| since.elapsed() > PATIENCE)
    }
}

impl Space {
    /// The capacity of the pool; see [`super::super::Cluster::capacity`].
    pub(super) fn get(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        pool: &str,
        runtime: &Runtime,
    ) -> Operation<Capacity> {
        let mut state = self.0.lock();
        let age = state.last.map_or(Duration::MAX, |(at, _)| at.elapsed());
        if age > FRESH && state.query_since.is_none() {
            state.query_since = Some(Instant::now());
            self.start_query(connection, pool, runtime);
        }
        let Some((_, last)) = state.last else {
            let (answer, answered) = oneshot::channel();
            state.waiters.push(answer);
            return Operation::awaited(answered);
        };
        if age <= USABLE || state.query_is_overdue() {
            return Operation::ended(Ok(last));
        }
        let (answer, answered) = oneshot::channel();
        state.waiters.push(answer);
        let (mut answered, mut patience) = (Operation::awaited(answered), runtime.sleep(PATIENCE));
        Operation::of(poll_fn(move |cx| match Pin::new(&mut answered).poll(cx) {
            Poll::Ready(answer) => Poll::Ready(answer.or(Ok(last))),
            Poll::Pending => patience.as_mut().poll(cx).map(|()| Ok(last)),
        }))
    }

    fn start_query(self: &Arc<Self>, connection: &Arc<Connection>, pool: &str, runtime: &Runtime) {
        let (this, connection, pool) = (self.clone(), connection.clone(), pool.to_owned());
        runtime.call(&connection.clone(), move || this.query(&connection, &pool));
    }

    /// Queries the capacity until monitors answer.
    fn query(&self, connection: &Connection, pool: &str) {
        let answer = loop {
            let answer = query(connection, pool);
            let is_outage = answer == Err(Errno(libc::ETIMEDOUT));
            if !is_outage || connection.closing.load(Ordering::Relaxed) {
                break answer;
            }
        };
        let mut state = self.0.lock();
        state.query_since = None;
        if let Ok(capacity) = answer {
            state.last = Some((Instant::now(), capacity));
        }
        for waiter in state.waiters.drain(..) {
            let _ = waiter.send(answer);
        }
    }
}

fn query(connection: &Connection, pool: &str) -> Answer<Capacity> {
    match command(connection, QUERY) {
        Err(e @ Errno(libc::ETIMEDOUT)) => return Err(e),
        Ok(text) if let Some(capacity) = parse(&text, pool) => return Ok(capacity),
        // The user may not run the command, or the cluster has no statistics of the pool.
        Ok(_) | Err(_) => {}
    }
    let mut stat = ClusterStat::default();
    // SAFETY: the cluster is connected.
    let result = unsafe { (connection.api.cluster_stat)(connection.cluster, &raw mut stat) };
    match result {
        0.. => Ok(Capacity::new(
            stat.kb.saturating_mul(1024) / USUAL_COPIES,
            stat.kb_avail.saturating_mul(1024) / USUAL_COPIES,
        )),
        _ => Err(Errno(result.saturating_neg())),
    }
}

/// The output of a command to the monitors.
fn command(connection: &Connection, text: &CStr) -> Answer<Vec<u8>> {
    let api = connection.api;
    let commands = [text.as_ptr()];
    let (mut output, mut output_len) = (null_mut::<c_char>(), 0);
    let (mut status, mut status_len) = (null_mut::<c_char>(), 0);
    // SAFETY: the cluster is connected, and the command is valid during the call. The library sets the
    // buffers.
    let result = unsafe {
        (api.mon_command)(
            connection.cluster,
            commands.as_ptr(),
            commands.len(),
            null(),
            0,
            &raw mut output,
            &raw mut output_len,
            &raw mut status,
            &raw mut status_len,
        )
    };
    let mut bytes = Vec::new();
    if !output.is_null() {
        // SAFETY: the buffer has this length.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(output.cast::<u8>(), output_len) });
    }
    for buffer in [output, status].into_iter().filter(|b| !b.is_null()) {
        // SAFETY: a buffer of the library, released once.
        unsafe { (api.buffer_free)(buffer) };
    }
    match result {
        0.. => Ok(bytes),
        _ => Err(Errno(result.saturating_neg())),
    }
}

/// The space of a pool in the answer to [`QUERY`]. Both figures do not include the copies of the data.
fn parse(text: &[u8], pool: &str) -> Option<Capacity> {
    let answer: Value = serde_json::from_slice(text).ok()?;
    let pools = answer.get("pools")?.as_array()?;
    let stats = pools.iter().find(|p| p.get("name").and_then(Value::as_str) == Some(pool))?.get("stats")?;
    let figure = |name: &str| stats.get(name).and_then(Value::as_u64);
    let (stored, available) = (figure("stored")?, figure("max_avail")?);
    let quota = figure("quota_bytes").filter(|q| *q > 0).unwrap_or(u64::MAX);
    let free = available.min(quota.saturating_sub(stored));
    Some(Capacity::new(stored.saturating_add(free), free))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(quota: u64) -> Option<Capacity> {
        let stats = format!(r#"{{"stored":300,"max_avail":1000,"quota_bytes":{quota},"kb_used":5}}"#);
        let text = format!(
            r#"{{"stats":{{}},"pools":[{{"name":"a","id":1,"stats":{{}}}},{{"name":"b","stats":{stats}}}]}}"#
        );
        assert_eq!(parse(text.as_bytes(), "a"), None, "a pool without statistics");
        assert_eq!(parse(text.as_bytes(), "c"), None, "a pool that does not exist");
        parse(text.as_bytes(), "b")
    }

    #[test]
    fn free_space_is_bounded_by_the_quota() {
        let space = |total, free| Some(Capacity::new(total, free));
        assert_eq!([parsed(0), parsed(5000)], [space(1300, 1000), space(1300, 1000)]);
        assert_eq!([parsed(500), parsed(200)], [space(500, 200), space(300, 0)]);
    }

    #[test]
    fn other_answers_are_refused() {
        for text in ["", "[]", "{}", r#"{"pools":{}}"#, r#"{"pools":[{"name":"b","stats":{"stored":-1}}]}"#] {
            assert_eq!(parse(text.as_bytes(), "b"), None, "{text}");
        }
    }
}
