//! The owners of a pool, one after another, and what each found.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::machine::MemoryFate;
use crate::model::Model;
use crate::note;
use crate::recover::{Found, no_silent_loss, recover};

/// What an owner found when it opened the pool.
pub(super) struct Findings {
    pub disks: BTreeMap<String, Found>,
    /// Names of disks that refused clients.
    pub refused: BTreeSet<String>,
    /// Fate of the retained memory of the previous owner.
    pub memory: MemoryFate,
}

/// An owner that has a successor, and may not have noticed.
pub(super) struct Shadow {
    term: u64,
    /// The history of the owner, which continues.
    model: Rc<RefCell<Model>>,
    /// What the next owner found when it opened the pool.
    found: Rc<Findings>,
}

/// The chain of owners of a pool; see the module documentation.
pub(super) struct Chain {
    /// The highest term for which a server has completed its claim.
    top: u64,
    /// The history of the last owner that passed the verdict, its term, and its machine.
    model: Rc<RefCell<Model>>,
    term: u64,
    machine: Option<usize>,
    /// Fate of the retained memory of that owner. It has no meaning while the owner runs.
    pub fate: MemoryFate,
    /// The history of that owner as of the first claim after it.
    claimed: Option<Model>,
    /// Disks to which owners since then have admitted clients, possibly before they lost the pool again.
    pub admitted: BTreeSet<String>,
    shadows: Vec<Shadow>,
}

/// A claim of a server.
pub(super) struct Claimed {
    pub term: u64,
    /// The history to be compared with what the server finds; `None` if the claim has a successor already.
    pub model: Option<Model>,
    /// The retained memory on the machine of this server is from an ownership that is not the previous one:
    /// other servers may have opened the pool in between.
    pub is_stale: bool,
}

impl Chain {
    /// A pool that no server has owned.
    pub fn new(model: Model) -> Chain {
        Chain {
            top: 0,
            model: Rc::new(RefCell::new(model)),
            term: 0,
            machine: None,
            fate: MemoryFate::Wiped,
            claimed: None,
            admitted: BTreeSet::new(),
            shadows: Vec::new(),
        }
    }

    /// The machine of the last owner that passed the verdict.
    pub fn machine(&self) -> Option<usize> {
        self.machine
    }

    /// Records that a server has completed a claim.
    pub fn claim(&mut self, term: u64, machine: usize) -> Claimed {
        if term < self.top {
            return Claimed { term, model: None, is_stale: false };
        }
        self.top = term;
        let claimed = self.claimed.get_or_insert_with(|| self.model.borrow().clone());
        let mut model = claimed.clone();
        let same_machine = self.machine == Some(machine);
        let is_next = term == self.term + 1;
        let is_kept = same_machine && is_next && self.fate == MemoryFate::Kept;
        model.memory = if is_kept { MemoryFate::Kept } else { MemoryFate::Wiped };
        if is_kept {
            model.expect_all();
        }
        Claimed { term, model: Some(model), is_stale: same_machine && !is_next }
    }

    /// Compares what a server found with the history before it. Returns the history of the server; `None` if
    /// another one has claimed the pool since.
    ///
    /// # Errors
    /// Text if the contents are not permitted.
    pub fn verdict(
        &mut self,
        mut model: Model,
        term: u64,
        machine: usize,
        mut found: Findings,
    ) -> Result<Option<Rc<RefCell<Model>>>, String> {
        found.refused.extend(self.admitted.iter().cloned());
        if found.memory == MemoryFate::Wiped {
            no_silent_loss(&model, &found.disks, &found.refused)?;
        }
        recover(&mut model, &found.disks)?;
        model.memory = MemoryFate::Kept;
        if term < self.top {
            return Ok(None);
        }
        let model = Rc::new(RefCell::new(model));
        let before = std::mem::replace(&mut self.model, model.clone());
        self.shadows.push(Shadow { term: self.term, model: before, found: Rc::new(found) });
        (self.term, self.machine, self.fate) = (term, Some(machine), MemoryFate::Kept);
        (self.claimed, self.admitted) = (None, BTreeSet::new());
        Ok(Some(model))
    }

    /// Compares the complete histories of all earlier owners, none of which runs any more, with what their
    /// successors found.
    ///
    /// # Errors
    /// Text if the contents are not permitted.
    pub fn settle(&mut self) -> Result<(), String> {
        for Shadow { term, model, found } in self.shadows.drain(..) {
            let mut model = model.borrow().clone();
            model.memory = found.memory;
            note!("the owner of term {term} had a successor, and ended at {}", model.now());
            let lost = match found.memory {
                MemoryFate::Wiped => no_silent_loss(&model, &found.disks, &found.refused),
                MemoryFate::Kept | MemoryFate::Restarted => Ok(()),
            };
            lost.and_then(|()| recover(&mut model, &found.disks))
                .map_err(|why| format!("acknowledged by the owner of term {term}: {why}"))?;
        }
        Ok(())
    }
}
