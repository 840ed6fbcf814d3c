//! The appends of a group that have begun and not ended.

use forebay_store::{BoxFuture, Completion, IoBuf, StoreError};
use futures_util::future::{Either, join_all, select};

/// Appends that are under way.
#[derive(Default)]
pub(super) struct Appends(Vec<Watched>);

struct Watched {
    append: Completion<IoBuf>,
    overdue: BoxFuture<'static, ()>,
}

impl Watched {
    async fn end(self) -> Result<IoBuf, StoreError> {
        match select(self.append, self.overdue).await {
            Either::Left((ended, _)) => ended,
            Either::Right(_) => Err(StoreError::Overdue),
        }
    }
}

impl Appends {
    /// An append that has begun: see [`Appends::add`].
    pub fn one(append: Completion<IoBuf>, overdue: BoxFuture<'static, ()>) -> Appends {
        Appends(vec![Watched { append, overdue }])
    }

    /// Adds an append that has begun. When `overdue` completes, the group need not wait for this append any
    /// longer.
    pub fn add(&mut self, append: Completion<IoBuf>, overdue: BoxFuture<'static, ()>) {
        self.0.push(Watched { append, overdue });
    }

    /// Waits for all appends, even if one fails, since no append of an abandoned group may continue, except
    /// an overdue one. Passes their buffers to `reuse`.
    ///
    /// # Errors
    /// [`StoreError::Overdue`] if the wait for an append was abandoned, and none failed for another reason
    /// than a lack of room; [`StoreError::Full`] only if no append failed otherwise.
    pub async fn settle(&mut self, mut reuse: impl FnMut(IoBuf)) -> Result<(), StoreError> {
        let mut settled = Ok(());
        for ended in join_all(self.0.drain(..).map(Watched::end)).await {
            match ended {
                Ok(buf) => reuse(buf),
                Err(e) => settled = Err(graver(settled.err(), e)),
            }
        }
        settled
    }
}

/// Returns the graver one of two failures.
fn graver(known: Option<StoreError>, other: StoreError) -> StoreError {
    match known {
        None | Some(StoreError::Full) => other,
        Some(StoreError::Overdue) if other != StoreError::Full => other,
        Some(known) => known,
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    const FAILED: StoreError = StoreError::Fenced;

    fn settled(ends: &[Option<StoreError>]) -> Result<(), StoreError> {
        let mut appends = Appends::default();
        for end in ends {
            match end.clone() {
                Some(StoreError::Overdue) => appends.add(Completion::of(pending()), Box::pin(ready(()))),
                end => {
                    let result = end.map_or(Ok(IoBuf::zeroed(4096)), Err);
                    appends.add(Completion::ended(result), Box::pin(pending()));
                }
            }
        }
        let mut reused = 0;
        let settled = futures_util::FutureExt::now_or_never(appends.settle(|_| reused += 1));
        assert_eq!(reused, ends.iter().filter(|end| end.is_none()).count());
        settled.expect("it waits for nothing")
    }

    #[test]
    fn the_gravest_failure_is_reported() {
        let (full, overdue) = (Some(StoreError::Full), Some(StoreError::Overdue));
        assert_eq!(settled(&[None, None]), Ok(()));
        for (ends, expected) in [
            ([None, full.clone()], StoreError::Full),
            ([None, overdue.clone()], StoreError::Overdue),
            ([full.clone(), overdue.clone()], StoreError::Overdue),
            ([full, Some(FAILED)], FAILED),
            ([overdue, Some(FAILED)], FAILED),
        ] {
            assert_eq!(settled(&ends), Err(expected.clone()), "{ends:?}");
            let [a, b] = ends;
            assert_eq!(settled(&[b, a]), Err(expected));
        }
    }
}
