//! A simulated machine: what outlives the processes that run on it.

use std::sync::Arc;

use forebay_retained::HeapMemory;
use parking_lot::Mutex;

/// A machine, whose memory outlives a process.
pub struct Machine {
    number: u8,
    memory: Mutex<MachineMemory>,
}

struct MachineMemory {
    retained: Arc<HeapMemory>,
    /// Number of the machine's starts.
    boot: u8,
}

impl Machine {
    /// A machine that has just started; each needs another number.
    pub fn new(number: u8) -> Arc<Machine> {
        let memory = MachineMemory { retained: Arc::new(HeapMemory::new(MAX_CHUNKS)), boot: 1 };
        Arc::new(Machine { number, memory: Mutex::new(memory) })
    }

    /// The memory that the process on this machine uses.
    pub(crate) fn retained(&self) -> Arc<HeapMemory> {
        self.memory.lock().retained.clone()
    }

    /// Lets the next process find this memory.
    pub(crate) fn set_retained(&self, found: HeapMemory) {
        self.memory.lock().retained = Arc::new(found);
    }

    pub(crate) fn boot_id(&self) -> [u8; 16] {
        let mut id = [self.memory.lock().boot; 16];
        id[0] = self.number;
        id
    }

    /// Ends the process as far as its retained memory is concerned: the next process finds the memory as it
    /// is now, or none. What the present process still does to the memory has no effect.
    pub fn end_process(&self, fate: MemoryFate) {
        let mut memory = self.memory.lock();
        memory.retained = Arc::new(match fate {
            MemoryFate::Kept => memory.retained.snapshot(),
            MemoryFate::Wiped | MemoryFate::Restarted => HeapMemory::new(MAX_CHUNKS),
        });
        memory.boot += u8::from(fate == MemoryFate::Restarted);
    }
}

/// The effect on the machine's memory of the end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum MemoryFate {
    /// The retained memory is as the process left it.
    #[default]
    Kept,
    /// The retained memory was removed.
    Wiped,
    /// The machine was restarted.
    Restarted,
}

/// Chunks of memory that a pool may use.
const MAX_CHUNKS: u32 = 2048;
