//! One replacement of a resource at a time: a condition on a resource holds from its check until the resource
//! is replaced. Replacements of other resources do not wait: a replacement that takes a disk away from
//! initiators can last for seconds.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// The resources that are being replaced.
#[derive(Debug, Default)]
pub(super) struct Replacements(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl Replacements {
    /// Waits until no other client replaces this resource.
    pub async fn begin(&self, resource: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut all = self.0.lock();
            all.retain(|_, lock| lock.strong_count() > 0);
            let present = all.get(resource).and_then(Weak::upgrade);
            present.unwrap_or_else(|| {
                let lock = Arc::default();
                all.insert(resource.to_owned(), Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_replacement_waits_only_for_those_of_the_same_resource() {
        let all = Replacements::default();
        let first = all.begin("/a").await;
        // This would wait for ever if '/b' waited for '/a'.
        let _other = all.begin("/b").await;
        let mut second = Box::pin(all.begin("/a"));
        tokio::select! {
            biased;
            _ = &mut second => panic!("two replacements of one resource at the same time"),
            () = tokio::task::yield_now() => {}
        }
        drop(first);
        drop(second.await);
        drop(all.begin("/c").await);
        assert!(all.0.lock().len() <= 2, "locks are forgotten");
    }
}
