//! `--admission-control-config-file`: an AdmissionConfiguration, which may configure plugins in place or in files of
//! their own.

use std::path::Path;

use registry::strict::known;
use schema::read;
use serde_json::Value;

use super::error::ConfigurationError;
use super::event_rate_limit::Limit;
use super::image_policy::ImagePolicy;
use super::pod_node_selector::Selectors;
use super::pod_security::configuration::PodSecurityConfiguration;
use super::pod_toleration_restriction::Tolerations;

const VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1"];

/// Configuration of the plugins that the file can configure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdmissionConfiguration {
    /// `PodSecurity`
    pub pod_security: PodSecurityConfiguration,
    /// `EventRateLimit`
    pub event_limits: Vec<Limit>,
    /// `PodNodeSelector`
    pub node_selectors: Selectors,
    /// `PodTolerationRestriction`
    pub tolerations: Tolerations,
    /// `ImagePolicyWebhook`
    pub image_policy: Option<ImagePolicy>,
}

impl AdmissionConfiguration {
    /// Reads the file, and those that it names relative to its own folder.
    pub fn read(path: &Path) -> Result<AdmissionConfiguration, ConfigurationError> {
        let text = |path: &Path| {
            std::fs::read_to_string(path)
                .map_err(|source| ConfigurationError::Unreadable { path: path.to_owned(), source })
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        AdmissionConfiguration::parse(&text(path)?, |named| text(&folder.join(named)))
            .map_err(|why| why.at(path.display().to_string()))
    }

    fn parse(
        text: &str,
        open: impl Fn(&str) -> Result<String, ConfigurationError>,
    ) -> Result<AdmissionConfiguration, ConfigurationError> {
        let value: Value = serde_saphyr::from_str(text)?;
        let (version, kind) = (read::text(&value, "apiVersion"), read::text(&value, "kind"));
        if kind != "AdmissionConfiguration" || !VERSIONS.contains(&version) {
            return Err(ConfigurationError::Kind { kind: kind.to_owned(), version: version.to_owned() });
        }
        known(&value, "", &["apiVersion", "kind", "plugins"])?;
        let mut out = AdmissionConfiguration::default();
        for (idx, plugin) in read::list(&value, "plugins").iter().enumerate() {
            let at = format!("plugins[{idx}]");
            known(plugin, &at, &["name", "path", "configuration"])?;
            let configuration = match (read::at(plugin, "configuration"), read::some_text(plugin, "path")) {
                (Some(inside), _) => inside.clone(),
                (None, Some(path)) => {
                    let text = open(path).map_err(|why| why.at(format!("{at}.path")))?;
                    serde_saphyr::from_str(&text)
                        .map_err(|err| ConfigurationError::from(err).at(format!("{at}.path: {path}")))?
                }
                (None, None) => continue,
            };
            out.configure(read::text(plugin, "name"), &configuration, &at)?;
        }
        Ok(out)
    }

    /// Takes over one plugin's configuration; `at` is the plugin's place in the file.
    fn configure(&mut self, plugin: &str, configuration: &Value, at: &str) -> Result<(), ConfigurationError> {
        let inside = format!("{at}.configuration");
        match plugin {
            "PodSecurity" => self.pod_security = PodSecurityConfiguration::of(configuration, &inside)?,
            "EventRateLimit" => self.event_limits = Limit::all_of(configuration, &inside)?,
            "PodNodeSelector" => self.node_selectors = Selectors::of(configuration, &inside)?,
            "PodTolerationRestriction" => self.tolerations = Tolerations::of(configuration, &inside)?,
            "ImagePolicyWebhook" => self.image_policy = Some(ImagePolicy::of(configuration, &inside)?),
            other => {
                super::names::known(other).map_err(|why| ConfigurationError::from(why).at(format!("{at}.name")))?;
                return Err(ConfigurationError::NothingToConfigure { plugin: other.to_owned() }.at(at));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use base::chain::Chain;

    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n";
    const OURS: &str = "apiVersion: pod-security.admission.config.k8s.io/v1\nkind: PodSecurityConfiguration\n\
                        defaults: {enforce: baseline, enforce-version: v1.36}\nexemptions: {namespaces: [ops]}\n";

    fn parse(plugins: &str) -> Result<AdmissionConfiguration, String> {
        let open = |path: &str| match path {
            "pods.yaml" => Ok(OURS.to_owned()),
            other => Err(ConfigurationError::Unreadable { path: other.into(), source: io::ErrorKind::NotFound.into() }),
        };
        AdmissionConfiguration::parse(&format!("{HEAD}plugins: {plugins}"), open).map_err(|err| Chain(&err).to_string())
    }

    #[test]
    fn plugins_are_configured_in_place_or_by_file() {
        let by_file = parse("[{name: PodSecurity, path: pods.yaml}]").unwrap();
        assert!(by_file.pod_security.exempts_namespace("ops") && !by_file.pod_security.exempts_namespace("default"));
        let inside = OURS.trim_end().replace('\n', ", ");
        assert_eq!(parse(&format!("[{{name: PodSecurity, configuration: {{{inside}}}}}]")).unwrap(), by_file);
    }

    #[test]
    fn what_cannot_be_obeyed_is_refused_by_name() {
        assert_eq!(
            parse("[{name: ResourceQuota, configuration: {}}]").unwrap_err(),
            "plugins[0]: kedge's ResourceQuota has nothing to configure"
        );
        assert!(parse("[{name: Odd, configuration: {}}]").unwrap_err().contains("admission plugin \"Odd\" is unknown"));
        let limits = |limits: &str| {
            let head = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: Configuration";
            parse(&format!("[{{name: EventRateLimit, configuration: {{{head}, limits: {limits}}}}}]"))
        };
        assert_eq!(limits("[{type: Server, qps: 5, burst: 9}]").unwrap().event_limits.len(), 1);
        assert_eq!(limits("[]").unwrap_err(), "limits: Invalid value: null: must not be empty");
        assert_eq!(
            limits("[{type: Server, qps: 0, burst: 9}]").unwrap_err(),
            "limits[0].qps: Invalid value: 0: must be positive"
        );
        assert!(
            limits("[{type: Pod, qps: 1, burst: 9}]")
                .unwrap_err()
                .starts_with("limits[0].type: Unsupported value: \"Pod\"")
        );
        let selectors =
            parse("[{name: PodNodeSelector, configuration: {podNodeSelectorPluginConfig: {ops: 'a=b,c'}}}]")
                .unwrap_err();
        assert_eq!(selectors, "plugins[0].configuration.podNodeSelectorPluginConfig.ops: invalid selector: [c]");
        assert!(
            parse("[{name: ImagePolicyWebhook, configuration: {imagePolicy: {}}}]")
                .unwrap_err()
                .contains("kubeConfigFile: Required")
        );
        assert!(parse("[{name: PodSecurity, path: x}]").unwrap_err().contains("plugins[0].path: cannot read x"));
        assert!(
            parse("[{name: PodSecurity, configuration: {kind: X}}]")
                .unwrap_err()
                .contains("no kind \"X\" is registered")
        );
        assert!(parse("[{nam: x}]").unwrap_err().contains("unknown field \"plugins[0].nam\""));
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named_with_the_place_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admission.yaml");
        let read = || AdmissionConfiguration::read(&path).map_err(|err| Chain(&err).to_string());
        let shown = path.display();
        assert!(read().unwrap_err().starts_with(&format!("cannot read {shown}: No such file")));
        for (text, wanted) in [
            ("{kind: Pod, apiVersion: v1}".to_owned(), "no kind \"Pod\" is registered for version \"v1\"".to_owned()),
            (
                format!("{HEAD}plugins: [{{name: PodSecurity, path: pods.yaml}}]"),
                format!("plugins[0].path: cannot read {}: No such file", dir.path().join("pods.yaml").display()),
            ),
        ] {
            std::fs::write(&path, text).unwrap();
            let why = read().unwrap_err();
            assert!(why.starts_with(&format!("{shown}: {wanted}")), "{why}");
        }
        std::fs::write(&path, format!("{HEAD}plugins: [{{name: PodSecurity, path: pods.yaml}}]")).unwrap();
        std::fs::write(dir.path().join("pods.yaml"), OURS).unwrap();
        assert!(read().unwrap().pod_security.exempts_namespace("ops"), "paths are relative to the file");
    }
}
