//! The result that plugins hand to each other and to the runtime, in the form of the version that was asked for.
//!
//! Spec: <https://www.cni.dev/docs/spec/#add-success>

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NetResult {
    pub(crate) cni_version: String,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub(crate) interfaces: Vec<Interface>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub(crate) ips: Vec<IpConfig>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub(crate) routes: Vec<Route>,
    pub(crate) dns: Dns,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Interface {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) mac: String,
    /// The namespace's path for an interface inside the container, empty for one of the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) sandbox: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct IpConfig {
    /// `4` or `6`; only before 1.0.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) interface: Option<usize>,
    pub(crate) address: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gateway: Option<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Route {
    pub(crate) dst: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gw: Option<IpAddr>,
    /// mtu, advmss, priority and others, handed on as they came.
    #[serde(flatten)]
    pub(crate) more: Map<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Dns {
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub(crate) nameservers: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) domain: String,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub(crate) search: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub(crate) options: Vec<String>,
}

impl NetResult {
    /// In the form of `version`: before 1.0.0 each address says its family.
    pub(crate) fn to_json(&self, version: &str) -> String {
        let mut result = self.clone();
        version.clone_into(&mut result.cni_version);
        for ip in &mut result.ips {
            ip.version =
                version.starts_with("0.").then(|| if ip.address.addr().is_ipv4() { "4" } else { "6" }.to_owned());
        }
        let mut text = serde_json::to_string(&result).expect("a result has string keys only");
        text.push('\n');
        text
    }

    /// Addresses inside the container: those that point at an interface with a sandbox, or at none.
    pub(crate) fn container_ips(&self) -> impl Iterator<Item = &IpConfig> {
        self.ips.iter().filter(|ip| {
            let interface = ip.interface.and_then(|idx| self.interfaces.get(idx));
            interface.is_none_or(|interface| !interface.sandbox.is_empty())
        })
    }
}

fn null_is_empty<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(input: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::<Vec<T>>::deserialize(input)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_their_family_only_before_1_0_0() {
        let result = NetResult {
            ips: vec![IpConfig {
                version: None,
                interface: Some(2),
                address: "10.42.0.5/24".parse().unwrap(),
                gateway: None,
            }],
            ..NetResult::default()
        };
        assert_eq!(
            result.to_json("1.0.0"),
            "{\"cniVersion\":\"1.0.0\",\"ips\":[{\"interface\":2,\"address\":\"10.42.0.5/24\"}],\"dns\":{}}\n"
        );
        assert!(result.to_json("0.3.1").contains(r#"{"version":"4","interface":2,"address":"10.42.0.5/24"}"#));
    }

    #[test]
    fn a_containers_addresses_are_those_of_its_own_interfaces() {
        let text = json(r#"[{"name": "bridge"}, {"name": "eth0", "sandbox": "/run/netns/x"}]"#);
        let result: NetResult = serde_json::from_str(&text).unwrap();
        let own: Vec<String> = result.container_ips().map(|ip| ip.address.to_string()).collect();
        // One that points at no interface, or at none that there is, is the container's.
        assert_eq!(own, ["10.0.0.2/24", "10.0.0.3/24", "10.0.0.4/24"]);
    }

    fn json(interfaces: &str) -> String {
        let ip = |n: u8, interface: &str| format!(r#"{{"address": "10.0.0.{n}/24"{interface}}}"#);
        let ips = [ip(1, r#", "interface": 0"#), ip(2, r#", "interface": 1"#), ip(3, ""), ip(4, r#", "interface": 9"#)];
        format!(r#"{{"cniVersion": "1.0.0", "interfaces": {interfaces}, "ips": [{}], "routes": null}}"#, ips.join(","))
    }
}
