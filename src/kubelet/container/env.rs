//! Environment variables: where values come from, and `$(VAR)` in them.

mod file;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVar, Pod, Secret, Service};

use super::fields::{self, Surroundings};
use crate::container::error::ConfigError;

/// The objects that a container's environment refers to, fetched before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    pub(crate) config_maps: BTreeMap<String, Option<ConfigMap>>,
    pub(crate) secrets: BTreeMap<String, Option<Secret>>,
    pub(crate) services: Vec<Service>,
    /// Files in volumes, by volume and path; or why one cannot be read.
    pub(crate) files: file::Files,
}

impl Sources {
    /// Reads the files in volumes that the container's environment refers to.
    pub(crate) async fn read_files(&mut self, container: &Container, volumes: &BTreeMap<String, PathBuf>) {
        self.files = file::read(container, volumes).await;
    }
}

/// Names of ConfigMaps and Secrets that the container's environment refers to.
pub(crate) fn references(container: &Container) -> (Vec<String>, Vec<String>) {
    let (mut maps, mut secrets) = (Vec::new(), Vec::new());
    for from in container.env_from.iter().flatten() {
        maps.extend(from.config_map_ref.iter().map(|r| r.name.clone()));
        secrets.extend(from.secret_ref.iter().map(|r| r.name.clone()));
    }
    for source in container.env.iter().flatten().filter_map(|var| var.value_from.as_ref()) {
        maps.extend(source.config_map_key_ref.iter().map(|r| r.name.clone()));
        secrets.extend(source.secret_key_ref.iter().map(|r| r.name.clone()));
    }
    (maps, secrets)
}

/// Linux lets no program have a longer environment and longer arguments (`bprm_stack_limits` in its fs/exec.c: three
/// quarters of 8 MiB). A variable that names another twice, thirty times over, would fill every machine's memory.
pub(crate) const BYTES_MAX: usize = 6 << 20;

/// Expands `$(NAME)`; `$$` is one dollar, an unknown name stays as it is. Spec: upstream's
/// third_party/forked/golang/expansion. `room` is how many bytes may be written, here and by who comes after.
///
/// Errors: there is not so much room.
pub(crate) fn expand<'v>(
    text: &str,
    value_of: impl Fn(&str) -> Option<&'v str>,
    room: &mut usize,
) -> Result<String, ConfigError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
            match value_of(name) {
                Some(value) if out.len() + value.len() > *room => return Err(too_long()),
                Some(value) => out.push_str(value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    *room = room.checked_sub(out.len()).ok_or_else(too_long)?;
    Ok(out)
}

fn too_long() -> ConfigError {
    ConfigError::new(format!(
        "environment or arguments are longer than {BYTES_MAX} bytes, which Linux gives no program"
    ))
}

/// The whole environment of a container, in the order in which it was defined.
pub(crate) fn build(
    pod: &Pod,
    container: &Container,
    sources: &Sources,
    around: &Surroundings,
) -> Result<Vec<(String, String)>, ConfigError> {
    let services = service_vars(pod, &sources.services);
    let mut vars: BTreeMap<String, String> = BTreeMap::new();
    let mut order: Vec<String> = Vec::new();
    let mut set = |vars: &mut BTreeMap<String, String>, key: String, value: String| {
        if vars.insert(key.clone(), value).is_none() {
            order.push(key);
        }
    };
    let mut room = BYTES_MAX;
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let mut take = |key: &str, value: Cow<'_, str>| -> Result<(), ConfigError> {
            room = room.checked_sub(prefix.len() + key.len() + value.len()).ok_or_else(too_long)?;
            set(&mut vars, format!("{prefix}{key}"), value.into_owned());
            Ok(())
        };
        if let Some(r) = &from.config_map_ref {
            for (key, value) in
                config_map(sources, &r.name, r.optional)?.and_then(|map| map.data.as_ref()).into_iter().flatten()
            {
                take(key, Cow::Borrowed(value))?;
            }
        } else if let Some(r) = &from.secret_ref {
            for (key, value) in
                secret(sources, &r.name, r.optional)?.and_then(|secret| secret.data.as_ref()).into_iter().flatten()
            {
                take(key, String::from_utf8_lossy(&value.0))?;
            }
        }
    }
    for var in container.env.iter().flatten() {
        let value = match &var.value_from {
            Some(_) => value_from(pod, container, var, sources, around)?,
            None => {
                // Earlier variables first, then those of services.
                let value_of = |name: &str| vars.get(name).or_else(|| services.get(name)).map(String::as_str);
                // What it takes is counted below.
                Some(expand(var.value.as_deref().unwrap_or_default(), value_of, &mut { room })?)
            }
        };
        if let Some(value) = value {
            room = room.checked_sub(var.name.len() + value.len()).ok_or_else(too_long)?;
            set(&mut vars, var.name.clone(), value);
        }
    }
    for (key, value) in services {
        if !vars.contains_key(&key) {
            set(&mut vars, key, value);
        }
    }
    Ok(order.into_iter().map(|key| (key.clone(), vars.remove(&key).unwrap_or_default())).collect())
}

fn ns(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

fn config_map<'s>(
    sources: &'s Sources,
    name: &str,
    optional: Option<bool>,
) -> Result<Option<&'s ConfigMap>, ConfigError> {
    match sources.config_maps.get(name).and_then(Option::as_ref) {
        None if optional != Some(true) => Err(ConfigError::new(format!("configmap \"{name}\" not found"))),
        map => Ok(map),
    }
}

fn secret<'s>(sources: &'s Sources, name: &str, optional: Option<bool>) -> Result<Option<&'s Secret>, ConfigError> {
    match sources.secrets.get(name).and_then(Option::as_ref) {
        None if optional != Some(true) => Err(ConfigError::new(format!("secret \"{name}\" not found"))),
        secret => Ok(secret),
    }
}

fn value_from(
    pod: &Pod,
    container: &Container,
    var: &EnvVar,
    sources: &Sources,
    around: &Surroundings,
) -> Result<Option<String>, ConfigError> {
    let Some(source) = &var.value_from else { return Ok(None) };
    if let Some(r) = &source.field_ref {
        return fields::field(pod, around, &r.field_path).map(Some);
    }
    if let Some(r) = &source.resource_field_ref {
        return fields::resource(pod, around, &container.name, r).map(Some);
    }
    if let Some(r) = &source.file_key_ref {
        return file::value(r, &sources.files);
    }
    let (value, kind, name, key, optional) = if let Some(r) = &source.config_map_key_ref {
        let data = config_map(sources, &r.name, r.optional)?.and_then(|map| map.data.as_ref());
        (data.and_then(|data| data.get(&r.key)).cloned(), "ConfigMap", &r.name, &r.key, r.optional)
    } else if let Some(r) = &source.secret_key_ref {
        let data = secret(sources, &r.name, r.optional)?.and_then(|secret| secret.data.as_ref());
        let text = data.and_then(|data| data.get(&r.key)).map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned());
        (text, "Secret", &r.name, &r.key, r.optional)
    } else {
        return Err(ConfigError::new(format!("environment variable {} has a source that is not supported", var.name)));
    };
    if value.is_none() && optional != Some(true) {
        return Err(ConfigError::new(format!("couldn't find key {key} in {kind} {}/{name}", ns(pod))));
    }
    Ok(value)
}

/// `<NAME>_SERVICE_HOST` and the docker-link style variables of services; without `enableServiceLinks` only those of
/// `kubernetes`.
fn service_vars(pod: &Pod, services: &[Service]) -> BTreeMap<String, String> {
    let links = pod.spec.as_ref().and_then(|s| s.enable_service_links).unwrap_or(true);
    let mut vars = BTreeMap::new();
    let own_ns = ns(pod);
    let master = |s: &&Service| {
        s.metadata.namespace.as_deref() == Some("default") && s.metadata.name.as_deref() == Some("kubernetes")
    };
    let chosen = services.iter().filter(|s| master(s) || (links && s.metadata.namespace.as_deref() == Some(own_ns)));
    // The pod's own namespace wins over the master service of the same name.
    let mut chosen: Vec<&Service> = chosen.collect();
    chosen.sort_by_key(|s| s.metadata.namespace.as_deref() == Some(own_ns));
    for service in chosen {
        let Some(spec) = &service.spec else { continue };
        let Some(ip) = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None") else { continue };
        let ports = spec.ports.clone().unwrap_or_default();
        let Some(first) = ports.first() else { continue };
        let prefix = service.metadata.name.as_deref().unwrap_or_default().to_uppercase().replace('-', "_");
        vars.insert(format!("{prefix}_SERVICE_HOST"), ip.to_owned());
        vars.insert(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
        let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
        for (i, port) in ports.iter().enumerate() {
            if let Some(name) = port.name.as_deref().filter(|n| !n.is_empty()) {
                vars.insert(
                    format!("{prefix}_SERVICE_PORT_{}", name.to_uppercase().replace('-', "_")),
                    port.port.to_string(),
                );
            }
            let proto = port.protocol.as_deref().unwrap_or("TCP");
            let url = format!("{}://{host}:{}", proto.to_lowercase(), port.port);
            if i == 0 {
                vars.insert(format!("{prefix}_PORT"), url.clone());
            }
            let base = format!("{prefix}_PORT_{}_{proto}", port.port);
            vars.insert(base.clone(), url);
            vars.insert(format!("{base}_PROTO"), proto.to_lowercase());
            vars.insert(format!("{base}_PORT"), port.port.to_string());
            vars.insert(format!("{base}_ADDR"), ip.to_owned());
        }
    }
    vars
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expansion_keeps_unknown_names_and_escaped_dollars() {
        let expanded = |room: usize| expand("$(A) $(B) $$(A) $A $", |name| (name == "A").then_some("1"), &mut { room });
        assert_eq!(expanded(16).unwrap(), "1 $(B) $(A) $A $");
        assert!(expanded(15).is_err());
    }

    // security-3 F1: thirty variables of ten bytes each took all memory of a node.
    #[test]
    fn an_environment_is_no_longer_than_a_program_may_have() {
        let build_of = |containers: serde_json::Value| {
            let pod: Pod = serde_json::from_value(
                serde_json::json!({"metadata": {"namespace": "d"}, "spec": {"containers": [containers]}}),
            )
            .unwrap();
            let data = BTreeMap::from([("k".to_owned(), "v".repeat(1 << 20))]);
            let map = ConfigMap { data: Some(data), ..Default::default() };
            let sources =
                Sources { config_maps: BTreeMap::from([("big".to_owned(), Some(map))]), ..Default::default() };
            build(&pod, &pod.spec.as_ref().unwrap().containers[0], &sources, &Surroundings::default())
        };
        let doubled = |n: u32| {
            let first = serde_json::json!({"name": "V0", "value": "0123456789"});
            let rest = (1..=n)
                .map(|i| serde_json::json!({"name": format!("V{i}"), "value": format!("$(V{0})$(V{0})", i - 1)}));
            serde_json::json!({"name": "c", "env": std::iter::once(first).chain(rest).collect::<Vec<_>>()})
        };
        assert_eq!(build_of(doubled(10)).unwrap()[10].1.len(), 10 << 10);
        let source = serde_json::json!({"configMapKeyRef": {"name": "big", "key": "k"}});
        let reference = |i: u32| serde_json::json!({"name": format!("V{i}"), "valueFrom": source});
        let from = |i: u32| serde_json::json!({"prefix": format!("P{i}"), "configMapRef": {"name": "big"}});
        for container in [
            doubled(40),
            serde_json::json!({"name": "c", "env": (0..8).map(reference).collect::<Vec<_>>()}),
            serde_json::json!({"name": "c", "envFrom": (0..8).map(from).collect::<Vec<_>>()}),
        ] {
            let message = build_of(container).unwrap_err().message;
            assert!(message.contains("longer than 6291456 bytes"), "{message}");
        }
    }

    #[test]
    fn a_variable_sees_those_before_it_and_the_services() {
        let env = serde_json::json!([{"name": "A", "value": "$(WEB_SERVICE_HOST)"},
            {"name": "B", "value": "$(A)-$(C)"}, {"name": "C", "value": "x"}]);
        let spec = serde_json::json!({"containers": [{"name": "c", "env": env}]});
        let json = serde_json::json!({"metadata": {"namespace": "d"}, "spec": spec});
        let pod: Pod = serde_json::from_value(json).unwrap();
        let service = serde_json::from_value(serde_json::json!({"metadata": {"name": "web", "namespace": "d"},
            "spec": {"clusterIP": "10.43.0.9", "ports": [{"port": 80}]}}))
        .unwrap();
        let sources = Sources { services: vec![service], ..Default::default() };
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let vars = build(&pod, container, &sources, &Surroundings::default()).unwrap();
        assert_eq!(vars[0], ("A".to_owned(), "10.43.0.9".to_owned()));
        assert_eq!(vars[1], ("B".to_owned(), "10.43.0.9-$(C)".to_owned()));
        assert!(vars.contains(&("WEB_PORT_80_TCP_PROTO".to_owned(), "tcp".to_owned())));
    }

    #[test]
    fn a_pod_without_links_sees_the_master_service_alone() {
        let service = |name: &str, ns: &str, ip: &str| -> Service {
            serde_json::from_value(serde_json::json!({"metadata": {"name": name, "namespace": ns},
                "spec": {"clusterIP": ip, "ports": [{"name": "https", "port": 443}]}}))
            .unwrap()
        };
        let services = [
            service("kubernetes", "default", "10.43.0.1"),
            service("my-web", "d", "fd00::9"),
            service("headless", "d", "None"),
            service("foreign", "e", "10.43.0.7"),
        ];
        let vars = |links: bool| {
            let pod = serde_json::json!({"metadata": {"namespace": "d"},
                "spec": {"containers": [], "enableServiceLinks": links}});
            service_vars(&serde_json::from_value(pod).unwrap(), &services)
        };
        let without = vars(false);
        assert!(without.keys().all(|name| name.starts_with("KUBERNETES_")));
        assert_eq!(without["KUBERNETES_SERVICE_PORT_HTTPS"], "443");
        let with = vars(true);
        assert_eq!(with["MY_WEB_PORT_443_TCP"], "tcp://[fd00::9]:443");
        assert_eq!(with["MY_WEB_PORT_443_TCP_ADDR"], "fd00::9");
        assert!(!with.keys().any(|name| name.starts_with("HEADLESS_") || name.starts_with("FOREIGN_")));
    }

    #[test]
    fn a_value_that_is_not_there_is_refused_unless_optional() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"metadata": {"namespace": "d"},
            "spec": {"containers": []}}))
        .unwrap();
        let of = |source: serde_json::Value, sources: &Sources| {
            let container = serde_json::json!({"name": "c", "env": [{"name": "V", "valueFrom": source}]});
            let container = serde_json::from_value(container).unwrap();
            build(&pod, &container, sources, &Surroundings::default()).map_err(|err| err.message)
        };
        let key =
            |optional: bool| serde_json::json!({"configMapKeyRef": {"name": "m", "key": "k", "optional": optional}});
        let here = Sources {
            config_maps: BTreeMap::from([("m".to_owned(), Some(ConfigMap::default()))]),
            ..Sources::default()
        };
        assert_eq!(of(key(false), &Sources::default()).unwrap_err(), "configmap \"m\" not found");
        assert_eq!(of(key(false), &here).unwrap_err(), "couldn't find key k in ConfigMap d/m");
        assert!(of(key(true), &Sources::default()).unwrap().is_empty());
        assert!(of(key(true), &here).unwrap().is_empty());
        let secret = serde_json::json!({"secretKeyRef": {"name": "s", "key": "k"}});
        assert_eq!(of(secret, &here).unwrap_err(), "secret \"s\" not found");
    }
}
