//! Tokens: a file of the data directory with the hash, role, scope and expiry of each.
//!
//! The file has mode 0600 and is replaced atomically: after a crash it has the tokens of before or after a
//! change, and room for the next change is reserved. A change counts when it is durable. The times of last
//! use are written by [`Tokens::flush`].
//!
//! **The tokens of a cluster** are a document in Ceph with the same contents ([`Tokens::of_document`]). The
//! owner of the value writes the document before it replaces what is in memory; times of last use are those
//! of one node, and are not written.
//!
//! **An unreadable file is kept.** Then no token is valid, none can be created, and tokens are demanded.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_api::{CreateToken, CreatedToken, Role, Scope, TokenView};
use forebay_host::clock::unix_ms;
use forebay_text::is_active;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use super::Denied;
use super::hash::{Hash, hash, hex, parse, random};
use super::principal::{LOCAL, LOOPBACK, Principal, Via};
use super::reserved_file::{replace, reserve};

/// Name of the file in the data directory.
pub const FILE_NAME: &str = "tokens.json";
const VERSION: u32 = 1;
/// Maximum number of tokens.
const MAX: usize = 1024;
/// Maximum bytes of a token's name.
const MAX_NAME: usize = 64;
/// Beginning of each secret, so that scanners for leaked secrets find it.
const PREFIX: &str = "forebay_";
/// Default for the maximum number of disks in the scope of a token that creates disks.
const DEFAULT_MAX_DISKS: u32 = 10_000;
/// Maximum lifetime of a token. A longer lifetime is refused: a token that never expires should be created
/// instead.
const MAX_LIFE_S: u64 = 100 * 365 * 86_400;

/// Why tokens cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The request for a token is invalid.
    #[error("{0}")]
    Bad(String),
    /// A token with this name exists already.
    #[error("a token named '{0}' exists; revoke it first, or choose another name")]
    Exists(String),
    /// The pool has no token of this name.
    #[error("no token is named '{0}'; 'forebay token list' lists them")]
    NotFound(String),
    /// The maximum number of tokens is reached.
    #[error("there are {MAX} tokens already; revoke some first")]
    Full,
    /// The file of tokens cannot be read.
    #[error("the tokens in {} cannot be read: {why}; restore the file, or remove it and restart the server", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Why the file cannot be read.
        why: String,
    },
    /// The file of tokens cannot be written.
    #[error("cannot write the tokens to {}: {error}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// The error that the system reported.
        error: io::Error,
    },
    /// The system has no random numbers.
    #[error("cannot create a secret: {0}")]
    Random(#[from] getrandom::Error),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    id: String,
    name: String,
    /// SHA-256 of the secret in hexadecimal digits.
    sha256: String,
    role: Role,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scope: Option<Scope>,
    created_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_used_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_disks: Option<u32>,
}

impl Record {
    fn max_disks(&self) -> Option<u32> {
        self.role.is_limited().then(|| self.max_disks.unwrap_or(DEFAULT_MAX_DISKS))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<R> {
    version: u32,
    tokens: R,
}

#[derive(Debug, Clone)]
struct Token {
    hash: Hash,
    record: Record,
}

impl Token {
    fn is_expired(&self) -> bool {
        self.record.expires_ms.is_some_and(|at| unix_ms() >= at)
    }

    fn view(&self) -> TokenView {
        let max_disks = self.record.max_disks();
        let Record { name, role, scope, created_ms, expires_ms, last_used_ms, .. } = self.record.clone();
        let expired = self.is_expired();
        TokenView { name, role, scope, created_ms, expires_ms, last_used_ms, expired, max_disks }
    }

    fn found(&mut self) -> Found {
        self.record.last_used_ms = Some(unix_ms());
        let Record { id, name, role, scope, .. } = &self.record;
        let max_disks = self.record.max_disks();
        Found { id: id.clone(), name: name.as_str().into(), role: *role, scope: scope.clone(), max_disks }
    }
}

/// A valid token.
pub(super) struct Found {
    pub id: String,
    name: Arc<str>,
    role: Role,
    scope: Option<Scope>,
    max_disks: Option<u32>,
}

impl Found {
    pub fn principal(self, via: Via, address: Option<IpAddr>) -> Principal {
        let Found { id, name, role, scope, max_disks } = self;
        let token = Some(id.into());
        Principal { scope, max_disks, token, ..Principal::new(name, role, via, address) }
    }
}

#[derive(Debug)]
struct State {
    /// The tokens, or the reason why the file cannot be read.
    tokens: Result<Vec<Token>, String>,
    /// Whether the file of tokens exists.
    created: bool,
    /// Times of last use have changed since the file was written.
    used: bool,
}

/// The tokens of a server; see the module documentation.
#[derive(Debug)]
pub struct Tokens {
    /// The file; `None` for the tokens of a cluster.
    path: Option<PathBuf>,
    state: Mutex<State>,
}

impl Tokens {
    /// Reads the tokens of a data directory.
    pub(super) fn load(data: &Path) -> Tokens {
        let path = data.join(FILE_NAME);
        let (tokens, created, len) = match fs::read(&path) {
            Ok(bytes) => (decode(&bytes), true, bytes.trim_ascii_end().len()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => (Ok(Vec::new()), false, 0),
            Err(e) => (Err(e.to_string()), true, 0),
        };
        let tokens = match forebay_host::modes::open_to_others(&path) {
            Some(mode) => Err(format!("other users can read or change it (mode {mode:03o}); chmod 600")),
            None => tokens,
        };
        // Tokens can then be created and revoked when the file system is full.
        if let Err(error) = reserve(&path, len) {
            tracing::warn!(path = %path.display(), %error, "there is no room for changes of the tokens");
        }
        if let Err(why) = &tokens {
            tracing::error!("{}", TokenError::Unreadable { path: path.clone(), why: why.clone() });
        }
        Tokens { path: Some(path), state: Mutex::new(State { tokens, created, used: false }) }
    }

    /// The tokens of a cluster. The document is empty before the first token was created.
    pub(super) fn of_document(document: &[u8]) -> Tokens {
        Tokens { path: None, state: Mutex::new(State::of_document(document)) }
    }

    /// Replaces the tokens of a cluster.
    pub fn replace_document(&self, document: &[u8]) {
        let mut state = self.state.lock();
        let mut new = State::of_document(document);
        if let (Ok(old), Ok(new)) = (&state.tokens, &mut new.tokens) {
            for token in new {
                let known = old.iter().find(|other| other.record.id == token.record.id);
                token.record.last_used_ms = known.and_then(|known| known.record.last_used_ms);
            }
        }
        *state = new;
    }

    /// The document of a cluster with a further token. The tokens in memory are not changed.
    ///
    /// # Errors
    /// As [`Tokens::create`].
    pub fn document_with(&self, new: CreateToken) -> Result<(CreatedToken, Vec<u8>), TokenError> {
        let (created, token) = new_token(new)?;
        let tokens = self.changed(&self.state.lock(), |tokens| add(tokens, token))?;
        Ok((created, encode(&tokens)))
    }

    /// The document of a cluster without the token of this name. The tokens in memory are not changed.
    ///
    /// # Errors
    /// As [`Tokens::revoke`].
    pub fn document_without(&self, name: &str) -> Result<Vec<u8>, TokenError> {
        Ok(encode(&self.changed(&self.state.lock(), |tokens| remove(tokens, name))?))
    }

    /// Whether a token was created since the data directory exists.
    pub fn were_created(&self) -> bool {
        self.state.lock().created
    }

    /// The token with this secret. The time that this takes depends on the number of tokens only.
    pub(super) fn verify(&self, secret: &str) -> Result<Found, Denied> {
        let presented = hash(secret);
        let mut state = self.state.lock();
        let tokens = state.tokens.as_mut().map_err(|_| Denied::Unknown)?;
        let mut found = None;
        for (i, token) in tokens.iter().enumerate() {
            if token.hash.ct_eq(&presented).into() {
                found = Some(i);
            }
        }
        let token = found.and_then(|i| tokens.get_mut(i)).ok_or(Denied::Unknown)?;
        if token.is_expired() {
            return Err(Denied::Expired);
        }
        let found = token.found();
        state.used = true;
        Ok(found)
    }

    /// The valid token with this id.
    pub(super) fn by_id(&self, id: &str) -> Option<Found> {
        let mut state = self.state.lock();
        let found = state.tokens.as_mut().ok()?.iter_mut().find(|token| token.record.id == id)?;
        let found = (!found.is_expired()).then(|| found.found());
        state.used |= found.is_some();
        found
    }

    /// All tokens, by name.
    ///
    /// # Errors
    /// [`TokenError::Unreadable`].
    pub fn list(&self) -> Result<Vec<TokenView>, TokenError> {
        let state = self.state.lock();
        let tokens = state.tokens.as_ref().map_err(|why| self.unreadable(why))?;
        let mut views: Vec<TokenView> = tokens.iter().map(Token::view).collect();
        views.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(views)
    }

    /// Creates a token.
    ///
    /// # Errors
    /// [`TokenError`]; nothing was changed.
    pub fn create(&self, new: CreateToken) -> Result<CreatedToken, TokenError> {
        let (created, token) = new_token(new)?;
        self.change(|tokens| add(tokens, token))?;
        Ok(created)
    }

    /// Revokes a token; its sessions end with it.
    ///
    /// # Errors
    /// [`TokenError`]; nothing was changed.
    pub fn revoke(&self, name: &str) -> Result<(), TokenError> {
        self.change(|tokens| remove(tokens, name))
    }

    /// Writes the times of last use to the file, if they have changed.
    ///
    /// # Errors
    /// [`TokenError::Write`].
    pub fn flush(&self) -> Result<(), TokenError> {
        let mut state = self.state.lock();
        let state = &mut *state;
        match (&state.tokens, state.used) {
            (Ok(tokens), true) => self.write(tokens)?,
            _ => return Ok(()),
        }
        state.used = false;
        Ok(())
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Vec<Token>) -> Result<(), TokenError>,
    ) -> Result<(), TokenError> {
        let mut state = self.state.lock();
        let new = self.changed(&state, change)?;
        self.write(&new)?;
        *state = State { tokens: Ok(new), created: true, used: false };
        Ok(())
    }

    /// The tokens with a change.
    fn changed(
        &self,
        state: &State,
        change: impl FnOnce(&mut Vec<Token>) -> Result<(), TokenError>,
    ) -> Result<Vec<Token>, TokenError> {
        let mut new = state.tokens.as_ref().map_err(|why| self.unreadable(why))?.clone();
        change(&mut new)?;
        Ok(new)
    }

    fn write(&self, tokens: &[Token]) -> Result<(), TokenError> {
        let Some(path) = &self.path else { return Ok(()) };
        replace(path, &encode(tokens)).map_err(|error| TokenError::Write { path: path.clone(), error })
    }

    fn unreadable(&self, why: &str) -> TokenError {
        let path = self.path.clone().unwrap_or_else(|| PathBuf::from("the cluster"));
        TokenError::Unreadable { path, why: why.to_owned() }
    }
}

impl State {
    fn of_document(document: &[u8]) -> State {
        let tokens = if document.is_empty() { Ok(Vec::new()) } else { decode(document) };
        if let Err(why) = &tokens {
            tracing::error!("the tokens of the cluster cannot be read: {why}");
        }
        State { tokens, created: !document.is_empty(), used: false }
    }
}

/// A new token, and what its creator receives.
fn new_token(new: CreateToken) -> Result<(CreatedToken, Token), TokenError> {
    check(&new)?;
    let secret = format!("{PREFIX}{}", random()?);
    let created_ms = unix_ms();
    let hash = hash(&secret);
    let mut id = random()?;
    id.truncate(16);
    let record = Record {
        id,
        name: new.name,
        sha256: hex(&hash),
        role: new.role,
        scope: new.scope,
        created_ms,
        expires_ms: new.expires_in_s.map(|s| created_ms + s.saturating_mul(1000)),
        last_used_ms: None,
        max_disks: new.max_disks,
    };
    let token = Token { hash, record };
    Ok((CreatedToken { secret, token: token.view() }, token))
}

fn add(tokens: &mut Vec<Token>, token: Token) -> Result<(), TokenError> {
    if tokens.iter().any(|other| other.record.name == token.record.name) {
        return Err(TokenError::Exists(token.record.name));
    }
    if tokens.len() >= MAX {
        return Err(TokenError::Full);
    }
    tokens.push(token);
    Ok(())
}

fn remove(tokens: &mut Vec<Token>, name: &str) -> Result<(), TokenError> {
    let count = tokens.len();
    tokens.retain(|token| token.record.name != name);
    if tokens.len() == count { Err(TokenError::NotFound(name.to_owned())) } else { Ok(()) }
}

fn encode(tokens: &[Token]) -> Vec<u8> {
    let records: Vec<&Record> = tokens.iter().map(|token| &token.record).collect();
    serde_json::to_vec_pretty(&Document { version: VERSION, tokens: records })
        .expect("names and numbers can be represented in JSON")
}

fn decode(bytes: &[u8]) -> Result<Vec<Token>, String> {
    let document: Document<Vec<Record>> =
        forebay_frontend::document::decode(bytes, VERSION, ["it is", "it has"])?;
    let token = |record: Record| {
        let hash =
            parse(&record.sha256).ok_or_else(|| format!("the hash of '{}' is invalid", record.name))?;
        Ok(Token { hash, record })
    };
    document.tokens.into_iter().map(token).collect()
}

fn check(new: &CreateToken) -> Result<(), TokenError> {
    let bad = |why: &str| Err(TokenError::Bad(why.to_owned()));
    let name = &new.name;
    if !(1..=MAX_NAME).contains(&name.len()) || name.contains('/') || name.chars().any(is_active) {
        return bad(
            "the name of a token must have 1 to 64 bytes, without '/', control and invisible characters",
        );
    }
    if forebay_text::is_relative_path(name) {
        return bad("a token cannot be named '.' or '..', which have another meaning in an address");
    }
    if [LOCAL, LOOPBACK].contains(&name.to_lowercase().as_str()) {
        return bad("this name is reserved: the audit log shows it for clients without a token");
    }
    match (&new.scope, new.role) {
        (None, Role::Operator) => {
            return bad("an operator needs a scope: disks by name, such as '*', or a tenant");
        }
        // A disk that does not exist yet has a name, but no tenant.
        (None | Some(Scope::Tenant(_)), Role::Provisioner) => {
            return bad("a provisioner needs a scope of disks by name, such as 'acme.*'");
        }
        (Some(_), Role::Administrator) => {
            return bad("an administrator cannot have a scope; use the role provisioner or operator");
        }
        (Some(Scope::Disks(patterns)), _) if patterns.is_empty() || patterns.len() > 64 => {
            return bad("a scope of disks needs 1 to 64 patterns");
        }
        _ => {}
    }
    if new.max_disks == Some(0) || new.max_disks.is_some() && !new.role.is_limited() {
        return bad("max_disks is a number from 1 on, for the roles operator and provisioner only");
    }
    match new.expires_in_s {
        Some(s) if !(1..=MAX_LIFE_S).contains(&s) => {
            bad("a token can expire in 1 second to 100 years; without expires_in_s it does not expire")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "tokens/tests.rs"]
mod tests;
