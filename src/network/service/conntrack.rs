//! Forgetting UDP flows whose endpoint is gone: conntrack would send a busy client's packets to the old address for as
//! long as it keeps sending. (TCP clients learn it by themselves.)

use std::net::IpAddr;

use netfilter::NetfilterError;
use netfilter::conntrack::{self, Flow};

use crate::family::Family;
use crate::service::flows::Stale;
use crate::service::rules::UdpTarget;

/// Deletes what `stale` names; says how many flows that were. `local` are the node's own addresses, where node ports
/// are. Blocks: call it outside the async threads.
pub(crate) fn forget(family: Family, stale: &Stale, local: &[IpAddr]) -> Result<usize, NetfilterError> {
    let family = match family {
        Family::V4 => conntrack::Family::V4,
        Family::V6 => conntrack::Family::V6,
    };
    conntrack::forget_udp(family, |flow| is_stale(flow, stale, local))
}

fn is_stale(flow: &Flow, stale: &Stale, local: &[IpAddr]) -> bool {
    let translated = flow.answered_by != flow.to;
    let address = UdpTarget::Address(flow.to);
    let node_port = UdpTarget::NodePort(flow.to.port());
    // A flow to some other machine's port of the same number is not ours.
    let here = local.contains(&flow.to.ip());
    let targets = [Some(address), Some(node_port).filter(|_| here || translated)];
    targets.iter().flatten().any(|target| {
        stale.endpoints.get(target).is_some_and(|gone| gone.contains(&flow.answered_by))
            || !translated && stale.untranslated.contains(target)
            || (*target == address || here)
                && stale.strangers.get(target).is_some_and(|now| !now.serving.contains(&flow.answered_by))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::rules::Answering;

    /// A flow to this destination, answered by the other.
    fn flow(to: &str, by: &str) -> Flow {
        Flow { to: to.parse().unwrap(), answered_by: by.parse().unwrap() }
    }

    #[test]
    fn a_flow_to_a_gone_endpoint_is_recognised() {
        let flow = flow("10.43.0.10:53", "10.42.0.5:5353");
        let target = UdpTarget::Address("10.43.0.10:53".parse().unwrap());
        let gone = |endpoint: &str| Stale {
            endpoints: [(target, std::sync::Arc::new([endpoint.parse().unwrap()].into()))].into(),
            ..Stale::default()
        };
        assert!(is_stale(&flow, &gone("10.42.0.5:5353"), &[]));
        assert!(!is_stale(&flow, &gone("10.42.0.6:5353"), &[]));
        assert!(!is_stale(&flow, &Stale { untranslated: [target].into(), ..Stale::default() }, &[]));
    }

    #[test]
    fn at_the_start_a_flow_to_an_endpoint_that_serves_no_more_is_forgotten() {
        let flow = flow("10.43.0.10:53", "10.42.0.5:5353");
        let target = UdpTarget::Address("10.43.0.10:53".parse().unwrap());
        let serving = |endpoint: &str| {
            let now = Answering { serving: [endpoint.parse().unwrap()].into(), ..Answering::default() };
            Stale { strangers: [(target, now.into())].into(), ..Stale::default() }
        };
        assert!(is_stale(&flow, &serving("10.42.0.6:5353"), &[]));
        assert!(!is_stale(&flow, &serving("10.42.0.5:5353"), &[]));
    }

    #[test]
    fn a_flow_to_another_machine_is_no_node_ports() {
        let stale = Stale { untranslated: [UdpTarget::NodePort(30_053)].into(), ..Stale::default() };
        let node: IpAddr = "192.168.1.2".parse().unwrap();
        assert!(!is_stale(&flow("8.8.8.8:30053", "8.8.8.8:30053"), &stale, &[node]));
        assert!(is_stale(&flow("192.168.1.2:30053", "192.168.1.2:30053"), &stale, &[node]));
    }
}
