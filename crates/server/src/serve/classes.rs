//! Learning classes of blocks by itself: whatever the engine says has changed, one disk after the other.

use crate::control::Control;

pub(super) async fn learn(control: Control) {
    loop {
        let peek = control.pool().next_to_learn().await;
        let disk = peek.name();
        if let Err(e) = control.learn(peek).await {
            // It may be gone by now, and guests are served without.
            tracing::info!(disk, "the classes of its blocks were not learned: {e}");
        }
    }
}
