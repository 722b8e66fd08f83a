//! How HelmCharts are installed: with the machine's helm, as a user of its own, with a certificate for as long as one
//! call may take.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base::rng::Rng;
use base::time::Clock;
use cluster::helm::Config;
use cluster::helm::program::Program;
use pki::kubeconfig::Kubeconfig;
use pki::leaf::{Ca, LeafSpec, Usage};
use pki::server::Pki;

use crate::flags::roles::ServerArgs;

/// Whom helm runs as: a number that no distribution gives to anybody.
const HELM_USER: u32 = 65521;
/// Longest life of the certificate that one call of helm is given.
const LIFE: Duration = Duration::from_secs(24 * 3600);

/// Settings of the controller, if it is wanted; `url` is where this server's API is.
pub(crate) fn config(args: &ServerArgs, pki: &Arc<Pki>, clock: &Clock, rng: &Rng, url: String) -> Option<Config> {
    if args.disable_helm_controller {
        return None;
    }
    let (pki, now) = (Arc::clone(pki), clock.clone());
    let subject = LeafSpec {
        common_name: cluster::helm::USER.to_owned(),
        organizations: Vec::new(),
        sans: BTreeSet::new(),
        usage: Usage::Client,
    };
    let kubeconfig = move || {
        let issued = pki.authority(Ca::Client).issue_for(&subject, now.now(), LIFE)?;
        let kubeconfig = Kubeconfig {
            server_url: &url,
            ca_pem: pki.authority(Ca::Server).bundle(),
            cert_pem: &issued.cert_pem,
            key_pem: &issued.key_pem,
        };
        Ok(kubeconfig.text())
    };
    let layout = &args.common.state.layout;
    let user = nix::unistd::geteuid().is_root().then_some(HELM_USER);
    // The server's own folder lets nobody else in.
    let dir = if user.is_some() { layout.helm_run() } else { layout.server().helm() };
    Some(Config {
        dir,
        program: Program {
            named: args.helm_binary.clone(),
            search_path: crate::flags::environment::search_path(),
            environment: crate::flags::environment::proxies(),
            user,
        },
        kubeconfig: Arc::new(kubeconfig),
        clock: clock.clone(),
        rng: rng.clone(),
    })
}
