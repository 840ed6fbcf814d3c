//! Tokens of POPULATE TOKEN: each represents ranges of a unit as of the moment when it was made.
//!
//! No data is copied for a token, so a change of its ranges invalidates it (ROD type "point in time copy,
//! change vulnerable", SPC-4). Before a command changes a unit with tokens, it revokes the tokens whose
//! ranges it overlaps (`Nexus::admit`). WRITE USING TOKEN checks for a revocation again after its read. The
//! effect of a write that was already under way when the token was made is undefined. Changes through another
//! front end to a disk that is also a unit are not detected.
//!
//! **A token ends with the access on which it was made.** It belongs to the nexus that made it: the token is
//! unknown once that nexus has ended, and each range is copied only while the nexus may still read it
//! ([`TokenSource::begin_read`]). So neither a revocation of the access nor a reservation is circumvented by
//! a token that was made before.
//!
//! **Shares.** When a unit or the server has too many tokens, the newest one replaces the oldest token of the
//! initiator that has most. Initiators are compared within the target that has most, since the names of
//! initiators are no proof of their identity.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay_engine::DiskHandle;
use forebay_wire::scsi::{BlockRange, Sense, SenseKey, Token, codes};
use parking_lot::Mutex;

use super::port::Port;
use super::underway::Underway;

/// Maximum number of tokens of a unit, and of a server.
const UNIT_MAX: usize = 64;
const SERVER_MAX: usize = 4096;

/// The nexus on which a token was made.
pub(super) trait TokenSource: Send + Sync {
    /// Begins to read a range for a copy. Returns the disk, and a guard: while the guard exists, a withdrawal
    /// of the access waits.
    ///
    /// # Errors
    /// The access was withdrawn, or a reservation excludes it.
    fn begin_read(&self, offset: u64, len: u64) -> Result<(Arc<DiskHandle>, Underway), Sense>;
}

/// A token and the ranges that it represents.
pub(super) struct Grant {
    pub token: Token,
    /// The nexus that made the token. The reference is weak, so that a token does not prolong the access.
    pub source: Weak<dyn TokenSource>,
    port: Arc<Port>,
    pub ranges: Vec<BlockRange>,
    timeout: Duration,
    used: Mutex<Instant>,
    revoked: AtomicBool,
}

impl Grant {
    /// Total length of the token's ranges.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|r| r.len).sum()
    }

    /// Whether the contents of the token's ranges have changed.
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Acquire)
    }

    fn is_invalid(&self, now: Instant) -> bool {
        let has_expired = || now.duration_since(*self.used.lock()) > self.timeout;
        self.is_revoked() || self.source.strong_count() == 0 || has_expired()
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

    /// Deletes the token of a grant.
    pub fn delete(&self, grant: &Grant) {
        grant.revoked.store(true, Release);
        self.0.lock().remove(&grant.token.identifier);
    }
}

impl UnitTokens {
    /// Makes a token of ranges of the unit, for the nexus `source` of `port`. Calls `set_flag`, with the
    /// tokens of the unit locked, once it exists.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn grant(
        &self,
        server: &Tokens,
        (source, port): (Weak<dyn TokenSource>, Arc<Port>),
        ranges: Vec<BlockRange>,
        timeout: Duration,
        set_flag: impl FnOnce(),
    ) -> Result<Arc<Grant>, Sense> {
        let now = Instant::now();
        let (used, revoked) = (Mutex::new(now), AtomicBool::new(false));
        let grant = Arc::new(Grant { token: random_token()?, source, port, ranges, timeout, used, revoked });
        let mut of_unit = self.0.lock();
        of_unit.retain(|g| !g.is_invalid(now));
        if of_unit.len() >= UNIT_MAX {
            revoke_of_most(of_unit.iter());
            of_unit.retain(|g| !g.is_revoked());
        }
        let mut all = server.0.lock();
        if all.len() >= SERVER_MAX {
            all.retain(|_, g| !g.is_invalid(now));
        }
        if all.len() >= SERVER_MAX {
            revoke_of_most(all.values());
            all.retain(|_, g| !g.is_revoked());
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

/// Revokes one token: of the target with most tokens, and there of the initiator with most tokens, the token
/// that was not used for the longest time.
fn revoke_of_most<'a>(tokens: impl Iterator<Item = &'a Arc<Grant>> + Clone) {
    let mut counts = HashMap::<&str, HashMap<&str, usize>>::new();
    for port in tokens.clone().map(|g| &g.port) {
        *counts.entry(&port.target).or_default().entry(&port.initiator).or_default() += 1;
    }
    let of_target = counts.into_iter().max_by_key(|(_, initiators)| initiators.values().sum::<usize>());
    let Some((target, initiators)) = of_target else { return };
    let Some((initiator, _)) = initiators.into_iter().max_by_key(|(_, count)| *count) else { return };
    let is_meant = |g: &&Arc<Grant>| g.port.target == target && g.port.initiator == initiator;
    if let Some(oldest) = tokens.filter(is_meant).min_by_key(|g| *g.used.lock()) {
        oldest.revoked.store(true, Release);
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
