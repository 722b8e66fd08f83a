//! The leader's duties: controllers, scheduler, add-ons, and what else runs once in a cluster.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use base::chain::Chain;
use base::task::Group;
use cluster::identity::Identities;
use controllers::settings::LocalPath;
use pki::leaf::{Ca, SUPERVISOR};
use tracing::error;

use crate::agent::images::Names;
use crate::flags::profile;
use crate::server::api::Api;
use crate::server::foundation::Base;
use crate::server::packaged::{self, Variables};
use crate::server::plan::Plan;
use crate::server::signing::Keys;
use crate::server::{charts, leader, membership};

/// Has controllers, scheduler and add-ons run here while this server leads.
pub(super) fn build(
    plan: &Plan,
    base: &Base,
    api: &Api,
    identities: &Identities,
    images: Option<&Names>,
    workers: &Group,
) {
    let storage_dir =
        plan.args.default_local_storage_path.clone().unwrap_or_else(|| plan.args.common.state.layout.volumes());
    let local_path = images.filter(|_| plan.deploys("local-storage"));
    let config = controllers::registry::Config {
        local_path: local_path
            .map(|images| LocalPath { dir: storage_dir.display().to_string(), image: images.dns.clone() }),
        cluster_cidrs: plan.ranges.cluster.clone(),
        node_masks: plan.node_masks,
        service_cidrs: plan.ranges.service.clone(),
        settings: plan.controllers.clone(),
        clock: base.clock.clone(),
        root_ca_pem: base.pki.authority(Ca::Server).bundle().to_owned(),
        balancer_reserved_ports: (!plan.args.disable.iter().any(|name| name == "servicelb"))
            .then(|| vec![plan.args.https_listen_port, plan.args.node.kubelet_port]),
        signer: Arc::new(Keys { pki: Arc::clone(&base.pki), clock: base.clock.clone() }),
    };
    let (clients, informers, store) = (api.clients.clone(), api.informers.clone(), base.embedded.clone());
    let (domain, clock, rng) = (plan.args.cluster_domain.clone(), base.clock.clone(), base.rng.clone());
    let identities = identities.clone();
    let helm = charts::config(&plan.args, &base.pki, &base.clock, &base.rng, plan.kubeconfig().url);
    let schedules = !plan.args.disable_scheduler;
    let leadership = leader::leadership(base.embedded.as_ref(), &base.storage, &plan.node_name, &base.rng, workers);
    let kept = cluster::addons::keep(
        addon_config(plan, &storage_dir, images),
        api.supervisor.clone(),
        leadership.clone(),
        workers,
    );
    if let Err(err) = kept {
        error!(err = %Chain(&err), "the folder of manifests cannot be used: no add-on is applied");
    }
    leader::while_leading(leadership, workers, move |leading| {
        controllers::registry::run(&config, clients.clone(), informers.clone(), leading);
        if schedules {
            let deps = scheduler::run::Deps {
                client: clients.for_user("system:kube-scheduler"),
                informers: informers.clone(),
                clock: clock.clone(),
                rng: rng.clone(),
            };
            scheduler::run::run(deps, leading);
        }
        let supervisor = clients.for_user(SUPERVISOR);
        if let Some(helm) = helm.clone() {
            cluster::helm::run(helm, supervisor.clone(), &informers, leading);
        }
        cluster::identity::tie_to_nodes(identities.clone(), clock.clone(), &informers, leading);
        packaged::keep_node_hosts(supervisor, &domain, &informers, leading);
        if let Some(store) = store.clone() {
            leading.spawn_short("two-servers", async move { membership::warn_of_two(&store).await });
        }
    });
}

/// The folder of manifests, which is applied while this server leads; what comes with this program is written there
/// first.
fn addon_config(plan: &Plan, storage_dir: &Path, images: Option<&Names>) -> cluster::addons::Config {
    let variables = Variables {
        cluster_dns: plan.ranges.dns.clone(),
        cluster_domain: plan.args.cluster_domain.clone(),
        storage_dir: storage_dir.display().to_string(),
        dns_image: images.map(|images| images.dns.clone()),
    };
    let mut disabled: BTreeSet<String> = plan.args.disable.iter().cloned().collect();
    let mut packaged = variables.packaged(&disabled);
    // Without the profile, what it brought goes.
    match plan.args.common.profile {
        Some(_) => packaged.push(packaged::of_profile()),
        None => drop(disabled.insert(profile::MANIFEST.to_owned())),
    }
    cluster::addons::Config {
        dir: plan.args.common.state.layout.server().manifests(),
        server: plan.node_name.clone(),
        packaged,
        disabled,
    }
}
