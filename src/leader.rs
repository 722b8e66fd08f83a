//! What must run once in a cluster: it starts when this server leads, and stops, not the process, when it leads no more.

use std::sync::Arc;

use base::task::Group;
use store::member::Leadership;
use store::store::Store;
use tokio::sync::watch;
use tracing::info;

/// Who leads: as the store says, or this server for ever where the store is somebody else's.
pub(crate) fn leadership(store: Option<&Arc<Store>>) -> watch::Receiver<Leadership> {
    match store {
        Some(store) => store.leadership(),
        None => watch::channel(Leadership { leader: Some(1), is_me: true, term: 1 }).1,
    }
}

/// Calls `begin` with a group of its own each time this server comes to lead; the group stops when it leads no more.
pub(crate) fn while_leading(mut leadership: watch::Receiver<Leadership>, group: &Group, begin: impl Fn(&Group) + Send + 'static) {
    let own = group.clone();
    group.spawn("leader", async move {
        loop {
            wait_for(&mut leadership, |now| now.is_me).await;
            let leading = own.child("leading");
            info!(term = leadership.borrow().term, "this server leads: controllers and scheduler run here");
            begin(&leading);
            wait_for(&mut leadership, |now| !now.is_me).await;
            info!("this server leads no more: controllers and scheduler stop here");
            leading.shutdown().await;
        }
    });
}

async fn wait_for(leadership: &mut watch::Receiver<Leadership>, holds: impl FnMut(&Leadership) -> bool) {
    // A sender that is gone will never say otherwise.
    let lost = leadership.wait_for(holds).await.is_err();
    if lost {
        std::future::pending::<()>().await;
    }
}
