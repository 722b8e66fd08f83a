//! Whether the images of the folder are in containerd.

use std::time::Duration;

use tokio::sync::watch;

/// A pod waits so long for the images that were there at start, then it is on its own.
pub(crate) const WAIT: Duration = Duration::from_secs(600);

/// Whether what was in the folder at start is in containerd.
pub(crate) struct Ready(pub(super) watch::Sender<bool>);

impl Default for Ready {
    fn default() -> Ready {
        Ready(watch::channel(false).0)
    }
}

impl Ready {
    /// Waits until the folder as it was at start is imported. Returns whether there was anything to wait for.
    pub(crate) async fn wait(&self) -> bool {
        let mut ready = self.0.subscribe();
        if *ready.borrow() {
            return false;
        }
        let _a_pod_is_not_held_for_ever = tokio::time::timeout(WAIT, ready.wait_for(|ready| *ready)).await;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn a_pod_waits_for_the_images_until_they_are_in_and_never_again() {
        let ready = Ready::default();
        let mut waits = pin!(ready.wait());
        assert!(poll!(waits.as_mut()).is_pending());
        ready.0.send_replace(true);
        assert!(waits.await, "there was something to wait for");
        assert!(!ready.wait().await);
    }
}
