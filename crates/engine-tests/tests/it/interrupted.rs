//! Openings that fail or are interrupted: the next one finds what the retained memory holds, and what it
//! reports of a loss. Time is tokio's paused clock.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{Client, CloneRequest, Error, Pool, RemoteAnswers, SyncMode};
use forebay_retained::HeapMemory;
use forebay_store::{Crash, Fault, FaultyOp, FaultyStore, When};

use crate::common::machine::Machine;
use crate::common::*;

const BLOCK: usize = 4096;
const SIZE: u64 = 1 << 20;

/// A pool with the volume `v` and the desktop `desk`, each with an acknowledged block that is not durable.
async fn with_writes(seed: u64) -> (Machine, Arc<FaultyStore>, Arc<Pool>) {
    let (mut machine, store) = (Machine::new(), FaultyStore::new(seed));
    machine.config.remote_answers = RemoteAnswers::Memory;
    let pool = machine.open(&store).await;
    pool.create_volume("v", SIZE, SyncMode::Flush, 0).await.unwrap();
    let import = pool.begin_import("golden", SIZE, 0).await.unwrap();
    pool.finish_import(import).await.unwrap();
    let desktop = CloneRequest { name: "desk".into(), write_cache: SIZE, ..CloneRequest::default() };
    pool.clone_disk("golden", &[desktop]).await.unwrap();
    // The volume last: a commit, such as that of a mark, makes its writes durable.
    for name in ["desk", "v"] {
        let disk = pool.attach_as(name, Client::Remote).unwrap();
        disk.write(0, &noise(1, BLOCK), false).await.unwrap();
    }
    (machine, store, pool)
}

/// The next process finds the memory as it is now.
fn end_process(machine: &mut Machine) {
    machine.memory = Arc::new(machine.memory.snapshot());
    machine.seed += 1;
}

/// The clients of both disks are refused after `lose`, wherever the opening after it is interrupted.
async fn is_not_forgotten(lose: impl AsyncFn(&mut Machine, Arc<FaultyStore>, Arc<Pool>) -> Arc<FaultyStore>) {
    let mut interrupted = 0;
    for op in 1.. {
        let (mut machine, store, pool) = with_writes(op).await;
        let store = lose(&mut machine, store, pool).await;
        store.crash_at(store.ops() + op, Crash::Kill);
        let done = machine.try_open(&store).await.is_ok();
        end_process(&mut machine);
        if done {
            store.crash(Crash::Kill);
        }
        interrupted += u32::from(!done);
        let store = store.reopen();
        let pool = machine.open(&store).await;
        for name in ["v", "desk"] {
            let attached = pool.attach_as(name, Client::Remote).map(drop);
            assert!(
                matches!(attached, Err(Error::MemoryLost { .. })),
                "{name}, operation {op}: {attached:?}"
            );
        }
        if done {
            break;
        }
    }
    assert!(interrupted > 3, "the opening was interrupted {interrupted} times");
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_the_memory_is_not_forgotten() {
    is_not_forgotten(async |machine, store, _| {
        store.crash(Crash::Kill);
        end_process(machine);
        machine.lose_memory();
        store.reopen()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_damaged_page_is_not_forgotten() {
    is_not_forgotten(async |machine, store, _| {
        store.crash(Crash::Kill);
        end_process(machine);
        let (mut content, mut damaged) = (machine.memory.content(), 0);
        for page in content.iter_mut().flatten().flat_map(|chunk| chunk.chunks_mut(BLOCK)) {
            if page == noise(1, BLOCK) {
                page[100] ^= 1;
                damaged += 1;
            }
        }
        assert_eq!(damaged, 2, "the page of each disk");
        machine.memory = Arc::new(HeapMemory::with_content(&content));
        store.reopen()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_log_older_than_the_memory_is_not_forgotten() {
    is_not_forgotten(async |machine, store, pool| {
        let older = store.image();
        pool.attach_as("v", Client::Remote).unwrap().flush().await.unwrap();
        end_process(machine);
        FaultyStore::of_image(7, &older)
    })
    .await;
}

/// The server may be started again and again until the store answers. Openings that follow an interrupted
/// import have something to commit.
#[tokio::test(start_paused = true)]
async fn an_opening_that_fails_keeps_acknowledged_writes() {
    let ops = [FaultyOp::Read, FaultyOp::Append, FaultyOp::Sync, FaultyOp::Swap];
    for (op, importing) in ops.into_iter().flat_map(|op| [(op, false), (op, true)]) {
        let mut failed = 0;
        for after in 0.. {
            let (mut machine, store, pool) = with_writes(after).await;
            let import = if importing { pool.begin_import("half", SIZE, 0).await.ok() } else { None };
            store.crash(Crash::Kill);
            end_process(&mut machine);
            drop((import, pool));
            let store = store.reopen();
            store.inject(op, Fault::Io, When::From(after as u32));
            let opened = machine.try_open(&store).await;
            failed += u32::from(opened.is_err());
            let is_over = opened.is_ok();
            drop(opened);
            if !is_over {
                tokio::time::sleep(Duration::from_secs(60)).await;
                assert_eq!(Arc::strong_count(&store), 1, "{op:?} {after}: a task of the pool continues");
            }
            store.clear_faults();
            store.crash(Crash::Kill);
            end_process(&mut machine);
            let pool = machine.open(&store.reopen()).await;
            for name in ["v", "desk"] {
                let disk = pool.attach_as(name, Client::Remote).unwrap();
                let kept = read(&disk, 0, BLOCK).await == noise(1, BLOCK);
                assert!(kept, "{name}: {op:?} {after} failed, importing: {importing}");
            }
            if is_over {
                break;
            }
        }
        let nothing_to_commit = op == FaultyOp::Append && !importing;
        assert!(failed > 0 || nothing_to_commit, "{op:?} made no opening fail, importing: {importing}");
    }
}
