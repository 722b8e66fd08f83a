//! The overlay: makes every pod reachable from every node, from what Node objects say (pod ranges, addresses,
//! annotations).
//!
//! Annotations are flannel's, which tools know: `flannel.alpha.coreos.com/backend-type`, `…/backend-data` (the tunnel's
//! MAC), `…/public-ip`, and `…/public-ip-overwrite` for an address that only the administrator can know. The node's own
//! address follows its Node object, so a machine that moves to another network needs no restart.

mod health;
pub(crate) mod kernel;
pub(crate) mod plan;

use std::collections::BTreeMap;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use client::informer::{Informer, Informers};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::config::{Backend, Config};
use crate::error::NetworkError;
use crate::family::Family;
use crate::overlay::kernel::{Kernel, Tunnel};
use crate::overlay::plan::{Cut, Mine, Plan};

/// A burst of Node changes is gathered this long.
const GATHER: Duration = Duration::from_millis(50);
/// After a failure everything is looked at again, this much later.
const RETRY: Duration = Duration::from_secs(5);
/// How often the kernel is compared with the plan though nothing was heard: somebody may have flushed routes.
const RECHECK: Duration = Duration::from_secs(600);

/// Starts the overlay. `node_client` may annotate this node's Node.
pub(crate) fn run(
    config: &Config,
    node_client: kube::Client,
    informers: &Informers,
    group: &Group,
) -> Result<(), NetworkError> {
    let (kernel, events) = Kernel::open(kernel::OVERLAY, &group.child("netlink"))?;
    let (nodes, api) = (informers.get::<Node>(), Api::all(node_client));
    let (end, ends) = watch::channel(None);
    health::start(config.node_name.clone(), nodes.clone(), api.clone(), ends, group);
    let overlay = Overlay { config: config.clone(), nodes, api, kernel, end, told: Vec::new() };
    group.spawn("overlay", overlay.follow(events));
    Ok(())
}

/// MTU for pods: what the uplink carries less the tunnel's header, as it is from now on. `None` while the uplink cannot
/// be found.
pub async fn pod_mtu(config: &Config, group: &Group) -> watch::Receiver<Option<u32>> {
    let (tell, told) = watch::channel(None);
    let opened = Kernel::open(kernel::OVERLAY, &group.child("mtu"));
    let Ok((kernel, mut events)) =
        opened.inspect_err(|err| warn!(err = %Chain(err), "cannot look at the uplink's MTU"))
    else {
        return told;
    };
    look_at_mtu(config, &kernel, &tell).await;
    let (config, mut ips) = (config.clone(), config.node_ips.clone());
    group.spawn("pod-mtu", async move {
        loop {
            tokio::select! {
                () = events.next() => {}
                Ok(()) = ips.changed() => {}
                () = tokio::time::sleep(RECHECK) => {}
            }
            tokio::time::sleep(GATHER).await;
            events.drain();
            look_at_mtu(&config, &kernel, &tell).await;
        }
    });
    told
}

/// An uplink that is away for a moment has the MTU that it had.
async fn look_at_mtu(config: &Config, kernel: &Kernel, tell: &watch::Sender<Option<u32>>) {
    let first = config.node_ips.borrow().first().copied();
    let Some(first) = first else { return };
    match kernel.uplink(first, config.interface.as_deref()).await {
        Ok(Some(uplink)) => {
            let mtu = Some(plan::pod_mtu(config.backend, uplink.mtu, Family::of(&uplink.ip)));
            tell.send_if_modified(|now| std::mem::replace(now, mtu) != mtu);
        }
        Ok(None) => {}
        Err(err) => debug!(err = %Chain(&err), "cannot look at the uplink's MTU"),
    }
}

struct Overlay {
    config: Config,
    nodes: Informer<Node>,
    api: Api<Node>,
    kernel: Kernel,
    /// Our end of the tunnel, for those who try it.
    end: watch::Sender<Option<health::End>>,
    /// Peers that were found odd, so that each is said once.
    told: Vec<String>,
}

impl Overlay {
    async fn follow(mut self, mut events: kernel::Events) {
        let mut changes = self.nodes.changes();
        self.nodes.synced().await;
        loop {
            let wait = match self.sync().await {
                Ok(()) => RECHECK,
                Err(err) => {
                    warn!(err = %Chain(&err), "cannot set the overlay up, trying again");
                    RETRY
                }
            };
            tokio::select! {
                () = next_relevant(&mut changes) => {}
                () = events.next() => {}
                () = tokio::time::sleep(wait) => {}
            }
            tokio::time::sleep(GATHER).await;
            changes.drain();
            events.drain();
        }
    }

    async fn sync(&mut self) -> Result<(), NetworkError> {
        let nodes = self.nodes.list();
        let Some(own) = self.nodes.get("", &self.config.node_name) else { return Ok(()) };
        let Some(mine) = Mine::of(&own, &self.config) else { return Ok(()) };
        if self.config.backend == Backend::None {
            return Ok(());
        }
        let Some(uplink) = self.kernel.uplink(mine.local_ip, self.config.interface.as_deref()).await? else {
            return Err(NetworkError::NoUplink { ip: mine.local_ip });
        };
        let mut plan = Plan::of(
            &nodes,
            &mine,
            self.config.backend,
            &uplink.networks,
            Cut { ranges: &self.config.cluster_cidrs, bits: self.config.piece_bits },
        );
        self.kernel.leave_to_others(&mut plan).await?;
        self.report(&plan);
        let (device, end) = match self.config.backend {
            Backend::Vxlan => {
                let tunnel = Tunnel {
                    local: uplink.ip,
                    uplink: uplink.index,
                    mtu: plan::pod_mtu(Backend::Vxlan, uplink.mtu, Family::of(&uplink.ip)),
                    mac: mine.mac,
                    addresses: mine.cidrs.iter().map(ipnet::IpNet::network).collect(),
                };
                let end = tunnel.addresses.first().map(|ip| health::End { ip: *ip, mtu: tunnel.mtu });
                (self.kernel.tunnel(&tunnel).await?, end)
            }
            Backend::HostGw | Backend::None => {
                self.kernel.remove_tunnel().await?;
                (uplink.index, None)
            }
        };
        self.kernel.apply(&plan, device, &self.config.service_cidrs).await?;
        self.end.send_if_modified(|now| std::mem::replace(now, end) != end);
        self.annotate(&own, &mine).await
    }

    /// Says what stands in a peer's way, once.
    fn report(&mut self, plan: &Plan) {
        for trouble in &plan.troubles {
            if !self.told.contains(trouble) {
                warn!("{trouble}");
            }
        }
        self.told.clone_from(&plan.troubles);
    }

    /// Tells the other nodes how to reach this one.
    async fn annotate(&self, own: &Node, mine: &Mine) -> Result<(), NetworkError> {
        let want = mine.annotations(self.config.backend);
        let none = BTreeMap::new();
        let have = own.metadata.annotations.as_ref().unwrap_or(&none);
        if want.iter().all(|(key, value)| have.get(key) == Some(value)) {
            return Ok(());
        }
        let patch = json!({ "metadata": { "annotations": want } });
        let patched = self.api.patch(&self.config.node_name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        patched.map_err(|source| NetworkError::Annotate { source: Box::new(source) })?;
        info!(ip = %mine.public_ip, backend = self.config.backend.name(), "the overlay is up");
        Ok(())
    }
}

/// Heartbeats of nodes change nothing here.
async fn next_relevant(changes: &mut client::informer::Changes<Node>) {
    use client::informer::Change;
    loop {
        match changes.next().await {
            Change::Modified { old, new } if plan::facts(&old) == plan::facts(&new) => {}
            _ => return,
        }
    }
}
