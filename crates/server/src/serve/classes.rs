//! Learning of block classes in the background: the disks that the engine reports as changed are scanned one
//! after another.

use forebay_control::operations::Control;

pub(super) async fn learn(control: Control) {
    loop {
        let peek = control.pool().next_to_learn().await;
        let disk = peek.name();
        if let Err(e) = control.learn(peek).await {
            // The disk may be deleted by now. Guests are served without learned classes.
            tracing::info!(disk, "cannot learn the block classes of the disk: {e}");
        }
    }
}
