//! A server's flags after they were checked: addresses parsed, defaults derived.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use apiserver::arguments::Arguments;
use base::chain::Chain;
use base::rng::Rng;
use base::task::Group;
use cluster::protocol::Settings;
use controllers::settings::masks::NodeMasks;
use tokio::sync::watch;
use tracing::warn;

use crate::agent;
use crate::agent::config::NodeFlags;
use crate::agent::host::{self, HostError};
use crate::flags::ranges::{self, Asked, Ranges};
use crate::flags::roles::ServerArgs;
use crate::flags::token::Given;
use crate::flags::{claims, environment};
use crate::server::certificates::Kubeconfig;
use crate::server::error::ServerError;
use crate::server::{joining, packaged};

/// The flags after checking: addresses parsed, defaults derived.
pub(super) struct Plan {
    pub(super) args: ServerArgs,
    pub(super) node_name: String,
    pub(super) node_ips: Vec<IpAddr>,
    pub(super) advertise: IpAddr,
    pub(super) bind: IpAddr,
    pub(super) ranges: Ranges,
    pub(super) kubeconfig_group: Option<u32>,
    pub(super) node_flags: NodeFlags,
    pub(super) apiserver: Arguments,
    pub(super) controllers: controllers::settings::Settings,
    pub(super) node_masks: NodeMasks,
}

impl Plan {
    pub(super) fn of(mut args: ServerArgs) -> Result<Plan, ServerError> {
        if !args.disable_agent && !nix::unistd::geteuid().is_root() {
            return Err(ServerError::NotRoot);
        }
        let node_name = host::full_node_name(&args.node, &args.common.state.layout, &Rng::from_os())?;
        let (cluster_cidr, service_cidr) = (&args.cluster_cidr.join(","), &args.service_cidr.join(","));
        let ranges = Ranges::of(Asked { cluster_cidr, service_cidr }, &args.cluster_dns)?;
        let node_ips = host::node_ips(&args.node, &ranges::families(&ranges.cluster))?;
        let kubeconfig_group = args.write_kubeconfig_group.as_deref().map(host::group_id).transpose();
        let kubeconfig_group = kubeconfig_group.map_err(ServerError::KubeconfigGroup)?;
        let controllers = controllers::settings::Settings::parse(&args.kube_controller_manager_arg)?;
        let node_masks = controllers.masks.of(&ranges.cluster)?;
        let moot = scheduler::settings::check(&args.kube_scheduler_arg)?;
        for (flag, why) in controllers.moot.iter().chain(&moot) {
            warn!(flag, why, "a flag of the controller manager's or the scheduler's has nothing to tune");
        }
        args.store.check()?;
        claims::check(&args)?;
        args.disable = packaged::disabled(&args.disable, &args.common.state.layout.server().manifests())?;
        // Everybody who may list processes sees it.
        if let Some(flag) = environment::secret_on_command_line() {
            warn!(
                flag,
                "a secret stands on the command line, which every user sees: put it into the configuration file"
            );
        }
        Ok(Plan {
            node_flags: NodeFlags::of(&args.node, &args.common.state.layout)?,
            node_name,
            advertise: args
                .advertise_address
                .or(args.node.node_external_ip.first().copied())
                .or(node_ips.first().copied())
                .ok_or(HostError::NoAddress)?,
            node_ips,
            bind: args.bind_address.unwrap_or_else(|| host::any_address(ranges::widest(&ranges.cluster))),
            ranges,
            kubeconfig_group,
            apiserver: Arguments::parse(&args.kube_apiserver_arg)
                .map_err(|err| ServerError::Argument(Chain(&err).to_string()))?,
            controllers,
            node_masks,
            args,
        })
    }

    /// This machine's addresses, and the one that others reach it by, from now on: those that no flag names follow the
    /// machine.
    pub(super) fn follow_ips(&self, group: &Group) -> (watch::Receiver<Vec<IpAddr>>, watch::Receiver<IpAddr>) {
        let (tell, advertised) = watch::channel(self.advertise);
        if !self.args.node.node_ip.is_empty() {
            return (agent::addresses::fixed(self.node_ips.clone(), group), advertised);
        }
        let node_ips = agent::addresses::follow(self.node_ips.clone(), host::ip_of_default_route, group);
        if self.node_ips.first() == Some(&self.advertise) {
            let mut changes = node_ips.clone();
            group.spawn("advertised-address", async move {
                while changes.changed().await.is_ok() {
                    let now = changes.borrow_and_update().first().copied();
                    now.map(|now| tell.send_replace(now));
                }
                std::future::pending::<()>().await;
            });
        }
        (node_ips, advertised)
    }

    /// `host:port` where other servers and nodes reach this one.
    pub(super) fn address(&self) -> String {
        SocketAddr::new(self.advertise, self.advertise_port()).to_string()
    }

    pub(super) fn advertise_port(&self) -> u16 {
        self.args.advertise_port.unwrap_or(self.args.https_listen_port)
    }

    pub(super) fn joining(&self) -> joining::Plan<'_> {
        joining::Plan {
            url: self.args.server.as_deref(),
            token: Given {
                flag: "token",
                text: self.args.token.as_deref(),
                file: self.args.token_file.as_deref(),
                own: false,
            },
            layout: &self.args.common.state.layout,
            node_name: &self.node_name,
            node_ips: &self.node_ips,
            address: self.address(),
            external: !self.args.store.datastore_endpoint.is_empty(),
            flags: self.cluster_flags(),
        }
    }

    /// Whether a packaged component is wanted.
    pub(super) fn deploys(&self, component: &str) -> bool {
        !self.args.disable.iter().any(|name| name == component)
    }

    /// Settings of the cluster, for nodes that join.
    pub(super) fn settings(&self) -> Settings {
        Settings {
            cluster_cidrs: self.ranges.cluster.clone(),
            service_cidrs: self.ranges.service.clone(),
            cluster_dns: self.ranges.dns.clone(),
            cluster_domain: self.args.cluster_domain.clone(),
            options: [
                ("flannel-backend", self.args.flannel_backend.clone()),
                ("flannel-external-ip", self.args.flannel_external_ip.to_string()),
                ("flannel-ipv6-masq", self.args.flannel_ipv6_masq.to_string()),
                ("disable-network-policy", self.args.disable_network_policy.to_string()),
                ("disable-kube-proxy", self.args.disable_kube_proxy.to_string()),
            ]
            .into_iter()
            .chain(self.mask_options())
            .map(|(flag, value)| (flag.to_owned(), value))
            .collect(),
        }
    }

    /// Said only where they are not the usual ones: servers of an earlier version know none.
    fn mask_options(&self) -> impl Iterator<Item = (&'static str, String)> {
        let NodeMasks { v4, v6 } = self.node_masks;
        let sizes = [("node-cidr-mask-size-ipv4", v4.to_string()), ("node-cidr-mask-size-ipv6", v6.to_string())];
        sizes.into_iter().filter(move |_| self.node_masks != NodeMasks::default())
    }

    /// Flags that must be the same on all servers, with their values.
    pub(super) fn cluster_flags(&self) -> BTreeMap<String, String> {
        let args = &self.args;
        let (first, last) = args.service_node_port_range;
        let mut flags = self.settings().options;
        flags.extend(
            [
                ("cluster-cidr", ranges::joined(&self.ranges.cluster)),
                ("service-cidr", ranges::joined(&self.ranges.service)),
                ("cluster-dns", ranges::joined(&self.ranges.dns)),
                ("cluster-domain", args.cluster_domain.clone()),
                ("service-node-port-range", format!("{first}-{last}")),
                ("https-listen-port", args.https_listen_port.to_string()),
                ("disable", args.disable.join(",")),
                ("disable-scheduler", args.disable_scheduler.to_string()),
                ("datastore-endpoint", args.store.endpoints()),
            ]
            .map(|(flag, value)| (flag.to_owned(), value)),
        );
        flags
    }

    pub(super) fn kubeconfig(&self) -> Kubeconfig {
        let host = if self.bind.is_unspecified() { IpAddr::from([127, 0, 0, 1]) } else { self.bind };
        let url = format!("https://{}", SocketAddr::new(host, self.args.https_listen_port));
        Kubeconfig {
            path: self.args.write_kubeconfig.clone(),
            mode: self.args.write_kubeconfig_mode,
            group: self.kubeconfig_group,
            url,
        }
    }
}
