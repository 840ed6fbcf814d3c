//! Tokens of POPULATE TOKEN: each represents ranges of a unit as of the moment when it was made.
//!
//! No data is copied for a token, so a change of its ranges invalidates it (ROD type "point in time copy,
//! change vulnerable", SPC-4). A command that changes a unit with tokens revokes those that it overlaps
//! before it begins (`Nexus::admit`); WRITE USING TOKEN checks for a revocation again after its read. The
//! effect of a write that was already under way when the token was made is undefined. Changes through another
//! front end to a disk that is also a unit are not detected.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay_engine::DiskHandle;
use forebay_wire::scsi::{BlockRange, Sense, SenseKey, Token, codes};
use parking_lot::Mutex;

/// Most tokens of a unit, and of a server.
const UNIT_MAX: usize = 64;
const SERVER_MAX: usize = 4096;

/// The unit that a token was made on. A strong reference keeps the unit open, so that its changes revoke the
/// token.
pub(super) trait TokenSource: Send + Sync {
    /// The disk that copies read from.
    fn disk(&self) -> &Arc<DiskHandle>;
}

/// A token and its ranges.
pub(super) struct Grant {
    pub token: Token,
    pub unit: Weak<dyn TokenSource>,
    pub ranges: Vec<BlockRange>,
    timeout: Duration,
    used: Mutex<Instant>,
    revoked: AtomicBool,
}

impl Grant {
    /// Total length of its ranges.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|r| r.len).sum()
    }

    /// Whether its ranges have changed.
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Acquire)
    }

    fn is_invalid(&self, now: Instant) -> bool {
        self.is_revoked() || now.duration_since(*self.used.lock()) > self.timeout
    }

    fn overlaps(&self, offset: u64, len: u64) -> bool {
        self.ranges.iter().any(|r| r.offset < offset + len && offset < r.offset + r.len)
    }
}

/// The tokens of a server, by their identifiers.
#[derive(Default)]
pub(super) struct Tokens(Mutex<HashMap<u64, Arc<Grant>>>);

/// The tokens of one unit.
#[derive(Default)]
pub(super) struct UnitTokens(Mutex<Vec<Arc<Grant>>>);

impl Tokens {
    /// Finds a valid token of this server.
    ///
    /// # Errors
    /// The token is unknown or has expired, or its ranges have changed.
    pub fn find(&self, token: &Token) -> Result<Arc<Grant>, Sense> {
        let unknown = Sense::illegal(codes::TOKEN_UNKNOWN);
        let mut tokens = self.0.lock();
        let grant = tokens.get(&token.identifier).filter(|g| g.token == *token).ok_or(unknown)?.clone();
        let now = Instant::now();
        if grant.is_invalid(now) {
            tokens.remove(&token.identifier);
            return Err(if grant.is_revoked() { Sense::illegal(codes::TOKEN_REVOKED) } else { unknown });
        }
        *grant.used.lock() = now;
        Ok(grant)
    }

    /// Deletes a token.
    pub fn delete(&self, grant: &Grant) {
        grant.revoked.store(true, Release);
        self.0.lock().remove(&grant.token.identifier);
    }
}

impl UnitTokens {
    /// Makes a token of ranges of `unit`. Calls `set_flag`, with the tokens of the unit locked, once it
    /// exists.
    ///
    /// # Errors
    /// The unit or the server has too many tokens, or the system provides no random bytes.
    pub fn grant(
        &self,
        server: &Tokens,
        unit: Weak<dyn TokenSource>,
        ranges: Vec<BlockRange>,
        timeout: Duration,
        set_flag: impl FnOnce(),
    ) -> Result<Arc<Grant>, Sense> {
        let now = Instant::now();
        let (used, revoked) = (Mutex::new(now), AtomicBool::new(false));
        let grant = Arc::new(Grant { token: random_token()?, unit, ranges, timeout, used, revoked });
        let mut of_unit = self.0.lock();
        of_unit.retain(|g| !g.is_invalid(now));
        let mut all = server.0.lock();
        if all.len() >= SERVER_MAX {
            all.retain(|_, g| !g.is_invalid(now));
        }
        if of_unit.len() >= UNIT_MAX || all.len() >= SERVER_MAX {
            return Err(Sense::new(SenseKey::AbortedCommand, codes::INSUFFICIENT_RESOURCES));
        }
        all.insert(grant.token.identifier, grant.clone());
        of_unit.push(grant.clone());
        set_flag();
        Ok(grant)
    }

    /// Revokes the tokens of a range that is about to change. Calls `clear_flag`, with the tokens of the unit
    /// locked, when no valid token remains.
    pub fn note_change(&self, offset: u64, len: u64, clear_flag: impl FnOnce()) {
        let now = Instant::now();
        let mut tokens = self.0.lock();
        tokens.iter().filter(|g| g.overlaps(offset, len)).for_each(|g| g.revoked.store(true, Release));
        tokens.retain(|g| !g.is_invalid(now));
        if tokens.is_empty() {
            clear_flag();
        }
    }
}

fn random_token() -> Result<Token, Sense> {
    let mut random = [0; 40];
    getrandom::fill(&mut random)
        .map_err(|_| Sense::new(SenseKey::HardwareError, codes::INTERNAL_TARGET_FAILURE))?;
    let (identifier, secret) = random.split_at(8);
    let mut token = Token { identifier: 0, secret: [0; 32] };
    token.secret.copy_from_slice(secret);
    token.identifier = identifier.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    Ok(token)
}
