//! Work on all disks, divided into stretches. Between two stretches, the thread serves other requests, so
//! that a list of many disks does not delay them by its whole length.

/// Number of disks, or other elements, of a stretch.
pub const STRETCH: usize = 128;

/// Returns the elements for which `is_meant` is true.
pub async fn retain<T>(all: Vec<T>, is_meant: impl Fn(&T) -> bool) -> Vec<T> {
    let mut retained = Vec::new();
    for (i, one) in all.into_iter().enumerate() {
        if i % STRETCH == STRETCH - 1 {
            tokio::task::yield_now().await;
        }
        retained.extend(is_meant(&one).then_some(one));
    }
    retained
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn other_work_is_done_between_stretches() {
        let (turns, most) = (Cell::new(0), Cell::new(0));
        let seen = Cell::new(0);
        let all = (0..10 * STRETCH).collect::<Vec<usize>>();
        let filter = retain(all, |n| {
            // Number of elements that passed since the other work had its turn.
            seen.set(seen.get() + 1);
            most.set(most.get().max(seen.get()));
            n % 2 == 0
        });
        let other = async {
            while turns.get() < 10 {
                turns.set(turns.get() + 1);
                seen.set(0);
                tokio::task::yield_now().await;
            }
        };
        let (even, ()) = tokio::join!(filter, other);
        assert_eq!(even.len(), 5 * STRETCH);
        // `join!` changes which of the two is polled first.
        assert!(most.get() <= 2 * STRETCH, "{} elements in one stretch", most.get());
    }
}
