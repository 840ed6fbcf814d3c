//! The statistics of desktops in the API.

use forebay_api::DesktopsView;
use forebay_engine::DesktopStats;

use super::View;

impl View for DesktopStats {
    type View = DesktopsView;

    fn view(self) -> DesktopsView {
        DesktopsView {
            count: self.count,
            cached_bytes: self.cached_bytes,
            budget_bytes: self.budget,
            overflow: self.overflow.view(),
        }
    }
}
