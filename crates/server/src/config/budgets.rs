//! Default memory budgets that fit the RAM of the host, or the limit of the control group.
//!
//! The usual defaults apply if they fit. Otherwise the budgets that are not configured share the memory that
//! the configured budgets leave, in proportion to their usual sizes. Each budget has a minimum size, below
//! which the server would be slow, so the sum can still exceed a very small limit.

/// Memory of the server in addition to its budgets: a fixed part, and this part of the budgets (see
/// "Sizing" in `docs/operations.md`).
const FIXED: u64 = 200 << 20;
const OVERHEAD_PERCENT: u64 = 10;
/// Budgets are multiples of this number of bytes.
const GRANULE: u64 = 1 << 20;

/// A memory budget, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    /// Size that the configuration sets; `None` if it sets none.
    pub configured: Option<u64>,
    /// Default size if memory suffices.
    pub usual: u64,
    /// Minimum of the default size.
    pub least: u64,
}

impl Budget {
    fn usual(&self) -> u64 {
        self.configured.unwrap_or(self.usual)
    }

    fn least(&self) -> u64 {
        self.configured.unwrap_or(self.least)
    }
}

/// The sizes of budgets for a server that may use `limit` bytes of memory; `None`: any number of bytes.
pub(super) fn fitted<const N: usize>(budgets: [Budget; N], limit: Option<u64>) -> [u64; N] {
    let room = limit.map_or(u64::MAX, |limit| limit.saturating_sub(FIXED) / (100 + OVERHEAD_PERCENT) * 100);
    let sum = |of: fn(&Budget) -> u64| budgets.iter().map(of).fold(0, u64::saturating_add);
    let (usual, least) = (sum(Budget::usual), sum(Budget::least));
    if usual <= room {
        return budgets.map(|budget| budget.usual());
    }
    let (above_least, wanted) = (room.saturating_sub(least), usual - least);
    budgets.map(|budget| {
        let part = u128::from(budget.usual() - budget.least()) * u128::from(above_least);
        let part = part.checked_div(u128::from(wanted)).unwrap_or(0) as u64;
        budget.least() + part / GRANULE * GRANULE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn budget(configured: Option<u64>) -> Budget {
        Budget { configured: configured.map(|mib| mib * MIB), usual: 1024 * MIB, least: 16 * MIB }
    }

    #[test]
    fn usual_budgets_apply_where_they_fit() {
        let budgets = [budget(None), budget(Some(3))];
        assert_eq!(fitted(budgets, None), [1024 * MIB, 3 * MIB]);
        assert_eq!(fitted(budgets, Some(1400 * MIB)), [1024 * MIB, 3 * MIB]);
    }

    #[test]
    fn budgets_that_are_not_configured_share_what_is_left() {
        let [a, b, c] = fitted([budget(None), budget(Some(100)), budget(None)], Some(640 * MIB));
        assert_eq!((a, b), (c, 100 * MIB));
        assert_eq!((a / MIB, a % MIB), (150, 0), "(640 - 200) / 1.1 = 400 MiB are for budgets");
    }

    #[test]
    fn no_budget_is_below_its_least_size() {
        for limit in [0, 1, 210 * MIB] {
            assert_eq!(fitted([budget(None), budget(Some(4096))], Some(limit)), [16 * MIB, 4096 * MIB]);
        }
        assert_eq!(fitted([budget(Some(4096))], Some(0)), [4096 * MIB], "nothing can be reduced");
    }
}
