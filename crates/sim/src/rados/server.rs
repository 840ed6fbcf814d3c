//! A server: it claims the pool, opens it, passes the verdict, and serves clients.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use forebay_engine::{Error, Pool, check};
use forebay_store::StoreError;
use forebay_store::rados::{
    Claim, HandedOver, PoolConnection, RadosStore, SimulatedClient, SimulatedRados, Waiting,
};

use super::chain::{Chain, Claimed, Findings};
use crate::ctx::{Ctx, Tolerance};
use crate::exec::SimHost;
use crate::machine::{Machine, MemoryFate};
use crate::model::Model;
use crate::note;
use crate::plan::Plan;
use crate::round::admit_all;
use crate::verify::{interesting, read_back};

/// How far a server process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The server waits for the pool.
    Waiting,
    /// The server has the pool and opens it.
    Opening,
    /// The server's pool has passed the verdict.
    Ready,
    /// The server closes the pool.
    Closing,
    /// The server does nothing any more.
    Ended,
}

/// A server process.
pub(super) struct Server {
    /// Number of the process, and of its client.
    pub number: u64,
    pub index: usize,
    pub machine: Arc<Machine>,
    pub host: Arc<SimHost>,
    pub client: Arc<SimulatedClient>,
    pub rados: Arc<SimulatedRados>,
    pub chain: Rc<RefCell<Chain>>,
    pub plan: Plan,
    pub claim: Claim,
    /// Name of the server in the header.
    pub name: String,
    /// The term in which this server released the pool to an heir, as a former process.
    pub settles: Option<u64>,
    /// The server has released the pool to an heir.
    pub has_handed_over: Cell<bool>,
    /// Whether the server has taken the pool back.
    pub has_taken_back: Cell<bool>,
    /// Whether the pool is checked before it is opened.
    pub checks: bool,
    /// Whether the pool may be full at times.
    pub may_be_full: bool,
    pub stage: Cell<Stage>,
    pub store: RefCell<Option<Arc<RadosStore>>>,
    pub ctx: RefCell<Option<Rc<Ctx>>>,
}

impl Server {
    /// Whether the pool has got another owner since this server became its owner.
    pub fn is_superseded(&self) -> bool {
        self.store.borrow().as_ref().is_some_and(|store| store.term() != self.rados.term())
    }

    /// The life of the server until its clients can work.
    pub async fn open(self: Rc<Server>) {
        let store = match self.obtain().await {
            Ok(store) => store,
            Err(StoreError::Busy(_)) if self.claim == Claim::IfFree => return self.stage.set(Stage::Ended),
            Err(e) => panic!("server {}: the claim failed: {e}", self.number),
        };
        let Claimed { term, model, is_stale } = self.chain.borrow_mut().claim(store.term(), self.index);
        note!("server {} on machine {} owns the pool in term {term}", self.number, self.index);
        *self.store.borrow_mut() = Some(store.clone());
        self.stage.set(Stage::Opening);
        self.rados.set_capacity(1 << 40);
        if is_stale {
            self.machine.end_process(MemoryFate::Wiped);
        }
        if self.checks {
            self.check(&store).await;
        }
        let pool = match Pool::open(store, self.host.clone(), self.plan.pool.clone()).await {
            Ok(pool) => pool,
            Err(e) => {
                assert!(self.is_superseded(), "server {}: the pool does not open: {e}", self.number);
                return self.stage.set(Stage::Ended);
            }
        };
        let history = match model {
            Some(model) => self.judge(&pool, model, term).await,
            None => None,
        };
        let Some(history) = history else { return self.stage.set(Stage::Ended) };
        let mut ctx = Ctx::new(pool, self.host.clone(), history, self.plan.clone());
        // A group that is written again after an append was overdue, and finds no room, stops the pool.
        let full = self.may_be_full;
        ctx.tolerance.set(Tolerance { full, latched: full, ..Tolerance::default() });
        let weak = Rc::downgrade(&self);
        ctx.is_superseded =
            Some(Box::new(move || weak.upgrade().is_none_or(|server| server.is_superseded())));
        *self.ctx.borrow_mut() = Some(Rc::new(ctx));
        self.stage.set(Stage::Ready);
        if let Some(store) = &*self.store.borrow() {
            store.announce_serving();
        }
    }

    /// Claims the pool; a former owner that handed it over only if the heir fails.
    async fn obtain(&self) -> Result<Arc<RadosStore>, StoreError> {
        if let Some(term) = self.settles {
            let connection = PoolConnection::simulated(self.client.clone(), &self.name);
            match connection.settled(term, &Waiting::NONE).await? {
                HandedOver::Back(store) => {
                    note!("server {} took the pool back", self.number);
                    self.has_taken_back.set(true);
                    return Ok(store);
                }
                HandedOver::To { owner, term, is_serving } => {
                    note!(
                        "server {}: {owner} has the pool in term {term}, serves: {is_serving}",
                        self.number
                    );
                }
            }
        }
        RadosStore::open_simulated(self.client.clone(), &self.name, self.claim).await
    }

    /// Hands the pool over to a server, if that waits. The store is released when the process ends.
    pub async fn hand_over(self: Rc<Server>, to: String) {
        let connection = PoolConnection::simulated(self.client.clone(), &self.name);
        let heir = match connection.find(Some(&to)).await {
            Ok(Some(heir)) => heir,
            Ok(None) => return,
            Err(e) => panic!("server {}: {e}", self.number),
        };
        let store = self.store.borrow().clone();
        let (Some(store), Stage::Ready) = (store, self.stage.get()) else { return };
        if let Err(e) = store.invite(Some(&heir)).await {
            assert!(self.is_superseded(), "server {}: {e}", self.number);
            return;
        }
        if self.stage.get() != Stage::Ready {
            return;
        }
        note!("server {} hands the pool over to {heir}", self.number);
        self.stage.set(Stage::Closing);
        if self.clone().close_pool().await {
            store.release_to(heir);
            self.has_handed_over.set(true);
        }
        drop(store);
        self.client.end_in_order();
        self.stage.set(Stage::Ended);
    }

    async fn check(&self, store: &Arc<RadosStore>) {
        match check(store.clone(), self.host.clone(), |_| {}).await {
            Err(Error::NoPool(_)) => {}
            Err(e) => assert!(self.is_superseded(), "the pool cannot be checked: {e}"),
            Ok(report) => {
                let is_sound = report.problems.is_empty() || self.is_superseded();
                assert!(is_sound, "check says: {:?}", report.problems);
            }
        }
    }

    /// Compares the contents with the permitted contents; `None` if the pool has another owner.
    async fn judge(&self, pool: &Arc<Pool>, model: Model, term: u64) -> Option<Rc<RefCell<Model>>> {
        let memory = model.memory;
        let found = async {
            self.chain.borrow_mut().admitted.extend(refusing(pool));
            let refused = admit_all(pool).await?;
            let disks = read_back(pool, interesting(&model), false).await?;
            if memory == MemoryFate::Kept {
                // The model starts again from the contents that were found, so a later owner must not go back
                // beyond them.
                pool.flush().await.map_err(|e| format!("flush of the contents of memory: {e}"))?;
                assert!(refused.is_empty(), "no client lost a write, but {refused:?} are refused");
            }
            Ok::<_, String>(Findings { disks, refused, memory })
        };
        let found = found.await;
        let verdict = match found {
            Ok(found) => self.chain.borrow_mut().verdict(model, term, self.index, found),
            Err(why) if self.is_superseded() => {
                note!("server {}: {why}", self.number);
                Ok(None)
            }
            Err(why) => Err(why),
        };
        let history = verdict.unwrap_or_else(|why| panic!("server {}, term {term}: {why}", self.number))?;
        note!("server {}: as it should be; {} disks", self.number, history.borrow().names.len());
        Some(history)
    }

    /// Closes the pool in order. The store is given back when the process ends.
    pub async fn close(self: Rc<Server>) {
        self.clone().close_pool().await;
        self.client.end_in_order();
        self.stage.set(Stage::Ended);
    }

    /// Whether the pool was closed without an error.
    async fn close_pool(self: Rc<Server>) -> bool {
        let ctx = self.ctx.borrow().clone().expect("it is ready");
        let tolerance = ctx.tolerance.get();
        // An operation that finds no space while the pool closes never will: the pool latches.
        ctx.tolerance.set(Tolerance { closed: true, latched: tolerance.full, ..tolerance });
        let closed = ctx.pool.close().await;
        match &closed {
            Ok(()) => {
                let mut model = ctx.model.borrow_mut();
                let now = model.tick();
                model.all_flushed(now);
                note!("{now} server {} closed the pool", self.number);
            }
            Err(e) => {
                note!("server {}: close: {e}", self.number);
                let tolerance = ctx.tolerance();
                assert!(tolerance.permits(e) || tolerance.full, "close failed: {e}");
            }
        }
        closed.is_ok()
    }
}

/// The disks that refuse clients.
fn refusing(pool: &Pool) -> Vec<String> {
    let names = pool.disks().into_iter().map(|disk| disk.name);
    names.filter(|name| matches!(pool.attach(name), Err(Error::MemoryLost { .. }))).collect()
}
