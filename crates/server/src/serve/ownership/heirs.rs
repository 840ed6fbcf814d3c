//! The servers that could take over a pool in Ceph, for metrics and administrators.

use std::time::Duration;

use forebay_control::operations::Control;
use forebay_store::rados::StandbyWatch;

/// Longer than a standby that lives needs to renew its announcement.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Watches the standbys until the task is aborted.
pub(in crate::serve) async fn watch(mut standbys: StandbyWatch, control: Control) {
    loop {
        // While the cluster does not answer, the last list remains.
        if let Ok(Some(found)) = standbys.look().await {
            control.observe(|it| {
                if let Some(held) = &mut it.held {
                    held.standbys = Some(found);
                }
            });
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
