//! News of the machine's addresses, as the kernel tells them: a lease that ran out, another network, a cable that was
//! plugged.

use std::time::Duration;

use base::task::Group;

use crate::error::NetworkError;
use crate::overlay::kernel::{ADDRESSES, Events, Kernel};

/// Changes come in bursts: an address goes, another comes, then its routes.
const GATHER: Duration = Duration::from_millis(300);

/// News of the kernel about addresses.
pub struct News(Events);

impl News {
    /// Begins to listen; the task that reads lives in `group`. Errors: no netlink socket.
    pub fn listen(group: &Group) -> Result<News, NetworkError> {
        let (_kernel, events) = Kernel::open(ADDRESSES, &group.child("addresses"))?;
        Ok(News(events))
    }

    /// Waits until some address came or went, and a moment for what follows it. Cancel safe: a burst that was begun is
    /// news again.
    pub async fn next(&mut self) {
        self.0.next().await;
        tokio::time::sleep(GATHER).await;
        self.0.drain();
    }
}
