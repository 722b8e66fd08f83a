//! The gate behind which leaders work: controllers run while it is open and stop, not the process, when it closes.

use tokio::sync::watch;

/// Told by whoever knows who leads; clones see the same.
#[derive(Clone, Debug)]
pub struct Gate(watch::Receiver<bool>);

impl Gate {
    /// A gate and the handle that opens and closes it.
    pub fn new(open: bool) -> (watch::Sender<bool>, Gate) {
        let (sender, receiver) = watch::channel(open);
        (sender, Gate(receiver))
    }

    /// Waits until this process leads. Never resolves once the handle is gone while closed.
    pub async fn opened(&mut self) {
        if self.0.wait_for(|open| *open).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until this process leads no more.
    pub async fn closed(&mut self) {
        // A dropped handle means that the process ends: that is not a lost leadership.
        if self.0.wait_for(|open| !*open).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
