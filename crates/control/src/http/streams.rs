//! The streams of events that a listener serves at the same time.

use std::sync::Arc;

use forebay_frontend::shares::Shares;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Maximum number of streams of a listener: less than its maximum number of connections.
const MAX_STREAMS: usize = 32;

/// The streams of a listener, in the order in which they began.
///
/// When there are [`MAX_STREAMS`], a client with fewer streams than another one replaces the oldest
/// stream of the client with the most. A client that would have the most then is refused instead: otherwise
/// two clients would displace each other's streams again and again, since browsers connect again.
#[derive(Clone, Default)]
pub(crate) struct Streams(Arc<Mutex<Vec<Arc<Follower>>>>);

struct Follower {
    owner: String,
    /// Notified when another client takes the place of this stream.
    displaced: Notify,
}

/// The place of a stream, until it is dropped.
pub(crate) struct Place {
    streams: Streams,
    follower: Arc<Follower>,
}

impl Streams {
    /// Begins a stream; `None` if the client has to wait for a place.
    pub fn begin(&self, owner: String) -> Option<Place> {
        let mut all = self.0.lock();
        if all.len() >= MAX_STREAMS {
            let shares: Shares<&str> = all.iter().map(|other| (other.owner.as_str(), 1)).collect();
            let largest = shares.largest();
            if shares.of(owner.as_str()) + 1 >= largest {
                return None;
            }
            let oldest = all.iter().position(|other| shares.of(other.owner.as_str()) == largest)?;
            all.remove(oldest).displaced.notify_one();
        }
        let follower = Arc::new(Follower { owner, displaced: Notify::new() });
        all.push(follower.clone());
        Some(Place { streams: self.clone(), follower })
    }
}

impl Place {
    /// Waits until another client takes the place of this stream.
    pub async fn displaced(&self) {
        self.follower.displaced.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.streams.0.lock().retain(|other| !Arc::ptr_eq(other, &self.follower));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_takes_all_streams_leaves_places_to_others() {
        let streams = Streams::default();
        let reader: Vec<_> = (0..MAX_STREAMS).map(|_| streams.begin("reader".into()).unwrap()).collect();
        assert!(streams.begin("reader".into()).is_none());
        let administrator: Vec<_> = std::iter::from_fn(|| streams.begin("administrator".into())).collect();
        assert_eq!(administrator.len(), MAX_STREAMS / 2);
        assert_eq!(streams.0.lock().len(), MAX_STREAMS);
        // Neither client displaces streams of the other client now.
        assert!(streams.begin("reader".into()).is_none() && streams.begin("administrator".into()).is_none());
        assert!(streams.begin("third".into()).is_some());
        drop(reader);
        assert!(streams.begin("reader".into()).is_some());
    }
}
