//! `--kube-proxy-arg`: upstream's flags of kube-proxy. Each acts, or asks for what is so, or is refused by name;
//! `table` has all of them.

pub mod table;

use base::flags::{self, Given, Refusal, Verdict};
use ipnet::IpNet;

use crate::settings::table::TABLE;

/// Settings that may be chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// `nodeport-addresses`: node ports answer under addresses of the machine in these ranges; none are all.
    pub node_port_addresses: Vec<IpNet>,
    /// Flags that were taken and have nothing to tune here, and why.
    pub moot: Vec<(String, &'static str)>,
}

/// A flag of kube-proxy's that cannot be taken.
#[derive(Debug, thiserror::Error)]
#[error("--kube-proxy-arg={name}")]
pub struct FlagError {
    name: String,
    source: Fault,
}

/// The fault of a flag or of its value.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Flag(#[from] Refusal),
    #[error("{0:?} is not an address range such as 10.0.0.0/8")]
    Range(String),
    #[error("a node's primary addresses are not followed; name the ranges that they are in, such as 10.0.0.0/8")]
    Primary,
    #[error("feature gates are those of --kube-apiserver-arg; remove it")]
    Gates,
}

impl Settings {
    /// Reads `name=value` texts, with or without dashes.
    ///
    /// Errors: the flag that cannot be taken.
    pub fn parse(args: &[String]) -> Result<Settings, FlagError> {
        let mut out = Settings::default();
        for arg in args {
            let given = Given::of(arg);
            let refused = |source| FlagError { name: given.name.to_owned(), source };
            match flags::judge(TABLE, given).map_err(|err| refused(err.into()))? {
                Verdict::Follow => out.set(given).map_err(refused)?,
                Verdict::Holds => {}
                Verdict::Moot(why) => out.moot.push((given.name.to_owned(), why)),
            }
        }
        Ok(out)
    }

    fn set(&mut self, Given { name, value }: Given<'_>) -> Result<(), Fault> {
        if name != "nodeport-addresses" {
            return Err(Fault::Gates);
        }
        for range in value.split(',').map(str::trim) {
            if range == "primary" {
                return Err(Fault::Primary);
            }
            let range: IpNet = range.parse().map_err(|_| Fault::Range(range.to_owned()))?;
            self.node_port_addresses.push(range.trunc());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;

    use super::*;

    fn parse(args: &[&str]) -> Result<Settings, String> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        Settings::parse(&args).map_err(|err| Chain(&err).to_string())
    }

    #[test]
    fn a_flag_acts_or_asks_for_what_is_so_or_is_refused() {
        let ranges =
            parse(&["nodeport-addresses=10.1.2.3/8,fd00::/64", "--nodeport-addresses=192.168.0.0/16"]).unwrap();
        assert_eq!(
            ranges.node_port_addresses.iter().map(IpNet::to_string).collect::<Vec<_>>(),
            ["10.0.0.0/8", "fd00::/64", "192.168.0.0/16"]
        );
        assert_eq!(parse(&["proxy-mode=nftables", "metrics-bind-address=127.0.0.1:10249"]), Ok(Settings::default()));
        for (arg, part) in [
            ("proxy-mode=iptables", "proxy-mode: only nftables is taken: the proxy is kedge's own"),
            ("proxy-mode=ipvs", "proxy-mode: only nftables is taken"),
            ("ipvs-scheduler=rr", "ipvs-scheduler: the proxy is in nftables, not in ipvs; remove it"),
            ("nodeport-addresses=primary", "a node's primary addresses are not followed"),
            ("nodeport-addresses=", "nodeport-addresses: \"\" is not an address range such as 10.0.0.0/8"),
            ("metrics-bind-address=0.0.0.0:10249", "only 127.0.0.1:10249 is taken"),
            ("odd=1", "--kube-proxy-arg=odd: unknown flag"),
        ] {
            let said = parse(&[arg]).unwrap_err();
            assert!(said.contains(part), "{said}");
        }
    }
}
