//! Tokens (POPULATE TOKEN): each stands for ranges of a unit as they were when it was made.
//!
//! Nothing is copied for a token, so it is void as soon as its ranges change (ROD type "point in time copy,
//! change vulnerable", SPC-4): a command that changes a unit which has tokens revokes those that it overlaps
//! before it begins ([`Nexus::admit`](super::Nexus::admit)), and who writes by a token looks again after it
//! has read. What a write that was under way already when the token was made left is not defined. Changes
//! that come by other front ends than this one, to a disk that is also a unit, are not seen.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay_wire::scsi::{BlockRange, Sense, SenseKey, Token, codes};
use parking_lot::Mutex;

use super::unit::{HAS_TOKENS, LogicalUnit};

/// Most tokens of a unit, and of a server.
const UNIT_MAX: usize = 64;
const SERVER_MAX: usize = 4096;

/// A token and what it stands for.
pub(super) struct Grant {
    pub token: Token,
    pub unit: Weak<LogicalUnit>,
    pub ranges: Vec<BlockRange>,
    timeout: Duration,
    used: Mutex<Instant>,
    revoked: AtomicBool,
}

impl Grant {
    /// Bytes that it stands for.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|r| r.len).sum()
    }

    /// Whether its ranges have changed.
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Acquire)
    }

    fn is_over(&self, now: Instant) -> bool {
        self.is_revoked() || now.duration_since(*self.used.lock()) > self.timeout
    }

    fn overlaps(&self, offset: u64, len: u64) -> bool {
        self.ranges.iter().any(|r| r.offset < offset + len && offset < r.offset + r.len)
    }
}

/// The tokens of a server, by their identifiers.
#[derive(Default)]
pub(super) struct Tokens(Mutex<HashMap<u64, Arc<Grant>>>);

/// Those of a unit.
#[derive(Default)]
pub(super) struct UnitTokens(Mutex<Vec<Arc<Grant>>>);

impl Tokens {
    /// The token, if it is one of this server's and can still be used.
    ///
    /// # Errors
    /// No such token, or one whose ranges have changed.
    pub fn find(&self, token: &Token) -> Result<Arc<Grant>, Sense> {
        let unknown = Sense::illegal(codes::TOKEN_UNKNOWN);
        let mut tokens = self.0.lock();
        let grant = tokens.get(&token.identifier).filter(|g| g.token == *token).ok_or(unknown)?.clone();
        let now = Instant::now();
        if grant.is_over(now) {
            tokens.remove(&token.identifier);
            return Err(if grant.is_revoked() { Sense::illegal(codes::TOKEN_REVOKED) } else { unknown });
        }
        *grant.used.lock() = now;
        Ok(grant)
    }

    /// Forgets a token.
    pub fn delete(&self, grant: &Grant) {
        grant.revoked.store(true, Release);
        self.0.lock().remove(&grant.token.identifier);
    }
}

impl LogicalUnit {
    /// Makes a token.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn grant(
        self: &Arc<Self>,
        ranges: Vec<BlockRange>,
        seconds: u32,
    ) -> Result<Arc<Grant>, Sense> {
        let full = Sense::new(SenseKey::AbortedCommand, codes::INSUFFICIENT_RESOURCES);
        let mut random = [0; 40];
        getrandom::fill(&mut random)
            .map_err(|_| Sense::new(SenseKey::HardwareError, codes::INTERNAL_TARGET_FAILURE))?;
        let (identifier, secret) = random.split_at(8);
        let mut token = Token { identifier: 0, secret: [0; 32] };
        token.secret.copy_from_slice(secret);
        token.identifier = identifier.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let now = Instant::now();
        let grant = Arc::new(Grant {
            token,
            unit: Arc::downgrade(self),
            ranges,
            timeout: Duration::from_secs(seconds.into()),
            used: Mutex::new(now),
            revoked: AtomicBool::new(false),
        });
        let mut of_unit = self.tokens.0.lock();
        of_unit.retain(|g| !g.is_over(now));
        let mut all = self.all_tokens.0.lock();
        if all.len() >= SERVER_MAX {
            all.retain(|_, g| !g.is_over(now));
        }
        if of_unit.len() >= UNIT_MAX || all.len() >= SERVER_MAX {
            return Err(full);
        }
        all.insert(grant.token.identifier, grant.clone());
        of_unit.push(grant.clone());
        self.set_flag(HAS_TOKENS, true);
        Ok(grant)
    }

    /// A range is about to change: tokens of it are void.
    pub(super) fn note_change(&self, offset: u64, len: u64) {
        if self.flags() & HAS_TOKENS == 0 {
            return;
        }
        let now = Instant::now();
        let mut tokens = self.tokens.0.lock();
        tokens.iter().filter(|g| g.overlaps(offset, len)).for_each(|g| g.revoked.store(true, Release));
        tokens.retain(|g| !g.is_over(now));
        if tokens.is_empty() {
            self.set_flag(HAS_TOKENS, false);
        }
    }
}
