//! A front end of a protocol that exists only here. A new protocol needs a decoder and an encoder.
//!
//! A request has an operation, an offset and a length (1, 8 and 4 bytes, big-endian), and the data of a
//! write. A reply has the operation, 0 or 1 for an error, and the data of a read; replies come in any order.

use std::rc::Rc;
use std::sync::Arc;

use forebay_engine::{DiskHandle, Error, Extent, Pool, PoolConfig, Result, SyncMode};
use forebay_host::EngineThread;
use forebay_store::MemoryStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::block::{Io, Layout, Piece, Reply};
use super::{Executor, Now};
use crate::plane::tests::worker;
use crate::plane::{Backlog, Charge, Conversation, Front, Output, Protocol, Received, Stop, Worker};

const REQUEST: usize = 13;
const READ: u8 = 1;
const WRITE: u8 = 2;
const WRITE_FUA: u8 = 3;
const ZERO: u8 = 4;
const FLUSH: u8 = 5;
const EXTENTS: u8 = 6;

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
            ZERO => Io::Zero { offset, len: len.into(), allocated: false, fua },
            EXTENTS => Io::Extents { offset, len: len.into(), max: 8 },
            _ => Io::Flush,
        };
        executor.spawn_block(disk.clone(), io, TinyReply(op));
    }
}

/// The reply to one request.
struct TinyReply(u8);

impl Reply for TinyReply {
    async fn run<T>(&self, _: bool, request: impl Future<Output = T>) -> Option<T> {
        Some(request.await)
    }

    fn layout(&self) -> Layout {
        Layout { header: 2, in_pieces: false }
    }

    fn data(&self, message: &mut Vec<u8>, _: Piece) {
        message[..2].copy_from_slice(&[self.0, 0]);
    }

    fn extents(&self, extents: &[Extent], _: u64) -> Vec<u8> {
        vec![self.0, 0, extents.len() as u8]
    }

    fn end(&self, done: Result<()>) -> Vec<u8> {
        vec![self.0, done.is_err().into()]
    }
}

fn connect(worker: &Rc<Worker>, disk: Arc<DiskHandle>) -> DuplexStream {
    let (client, server) = duplex(1 << 16);
    let backlog = Backlog::new(worker.memory());
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
async fn open(engine: &EngineThread, store: &Arc<MemoryStore>) -> Arc<Pool> {
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
        Ok(())
    });
    served.unwrap();
}
