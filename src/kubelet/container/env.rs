//! Environment variables: where values come from, and `$(VAR)` in them.

mod file;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVar, Pod, Secret, Service};

use super::ConfigError;
use super::fields::{self, Surroundings};

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

/// Expands `$(NAME)`; `$$` is one dollar, an unknown name stays as it is. Spec: upstream's third_party/forked/golang/expansion.
pub(crate) fn expand(text: &str, vars: &HashMap<&str, &str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
            match vars.get(name) {
                Some(value) => out.push_str(value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

/// The whole environment of a container, in the order in which it was defined.
pub(crate) fn build(
    pod: &Pod,
    container: &Container,
    sources: &Sources,
    around: &Surroundings,
) -> Result<Vec<(String, String)>, ConfigError> {
    let links = pod.spec.as_ref().and_then(|s| s.enable_service_links).unwrap_or(true);
    let services = service_vars(pod, &sources.services, links);
    let mut vars: BTreeMap<String, String> = BTreeMap::new();
    let mut order: Vec<String> = Vec::new();
    let mut set = |vars: &mut BTreeMap<String, String>, key: String, value: String| {
        if vars.insert(key.clone(), value).is_none() {
            order.push(key);
        }
    };
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.clone().unwrap_or_default();
        let values = if let Some(r) = &from.config_map_ref {
            map_values(pod, sources, &r.name, r.optional)?
        } else if let Some(r) = &from.secret_ref {
            secret_values(pod, sources, &r.name, r.optional)?
        } else {
            BTreeMap::new()
        };
        for (key, value) in values {
            set(&mut vars, format!("{prefix}{key}"), value);
        }
    }
    for var in container.env.iter().flatten() {
        let value = match &var.value_from {
            Some(_) => value_from(pod, container, var, sources, around)?,
            None => {
                // Earlier variables first, then those of services.
                let mut lookup: HashMap<&str, &str> = services.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
                lookup.extend(vars.iter().map(|(k, v)| (k.as_str(), v.as_str())));
                Some(expand(var.value.as_deref().unwrap_or_default(), &lookup))
            }
        };
        if let Some(value) = value {
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

fn map_values(pod: &Pod, sources: &Sources, name: &str, optional: Option<bool>) -> Result<BTreeMap<String, String>, ConfigError> {
    match sources.config_maps.get(name).and_then(Option::as_ref) {
        Some(map) => Ok(map.data.clone().unwrap_or_default()),
        None if optional == Some(true) => Ok(BTreeMap::new()),
        None => Err(missing("configmap", name, ns(pod))),
    }
}

fn secret_values(pod: &Pod, sources: &Sources, name: &str, optional: Option<bool>) -> Result<BTreeMap<String, String>, ConfigError> {
    match sources.secrets.get(name).and_then(Option::as_ref) {
        Some(secret) => {
            let text = |bytes: &k8s_openapi::ByteString| String::from_utf8_lossy(&bytes.0).into_owned();
            Ok(secret.data.iter().flatten().map(|(key, value)| (key.clone(), text(value))).collect())
        }
        None if optional == Some(true) => Ok(BTreeMap::new()),
        None => Err(missing("secret", name, ns(pod))),
    }
}

fn missing(kind: &str, name: &str, _ns: &str) -> ConfigError {
    ConfigError::new(format!("{kind} \"{name}\" not found"))
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
    let (values, kind, name, key, optional) = if let Some(r) = &source.config_map_key_ref {
        (map_values(pod, sources, &r.name, r.optional)?, "ConfigMap", &r.name, &r.key, r.optional)
    } else if let Some(r) = &source.secret_key_ref {
        (secret_values(pod, sources, &r.name, r.optional)?, "Secret", &r.name, &r.key, r.optional)
    } else {
        return Err(ConfigError::new(format!("environment variable {} has a source that is not supported", var.name)));
    };
    match values.get(key) {
        Some(value) => Ok(Some(value.clone())),
        None if optional == Some(true) => Ok(None),
        None => Err(ConfigError::new(format!("couldn't find key {key} in {kind} {}/{name}", ns(pod)))),
    }
}

/// `<NAME>_SERVICE_HOST` and the docker-link style variables of services; without links only those of `kubernetes`.
fn service_vars(pod: &Pod, services: &[Service], links: bool) -> BTreeMap<String, String> {
    let mut vars = BTreeMap::new();
    let own_ns = ns(pod);
    let master = |s: &&Service| s.metadata.namespace.as_deref() == Some("default") && s.metadata.name.as_deref() == Some("kubernetes");
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
                vars.insert(format!("{prefix}_SERVICE_PORT_{}", name.to_uppercase().replace('-', "_")), port.port.to_string());
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
        let vars = HashMap::from([("A", "1")]);
        assert_eq!(expand("$(A) $(B) $$(A) $A $", &vars), "1 $(B) $(A) $A $");
    }

    #[test]
    fn a_variable_sees_those_before_it_and_the_services() {
        let json = serde_json::json!({"metadata": {"namespace": "d"}, "spec": {"containers": [{"name": "c", "env": [
            {"name": "A", "value": "$(WEB_SERVICE_HOST)"}, {"name": "B", "value": "$(A)-$(C)"}, {"name": "C", "value": "x"}]}]}});
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
}
