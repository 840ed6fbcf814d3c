//! Access control of the API: tokens, sessions of web pages, the limit on failed attempts, and the audit log.
//!
//! **Invariants.**
//! - The secret of a token or session exists only at its holder; here only its SHA-256 hash is kept. Secrets
//!   have 256 random bits, so a hash without salt cannot be inverted, and guesses do not succeed.
//! - A session never outlives its token: each request looks the token up again.
//! - After the first token was created, every request over TCP needs a token, also after the last token was
//!   revoked, and also if the file of the tokens cannot be read. Only an administrator of the host can permit
//!   requests without tokens again, by removing the file and restarting the server.
//! - What a scoped principal cannot see is answered as if it did not exist.

mod attempts;
mod audit;
mod hash;
mod principal;
mod reserved_file;
mod sessions;
mod tokens;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

pub use attempts::Failures;
pub(crate) use audit::MAX_PATH;
pub use audit::{Audit, AuditRecord};
use hash::hash;
pub use principal::{DiskRef, Forwarded, Principal, Right, Via, contains_all_beginning_with, may};
pub use sessions::{LIFETIME as SESSION_LIFETIME, SessionSecret, Sessions};
pub use tokens::{FILE_NAME, TokenError, Tokens};

/// Why credentials are not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// No token has this secret: it never existed, or was revoked.
    Unknown,
    /// The token of the credentials has expired.
    Expired,
}

/// The access control of one server. Its parts lock separately and briefly.
#[derive(Debug)]
pub struct Access {
    /// Tokens that requests can present.
    pub tokens: Tokens,
    /// Sessions of web pages.
    pub sessions: Sessions,
    /// Failed attempts to authenticate, by address.
    pub failures: Failures,
    /// The audit log, in which changes and refusals are recorded.
    pub audit: Audit,
    /// Tokens are required on loopback addresses too, even if no token exists.
    demand_tokens: bool,
}

impl Access {
    /// Loads the tokens in `data`. With `demand_tokens`, loopback clients need one even if none was created.
    pub fn load(data: &Path, demand_tokens: bool, audit: Audit) -> Arc<Access> {
        Arc::new(Access {
            tokens: Tokens::load(data),
            sessions: Sessions::default(),
            failures: Failures::default(),
            audit,
            demand_tokens,
        })
    }

    /// The access control of a node of a cluster, with the document of the tokens of the cluster.
    pub fn of_cluster(tokens: &[u8], demand_tokens: bool, audit: Audit) -> Arc<Access> {
        Arc::new(Access {
            tokens: Tokens::of_document(tokens),
            sessions: Sessions::default(),
            failures: Failures::default(),
            audit,
            demand_tokens,
        })
    }

    /// Whether clients on loopback addresses need a token.
    pub fn demands_tokens(&self) -> bool {
        self.demand_tokens || self.tokens.were_created()
    }

    /// The holder of a token.
    ///
    /// # Errors
    /// [`Denied`]; the caller counts the failure.
    pub fn by_token(&self, secret: &str, address: Option<IpAddr>) -> Result<Principal, Denied> {
        self.tokens.verify(secret).map(|found| found.principal(Via::Token, address))
    }

    /// The principal of a session; `None` if it has ended, or its token is not valid any more.
    pub fn by_session(&self, secret: &str, address: Option<IpAddr>) -> Option<Principal> {
        let token = self.sessions.token(secret)?;
        let principal = self.tokens.by_id(&token)?.principal(Via::Session, address);
        Some(Principal { session: Some(hash(secret)), ..principal })
    }

    /// Whether a principal that was authenticated before still would be.
    pub fn is_valid(&self, principal: &Principal) -> bool {
        if principal.is_forwarded {
            return true;
        }
        if principal.session.as_ref().is_some_and(|session| !self.sessions.has(session)) {
            return false;
        }
        match (&principal.token, principal.via) {
            (Some(token), _) => self.tokens.by_id(token).is_some(),
            (None, Via::Loopback) => !self.demands_tokens(),
            (None, _) => true,
        }
    }

    /// Begins a session with a token.
    ///
    /// # Errors
    /// As [`Access::by_token`].
    pub fn begin_session(
        &self,
        secret: &str,
        address: Option<IpAddr>,
    ) -> Result<(Principal, SessionSecret), Denied> {
        let found = self.tokens.verify(secret)?;
        let session = self.sessions.begin(&found.id);
        let principal = found.principal(Via::Session, address);
        Ok((Principal { session: Some(hash(&session.0)), ..principal }, session))
    }
}
