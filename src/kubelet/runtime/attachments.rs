//! Attachments of sandboxes to our network, as the disk knows them: libcni's records and the leases of addresses. A
//! runtime that ends while it makes a sandbox, by a power cut or an uninstall, leaves some that no sandbox has: nobody
//! calls CNI DEL for them then but this.
//!
//! The folder of records is the machine's: other runtimes, and other kedges, have theirs in it. Ours are those of a
//! network that keeps its leases where our configuration says.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use base::program;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Where libcni keeps its records, whoever calls it: `NETWORK-CONTAINER-INTERFACE`.
pub const RECORDS: &str = "/var/lib/cni/results";

/// The network that containerd gives each sandbox beside ours. It has no address, and goes with the namespace.
const LOOPBACK: &str = "cni-loopback";
/// One plugin takes one attachment away within this; the slowest waits 15 s for the network's rules.
const DEL_LIMIT: Duration = Duration::from_secs(60);

/// Where things are.
#[derive(Clone, Debug)]
pub struct Places {
    /// Records of all networks of the machine, normally [`RECORDS`].
    pub records: PathBuf,
    /// Holds our network's configuration, a `.conflist`.
    pub conf_dir: PathBuf,
    /// Holds our plugins.
    pub plugin_dir: PathBuf,
}

/// Why an attachment did not go.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// The plugin cannot be run, or takes too long.
    #[error("the network plugin {plugin} does not run")]
    Run {
        /// Its name.
        plugin: String,
        /// Why.
        source: io::Error,
    },
    /// The plugin refused.
    #[error("the network plugin {plugin} says: {said}")]
    Refused {
        /// Its name.
        plugin: String,
        /// Its words.
        said: String,
    },
    /// A namespace, a lease or a record stays.
    #[error("cannot remove {}", path.display())]
    Remove {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Our network: a list of plugins.
#[derive(Clone, Debug, PartialEq)]
struct Network {
    conf: Value,
    name: String,
    /// Where addresses that are taken are written down.
    ipam_dir: PathBuf,
}

impl Network {
    fn parse(text: &[u8]) -> Option<Network> {
        let conf: Value = serde_json::from_slice(text).ok()?;
        let name = conf.get("name")?.as_str()?.to_owned();
        let ipam_dir = conf
            .get("plugins")?
            .as_array()?
            .iter()
            .find_map(|plugin| plugin.pointer("/ipam/dataDir")?.as_str())?
            .into();
        Some(Network { conf, name, ipam_dir })
    }

    /// The one that containerd goes by; none before the node has had a range of addresses.
    fn read(conf_dir: &Path) -> Option<Network> {
        let files = fs::read_dir(conf_dir).ok()?.flatten().map(|entry| entry.path());
        let mut lists: Vec<PathBuf> =
            files.filter(|path| path.extension().is_some_and(|extension| extension == "conflist")).collect();
        lists.sort();
        lists.iter().find_map(|path| Network::parse(&fs::read(path).ok()?))
    }

    fn leases(&self) -> PathBuf {
        self.ipam_dir.join(&self.name)
    }
}

/// An attachment as libcni writes it down.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    container_id: String,
    /// Base64 of the network's configuration as it was.
    config: String,
    if_name: String,
    network_name: String,
    /// Versions before 1.2 tell it in the result only.
    #[serde(default)]
    netns: String,
    cni_args: Option<Vec<(String, String)>>,
    capability_args: Option<Map<String, Value>>,
    result: Option<Value>,
}

impl Record {
    fn network(&self) -> Option<Network> {
        Network::parse(&STANDARD.decode(&self.config).ok()?)
    }

    fn pod_uid(&self) -> Option<&str> {
        let uid = self.cni_args.iter().flatten().find(|(key, _)| key == "K8S_POD_UID").map(|(_, uid)| uid.as_str());
        uid.filter(|uid| is_id(uid))
    }

    fn netns(&self) -> Option<PathBuf> {
        let sandboxes = self.result.iter().filter_map(|result| result.get("interfaces")?.as_array()).flatten();
        let mut all = std::iter::once(self.netns.as_str())
            .chain(sandboxes.filter_map(|interface| interface.get("sandbox")?.as_str()));
        all.find(|path| !path.is_empty()).map(PathBuf::from)
    }
}

/// One sandbox's attachment to our network: all of it, or what had come to the disk of it.
#[derive(Debug)]
pub struct Attachment {
    /// Id of the sandbox.
    pub sandbox: String,
    /// `None` if nothing is known but a namespace.
    ifname: Option<String>,
    network: Network,
    args: String,
    capabilities: Map<String, Value>,
    result: Option<Value>,
    netns: Option<PathBuf>,
    records: Vec<PathBuf>,
}

/// Everything that is recorded of our network. Where nothing but a pod's uid tells whose a namespace is, `has_pod` is
/// asked whether the kubelet has that pod.
pub fn recorded(places: &Places, has_pod: &dyn Fn(&str) -> bool) -> Vec<Attachment> {
    let Some(ours) = Network::read(&places.conf_dir) else { return Vec::new() };
    let mut all: BTreeMap<String, Attachment> = BTreeMap::new();
    let bare = |sandbox: &str| Attachment {
        sandbox: sandbox.to_owned(),
        ifname: None,
        network: ours.clone(),
        args: String::new(),
        capabilities: Map::new(),
        result: None,
        netns: None,
        records: Vec::new(),
    };
    for (sandbox, ifname) in leases(&ours.leases()) {
        all.entry(sandbox.clone()).or_insert_with(|| bare(&sandbox)).ifname = Some(ifname);
    }
    let files: Vec<PathBuf> =
        fs::read_dir(&places.records).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    // One that a power cut has torn tells nothing: there is its lease.
    let records = files.iter().filter_map(|path| serde_json::from_slice::<Record>(&fs::read(path).ok()?).ok());
    let (loopbacks, others): (Vec<Record>, Vec<Record>) =
        records.filter(|record| is_id(&record.container_id)).partition(|record| record.network_name == LOOPBACK);
    for record in others {
        let network =
            record.network().filter(|network| (&network.name, &network.ipam_dir) == (&ours.name, &ours.ipam_dir));
        let Some(network) = network.filter(|network| network.name == record.network_name) else { continue };
        let attachment = all.entry(record.container_id.clone()).or_insert_with(|| bare(&record.container_id));
        let args: Vec<String> = record.cni_args.iter().flatten().map(|(key, value)| format!("{key}={value}")).collect();
        attachment.netns = record.netns();
        attachment.network = network;
        attachment.args = args.join(";");
        attachment.capabilities = record.capability_args.unwrap_or_default();
        attachment.result = record.result;
        attachment.ifname = Some(record.if_name);
    }
    for record in loopbacks {
        if all.contains_key(&record.container_id) || record.pod_uid().is_some_and(has_pod) {
            let attachment = all.entry(record.container_id.clone()).or_insert_with(|| bare(&record.container_id));
            attachment.netns = attachment.netns.take().or_else(|| record.netns());
        }
    }
    for attachment in all.values_mut() {
        let starts = [&ours.name, LOOPBACK].map(|network| format!("{network}-{}-", attachment.sandbox));
        let is_its = |path: &&PathBuf| {
            path.file_name().is_some_and(|name| starts.iter().any(|start| name.to_string_lossy().starts_with(start)))
        };
        attachment.records = files.iter().filter(is_its).cloned().collect();
    }
    all.into_values().collect()
}

/// Sandbox and interface of each address that is taken, as the plugin `host-local` writes them.
fn leases(dir: &Path) -> Vec<(String, String)> {
    let files = lease_files(dir).into_iter().filter_map(|path| fs::read_to_string(path).ok());
    let parts = files.filter_map(|text| {
        text.trim().split_once("\r\n").map(|(sandbox, ifname)| (sandbox.to_owned(), ifname.to_owned()))
    });
    parts.filter(|(sandbox, _)| is_id(sandbox)).collect()
}

fn lease_files(dir: &Path) -> Vec<PathBuf> {
    let is_address = |name: &str| name.parse::<std::net::IpAddr>().is_ok();
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_address)).map(|entry| entry.path()).collect()
}

/// As the specification has ids of containers; they become parts of names of files.
fn is_id(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

impl Attachment {
    /// Calls CNI DEL, then removes the namespace, the leases and the records. Blocks its thread; done again, it does
    /// what is left.
    ///
    /// Errors: a plugin fails, and all stays recorded; or something cannot be removed.
    pub fn end(&self, places: &Places) -> Result<(), EndError> {
        let plugins = self.network.conf.get("plugins").and_then(Value::as_array).into_iter().flatten();
        if let Some(ifname) = &self.ifname {
            plugins.rev().try_for_each(|plugin| self.del(places, plugin, ifname))?;
        }
        self.forget()
    }

    /// Removes the namespace, the leases and the records without a word to the plugins.
    ///
    /// Errors: one of them cannot be removed.
    pub fn forget(&self) -> Result<(), EndError> {
        if let Some(netns) = &self.netns {
            remove_netns(netns)?;
        }
        let of_this = |path: &PathBuf| {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.trim().split_once("\r\n").is_some_and(|(sandbox, _)| sandbox == self.sandbox)
        };
        let leases = lease_files(&self.network.leases()).into_iter().filter(of_this);
        // The records last: what is still recorded is found again.
        leases.chain(self.records.iter().cloned()).try_for_each(|path| remove(&path))
    }

    fn del(&self, places: &Places, plugin: &Value, ifname: &str) -> Result<(), EndError> {
        let name = || name_of(plugin).to_owned();
        let said = self.run(places, plugin, ifname).map_err(|source| EndError::Run { plugin: name(), source })?;
        if said.status.success() {
            return Ok(());
        }
        let text = [said.stdout, said.stderr].map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()).concat();
        Err(EndError::Refused { plugin: name(), said: text })
    }

    fn run(&self, places: &Places, plugin: &Value, ifname: &str) -> io::Result<Output> {
        let name = name_of(plugin);
        if !is_id(name) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it has no plain name"));
        }
        let mut config = plugin.clone();
        let capabilities = plugin.get("capabilities").and_then(Value::as_object).into_iter().flatten();
        let asked = capabilities.filter(|(_, wanted)| **wanted == Value::Bool(true)).map(|(name, _)| name);
        let given: Map<String, Value> =
            asked.filter_map(|name| Some((name.clone(), self.capabilities.get(name)?.clone()))).collect();
        config["name"] = json!(self.network.name);
        config["cniVersion"] = self.network.conf.get("cniVersion").cloned().unwrap_or_else(|| json!("1.0.0"));
        config["runtimeConfig"] = Value::Object(given);
        if let Some(result) = &self.result {
            config["prevResult"] = result.clone();
        }
        let mut command = Command::new(places.plugin_dir.join(name));
        command.env("CNI_COMMAND", "DEL").env("CNI_CONTAINERID", &self.sandbox).env("CNI_IFNAME", ifname);
        command.env("CNI_ARGS", &self.args).env("CNI_PATH", &places.plugin_dir);
        // A namespace that is gone is told by an empty name.
        let netns = self.netns.as_ref().filter(|path| path.exists());
        command.env("CNI_NETNS", netns.map(|path| path.as_os_str().to_owned()).unwrap_or_default());
        program::output(&mut command, config.to_string().as_bytes(), DEL_LIMIT)
    }
}

/// The name of a plugin's program.
fn name_of(plugin: &Value) -> &str {
    plugin.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// Removes the name of a network namespace, with which the namespace goes once no process is in it. Names that
/// containerd did not give are let be.
///
/// Errors: it is no mount and no file that can be removed.
pub fn remove_netns(path: &Path) -> Result<(), EndError> {
    let Some(path) = is_netns_of_pods(path).then(|| fs::canonicalize(path).ok()).flatten() else { return Ok(()) };
    match umount2(&path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        // Of a file that is no mount the kernel says EINVAL.
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => remove(&path),
        Err(errno) => Err(EndError::Remove { path, source: errno.into() }),
    }
}

/// `/run/netns/cni-…`, also by its old name.
fn is_netns_of_pods(path: &Path) -> bool {
    let named = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cni-"));
    named && path.parent().is_some_and(|dir| dir == Path::new("/run/netns") || dir == Path::new("/var/run/netns"))
}

fn remove(path: &Path) -> Result<(), EndError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(EndError::Remove { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    struct Machine {
        dir: tempfile::TempDir,
        places: Places,
    }

    /// Notes what it is asked.
    const PLUGIN: &str = "#!/bin/sh\n\
        echo \"${0##*/} $CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME [$CNI_NETNS] $CNI_ARGS $(cat)\" >>DIR/told\n";

    impl Machine {
        fn new() -> Machine {
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name);
            let places = Places { records: at("results"), conf_dir: at("net.d"), plugin_dir: at("bin") };
            for path in [&places.records, &places.conf_dir, &places.plugin_dir, &at("leases/kedge")] {
                fs::create_dir_all(path).unwrap();
            }
            for name in ["bridge", "portmap"] {
                let path = places.plugin_dir.join(name);
                fs::write(&path, PLUGIN.replace("DIR", &dir.path().display().to_string())).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            }
            let machine = Machine { dir, places };
            fs::write(machine.places.conf_dir.join("10-kedge.conflist"), machine.conf("leases").to_string()).unwrap();
            machine
        }

        fn conf(&self, leases: &str) -> Value {
            json!({"cniVersion": "1.0.0", "name": "kedge", "plugins": [
                {"type": "bridge", "ipam": {"type": "host-local", "dataDir": self.dir.path().join(leases)}},
                {"type": "portmap", "capabilities": {"portMappings": true}}]})
        }

        fn record(&self, network: &str, sandbox: &str, conf: &Value, uid: &str) {
            let ifname = if network == LOOPBACK { "lo" } else { "eth0" };
            let record = json!({"kind": "cniCacheV1", "containerId": sandbox,
                "config": STANDARD.encode(conf.to_string()), "ifName": ifname,
                "networkName": network, "cniArgs": [["K8S_POD_UID", uid]],
                "capabilityArgs": {"portMappings": [{"hostPort": 80}], "dns": {}},
                "result": {"interfaces": [{"name": "veth1"}, {"name": ifname, "sandbox": "/var/run/netns/cni-gone"}]}});
            fs::write(self.places.records.join(format!("{network}-{sandbox}-{ifname}")), record.to_string()).unwrap();
        }

        fn lease(&self, address: &str, sandbox: &str) {
            fs::write(self.dir.path().join("leases/kedge").join(address), format!("{sandbox}\r\neth0")).unwrap();
        }

        fn left(&self, dir: &str) -> Vec<String> {
            let names = fs::read_dir(self.dir.path().join(dir))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.collect();
            names.sort();
            names
        }
    }

    #[test]
    fn what_nobody_has_goes_through_the_plugins_and_what_is_others_stays() {
        let machine = Machine::new();
        let (ours, foreign) = (machine.conf("leases"), machine.conf("other"));
        machine.record("kedge", "dead", &ours, "u1");
        machine.record(LOOPBACK, "dead", &json!({}), "u1");
        machine.lease("10.42.0.7", "dead");
        // Another kedge's, another network's, and the loopback of another runtime's sandbox.
        machine.record("kedge", "theirs", &foreign, "u2");
        machine.record("calico", "third", &json!({"name": "calico", "plugins": []}), "u3");
        machine.record(LOOPBACK, "third", &json!({}), "u3");
        let all = recorded(&machine.places, &|_| false);
        assert_eq!(all.iter().map(|found| found.sandbox.as_str()).collect::<Vec<_>>(), ["dead"]);
        all[0].end(&machine.places).unwrap();
        let told = fs::read_to_string(machine.dir.path().join("told")).unwrap();
        let lines: Vec<&str> = told.lines().collect();
        assert!(
            lines[0].starts_with("portmap DEL dead eth0 [] K8S_POD_UID=u1 {")
                && lines[1].starts_with("bridge DEL dead"),
            "{told}"
        );
        assert!(
            lines[0].contains(r#""runtimeConfig":{"portMappings":[{"hostPort":80}]}"#)
                && lines[0].contains("prevResult"),
            "{told}"
        );
        assert_eq!(machine.left("results"), ["calico-third-eth0", "cni-loopback-third-lo", "kedge-theirs-eth0"]);
        assert!(machine.left("leases/kedge").is_empty());
    }

    #[test]
    fn a_lease_alone_a_torn_record_and_a_lone_namespace_are_found() {
        let machine = Machine::new();
        machine.lease("10.42.0.8", "leased");
        fs::write(machine.places.records.join("kedge-leased-eth0"), "{\"kind\":").unwrap();
        machine.record(LOOPBACK, "begun", &json!({}), "u5");
        let all = recorded(&machine.places, &|uid| uid == "u5");
        assert_eq!(all.iter().map(|found| found.sandbox.as_str()).collect::<Vec<_>>(), ["begun", "leased"]);
        all.iter().for_each(|found| found.end(&machine.places).unwrap());
        assert!(machine.left("results").is_empty() && machine.left("leases/kedge").is_empty());
        let told = fs::read_to_string(machine.dir.path().join("told")).unwrap();
        assert!(!told.contains("begun") && told.contains("bridge DEL leased eth0 []"), "{told}");
    }

    #[test]
    fn what_a_plugin_refuses_stays_recorded_and_may_be_forgotten() {
        let machine = Machine::new();
        machine.record("kedge", "dead", &machine.conf("leases"), "u1");
        machine.lease("10.42.0.7", "dead");
        fs::write(machine.places.plugin_dir.join("bridge"), "#!/bin/sh\ncat >/dev/null; echo no; exit 1\n").unwrap();
        let all = recorded(&machine.places, &|_| false);
        let err = all[0].end(&machine.places).unwrap_err();
        assert!(matches!(&err, EndError::Refused { plugin, said } if plugin == "bridge" && said == "no"), "{err}");
        assert_eq!(machine.left("leases/kedge"), ["10.42.0.7"]);
        all[0].forget().unwrap();
        assert!(machine.left("results").is_empty() && machine.left("leases/kedge").is_empty());
    }

    #[test]
    fn only_names_that_containerd_gives_are_taken_from_namespaces() {
        assert!(is_netns_of_pods(Path::new("/var/run/netns/cni-1")) && is_netns_of_pods(Path::new("/run/netns/cni-1")));
        assert!(!is_netns_of_pods(Path::new("/run/netns/vpn")) && !is_netns_of_pods(Path::new("/proc/1/ns/net")));
        assert!(!is_netns_of_pods(Path::new("/run/netns/../cni-1")) && remove_netns(Path::new("/etc/passwd")).is_ok());
    }
}
