//! A front end of a protocol that exists only here. A new protocol needs a decoder and an encoder.
//!
//! A request has an operation, an offset and a length (1, 8 and 4 bytes, big-endian), and the data of a
//! write. A reply has the operation, 0 or 1 for an error, and the data of a read; replies come in any order.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_engine::{DiskHandle, Error, Pool, PoolConfig, Result, SyncMode};
use forebay_format::SegmentId;
use forebay_host::EngineThread;
use forebay_store::{Completion, IoBuf, MemoryStore, Store, StoreError};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::block::{Description, Io, Layout, Piece, Reply};
use super::{Executor, Job, Now, serve};
use crate::plane::tests::worker;
use crate::plane::{Backlog, Charge, Conversation, Front, Kind, Output, Protocol, Received, Stop, Worker};

const REQUEST: usize = 13;
const READ: u8 = 1;
const WRITE: u8 = 2;
const WRITE_FUA: u8 = 3;
const ZERO: u8 = 4;
const FLUSH: u8 = 5;
const EXTENTS: u8 = 6;
/// A read whose data is sent in pieces, as several replies.
const STREAM: u8 = 7;
/// A read whose client is gone when it begins.
const GONE: u8 = 8;

/// The size of the task that serves a job.
pub(crate) fn task_size(job: impl Job) -> usize {
    let worker = worker();
    let backlog = Backlog::new(&worker);
    let ticket = backlog.enter_charged(backlog.account().force(0, Kind::Work));
    let timed = worker.times().begin(Front::Nbd);
    size_of_val(&serve(job, ticket, timed, backlog))
}

/// The protocol of one connection.
struct Tiny {
    executor: Executor,
    disk: Arc<DiskHandle>,
}

impl Protocol for Tiny {
    type Error = std::io::Error;

    fn serve(&mut self, input: &[u8], output: &mut Output) -> std::io::Result<(usize, Stop)> {
        let mut used = 0;
        while let Some((head, rest)) = input[used..].split_first_chunk::<REQUEST>() {
            let (op, offset) = (head[0], u64::from_be_bytes(head[1..9].try_into().unwrap()));
            let len = u32::from_be_bytes(head[9..].try_into().unwrap());
            let data = if matches!(op, WRITE | WRITE_FUA) { len as usize } else { 0 };
            if rest.len() < data {
                return Ok((used, Stop::Input { want: REQUEST + data }));
            }
            self.request(op, offset, len, &rest[..data], output);
            used += REQUEST + data;
        }
        Ok((used, Stop::Input { want: REQUEST }))
    }

    fn serve_long(&mut self, message: Vec<u8>, _: Charge, output: &mut Output) -> std::io::Result<Stop> {
        Ok(self.serve(&message, output)?.1)
    }
}

impl Tiny {
    fn request(&self, op: u8, offset: u64, len: u32, data: &[u8], output: &mut Output) {
        let (executor, disk, fua) = (&self.executor, &self.disk, op == WRITE_FUA);
        let io = match op {
            READ => {
                let (header, out) = output.reserve(2, len as usize);
                if let Ok(true) = executor.read_now(disk, offset, out) {
                    header.copy_from_slice(&[READ, 0]);
                    return output.keep(2 + len as usize);
                }
                Io::Read { offset, len }
            }
            WRITE | WRITE_FUA => match executor.write_now(disk, offset, data, fua) {
                Ok(Now::Done) => return output.push(&[op, 0]),
                Ok(Now::InBuffers) => Io::EndWrite { fua },
                Ok(Now::Wait) | Err(_) => Io::Write { offset, message: data.to_vec(), start: 0, fua },
            },
            STREAM | GONE => Io::Read { offset, len },
            ZERO => Io::Zero { offset, len: len.into(), allocated: false, fua },
            EXTENTS => Io::Extents { offset, len: len.into(), max: 8, allocation: true, since: None },
            _ => Io::Flush,
        };
        executor.spawn_block(disk.clone(), io, TinyReply(op));
    }
}

/// The reply to one request.
struct TinyReply(u8);

impl Reply for TinyReply {
    async fn run<T>(&self, _: bool, request: impl Future<Output = T>) -> Option<T> {
        if self.0 == GONE { None } else { Some(request.await) }
    }

    fn layout(&self) -> Layout {
        Layout { header: 2, in_pieces: self.0 == STREAM }
    }

    fn data(&self, message: &mut Vec<u8>, _: Piece) {
        message[..2].copy_from_slice(&[self.0, 0]);
    }

    fn extents(&self, description: &Description, _: u64) -> Vec<u8> {
        vec![self.0, 0, description.extents.as_ref().map_or(0, |extents| extents.len() as u8)]
    }

    fn end(&self, done: Result<()>) -> Vec<u8> {
        vec![self.0, done.is_err().into()]
    }
}

fn connect(worker: &Rc<Worker>, disk: Arc<DiskHandle>) -> DuplexStream {
    let (client, server) = duplex(1 << 16);
    let backlog = Backlog::new(worker);
    let executor = Executor::new(Front::Nbd, backlog.clone(), worker.times().clone());
    let (tiny, received) = (Tiny { executor, disk }, Received::default());
    let served = Conversation::new(worker.clone(), server, None, received, backlog, tiny);
    tokio::task::spawn_local(async { served.await.map(drop) });
    client
}

/// Sends a request, and returns its reply, which has `expected` bytes.
async fn ask(client: &mut DuplexStream, op: u8, at: u64, len: u32, data: &[u8], expected: usize) -> Vec<u8> {
    let request = [&[op][..], &at.to_be_bytes(), &len.to_be_bytes(), data].concat();
    client.write_all(&request).await.unwrap();
    let mut reply = vec![0; expected];
    client.read_exact(&mut reply).await.unwrap();
    reply
}

/// A pool with the volume `v` of 8 MiB.
async fn open<S: Store>(engine: &EngineThread, store: &Arc<S>) -> Arc<Pool> {
    let config = PoolConfig { read_cache: 4 << 20, map_cache: 4 << 20, ..PoolConfig::default() };
    let pool = engine.run(Pool::open(store.clone(), engine.host(), config)).await.unwrap();
    match pool.create_volume("v", 8 << 20, SyncMode::Flush, 0).await {
        Ok(_) | Err(Error::Exists(_)) => pool,
        Err(e) => panic!("{e}"),
    }
}

/// The front end serves reads and writes at once, durable writes and reads of the store in tasks, and errors.
#[test]
fn a_front_end_of_a_hundred_lines_serves_a_disk() {
    let (engine, store) = (EngineThread::start(1).unwrap(), Arc::new(MemoryStore::new()));
    let worker = worker();
    let served = worker.clone().block_on(async move {
        const LEN: u32 = 600_000;
        let data: Vec<u8> = (0..LEN).map(|n| (n / 7) as u8).collect();
        let pool = open(&engine, &store).await;
        let mut client = connect(&worker, pool.attach("v").unwrap());
        assert_eq!(ask(&mut client, WRITE, 0, 4096, &[7; 4096], 2).await, [WRITE, 0]);
        assert_eq!(ask(&mut client, READ, 1024, 512, &[], 514).await[..3], [READ, 0, 7]);
        assert_eq!(ask(&mut client, WRITE_FUA, 4096, 512, &[8; 512], 2).await, [WRITE_FUA, 0]);
        assert_eq!(ask(&mut client, WRITE, 1 << 20, LEN, &data, 2).await, [WRITE, 0]);
        assert_eq!(ask(&mut client, ZERO, 1024, 512, &[], 2).await, [ZERO, 0]);
        assert_eq!(ask(&mut client, EXTENTS, 0, 4096, &[], 3).await, [EXTENTS, 0, 1]);
        assert_eq!(ask(&mut client, FLUSH, 0, 0, &[], 2).await, [FLUSH, 0]);
        assert_eq!(ask(&mut client, READ, 8 << 20, 512, &[], 2).await, [READ, 1], "beyond the end");
        drop(client);
        pool.close().await.unwrap();
        drop(pool);
        // The data is in the store only.
        let pool = open(&engine, &store).await;
        let mut client = connect(&worker, pool.attach("v").unwrap());
        assert_eq!(ask(&mut client, READ, 1 << 20, LEN, &[], 2 + LEN as usize).await[2..], data);
        assert_eq!(ask(&mut client, READ, 512, 1024, &[], 1026).await[512..516], [7, 7, 0, 0]);
        // The request of a client that is gone has no reply; the next request has one.
        let request = [&[GONE][..], &0u64.to_be_bytes(), &512u32.to_be_bytes()].concat();
        client.write_all(&request).await.unwrap();
        let pieces = LEN as usize + 3 * 2;
        let streamed = ask(&mut client, STREAM, 1 << 20, LEN, &[], pieces).await;
        let (first, second) = (2 + (256 << 10), 2 * (2 + (256 << 10)));
        let data_of_pieces = [&streamed[2..first], &streamed[first + 2..second], &streamed[second + 2..]];
        assert!(streamed[..2] == [STREAM, 0] && data_of_pieces.concat() == data);
        Ok(())
    });
    served.unwrap();
}

/// A store that reports another owner from one moment on.
struct Taken {
    inner: MemoryStore,
    is_taken: AtomicBool,
}

impl Store for Taken {
    forebay_store::forward_store!(inner; except read);

    fn read(&self, id: SegmentId, offset: u64, len: usize) -> Completion<IoBuf> {
        match self.is_taken.load(Relaxed) {
            true => Completion::ended(Err(StoreError::Fenced)),
            false => self.inner.read(id, offset, len),
        }
    }
}

/// An error would become an I/O error of the client's file system, while the other server can serve it.
#[test]
fn a_request_that_finds_another_owner_ends_the_connection_without_a_reply() {
    let engine = EngineThread::start(1).unwrap();
    let store = Arc::new(Taken { inner: MemoryStore::new(), is_taken: AtomicBool::new(false) });
    let worker = worker();
    let served = worker.clone().block_on(async move {
        let pool = open(&engine, &store).await;
        pool.attach("v").unwrap().write(0, &[7; 4096], true).await.unwrap();
        pool.close().await.unwrap();
        drop(pool);
        let pool = open(&engine, &store).await;
        let mut client = connect(&worker, pool.attach("v").unwrap());
        store.is_taken.store(true, Relaxed);
        let request = [&[READ][..], &0u64.to_be_bytes(), &512u32.to_be_bytes()].concat();
        client.write_all(&request).await.unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await?;
        assert_eq!(rest, [0; 0]);
        Ok(())
    });
    served.unwrap();
}
