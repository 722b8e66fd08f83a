//! The `loopback` plugin: brings `lo` up inside the container.

use crate::error::CniError;
use crate::netlink::Net;
use crate::request::Request;
use crate::result::{Interface, IpConfig, NetResult};

pub(crate) async fn add(request: &Request) -> Result<NetResult, CniError> {
    let netns = request.netns()?;
    let net = Net::inside(netns)?;
    let lo = net.link("lo").await?.ok_or_else(|| CniError::internal("the container has no interface \"lo\""))?;
    net.set_up(lo.index).await?;
    if let Some(prev) = request.prev_result()? {
        return Ok(prev);
    }
    let mut result = NetResult {
        interfaces: vec![Interface {
            name: "lo".to_owned(),
            mac: "00:00:00:00:00:00".to_owned(),
            sandbox: netns.display().to_string(),
        }],
        ..NetResult::default()
    };
    for address in net.addresses(lo.index).await? {
        result.ips.push(IpConfig { version: None, interface: Some(0), address, gateway: None });
    }
    Ok(result)
}

pub(crate) async fn del(request: &Request) -> Result<(), CniError> {
    // The namespace goes, and lo with it; as upstream, lo is set down while the namespace is still there.
    let Some(netns) = request.netns.as_ref().filter(|path| path.exists()) else { return Ok(()) };
    let Ok(net) = Net::inside(netns) else { return Ok(()) };
    match net.link("lo").await? {
        Some(lo) => net.set_down(lo.index).await,
        None => Ok(()),
    }
}

pub(crate) async fn check(request: &Request) -> Result<(), CniError> {
    let net = Net::inside(request.netns()?)?;
    match net.link("lo").await? {
        Some(lo) if lo.up => Ok(()),
        _ => Err(CniError::internal("loopback interface is down")),
    }
}
