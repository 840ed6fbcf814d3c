//! Sessions of web pages. They are kept in memory: a restart or an upgrade of the server ends them.
//!
//! **Bounds.** At most [`MAX`] sessions. When there are more, the oldest session of the token with the most
//! sessions ends, so the holder of one token cannot end the sessions of another.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use forebay_frontend::shares::Shares;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::hash::{Hash, hash, random};

/// How long a session lasts, whether it is used or not.
pub const LIFETIME: Duration = Duration::from_secs(8 * 3600);
/// Maximum number of sessions.
const MAX: usize = 1024;

/// The secret of a new session.
pub struct SessionSecret(pub String);

impl fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionSecret")
    }
}

#[derive(Debug)]
struct Session {
    /// Id of the session's token.
    token: String,
    begun: Instant,
}

/// All sessions, by the hash of their secrets.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<HashMap<Hash, Session>>);

impl Sessions {
    /// Begins a session of a token.
    pub(super) fn begin(&self, token: &str) -> SessionSecret {
        let secret = random().expect("the system provided random numbers at the start, for the pool's keys");
        let mut all = self.0.lock();
        all.retain(|_, session| session.begun.elapsed() < LIFETIME);
        if all.len() >= MAX {
            let shares: Shares<&str> = all.values().map(|s| (s.token.as_str(), 1)).collect();
            let largest = shares.largest();
            let yielding = all.iter().filter(|(_, s)| shares.of(s.token.as_str()) == largest);
            if let Some(oldest) = yielding.min_by_key(|(_, s)| s.begun).map(|(hash, _)| *hash) {
                all.remove(&oldest);
            }
        }
        all.insert(hash(&secret), Session { token: token.to_owned(), begun: Instant::now() });
        SessionSecret(secret)
    }

    /// The token of a session that has not ended.
    pub(super) fn token(&self, secret: &str) -> Option<String> {
        // The key is a hash: the time of the look-up does not help to guess a secret.
        let all = self.0.lock();
        let session = all.get(&hash(secret))?;
        (session.begun.elapsed() < LIFETIME).then(|| session.token.clone())
    }

    /// Whether a session has not ended, by the hash of its secret.
    pub(super) fn has(&self, session: &Hash) -> bool {
        self.0.lock().get(session).is_some_and(|session| session.begun.elapsed() < LIFETIME)
    }

    /// Ends a session.
    pub fn end(&self, secret: &str) {
        self.0.lock().remove(&hash(secret));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_at_its_time_or_when_it_is_ended() {
        let sessions = Sessions::default();
        let (one, two) = (sessions.begin("a"), sessions.begin("b"));
        assert_eq!(sessions.token(&one.0).as_deref(), Some("a"));
        sessions.end(&one.0);
        assert_eq!(sessions.token(&one.0), None);
        tokio::time::advance(LIFETIME - Duration::from_secs(1)).await;
        assert_eq!(sessions.token(&two.0).as_deref(), Some("b"));
        assert!(sessions.has(&hash(&two.0)) && !sessions.has(&hash(&one.0)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(sessions.token(&two.0), None);
        assert!(!sessions.has(&hash(&two.0)));
        assert_eq!(sessions.token(""), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_session_of_the_token_with_the_most_ends_when_there_are_too_many() {
        let sessions = Sessions::default();
        let administrator = sessions.begin("a");
        let mut of_reader = Vec::new();
        for _ in 0..MAX {
            tokio::time::advance(Duration::from_millis(1)).await;
            of_reader.push(sessions.begin("b"));
        }
        assert_eq!(sessions.0.lock().len(), MAX);
        assert_eq!(sessions.token(&administrator.0).as_deref(), Some("a"));
        assert_eq!(sessions.token(&of_reader[0].0), None);
        assert!(of_reader[1..].iter().all(|session| sessions.token(&session.0).is_some()));
    }
}
