//! A HelmChart and its HelmChartConfig as files and arguments of `helm`. Pure.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// For one operation of helm, as in k3s.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Tries before it is given up, as in k3s.
const TRIES_MAX: u32 = 1000;
/// Bytes of all files of one chart: each document may be named many times.
const FILES_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Documents and single values of one chart.
const VALUES_MAX: usize = 1024;
/// The repository in helm's own list.
const REPOSITORY: &str = "kedge";
/// Fields that say how k3s's job is to run: here is none.
pub const WITHOUT_EFFECT: [&str; 3] = ["jobImage", "podSecurityContext", "securityContext"];

/// The name of another object in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Named {
    /// Its name.
    pub name: String,
}

/// Values in a Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ValuesSecret {
    /// The Secret's name.
    pub name: String,
    /// Which of its keys, each a document of values; none: all.
    pub keys: Vec<String>,
    /// A change of the Secret is no reason to upgrade.
    pub ignore_updates: bool,
}

/// `spec` of a HelmChart.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Spec {
    /// Name in the repository, URL, or path of an archive.
    pub chart: String,
    /// The archive itself, in base64.
    pub chart_content: String,
    /// Version in the repository.
    pub version: String,
    /// The repository's URL.
    pub repo: String,
    /// Authorities of its certificate, PEM.
    #[serde(rename = "repoCA")]
    pub repo_ca: String,
    /// ConfigMap with more of them.
    #[serde(rename = "repoCAConfigMap")]
    pub repo_ca_config_map: Option<Named>,
    /// Where the chart's objects go; empty: the HelmChart's namespace.
    pub target_namespace: String,
    /// Make that namespace.
    pub create_namespace: bool,
    /// Empty or `v3`.
    pub helm_version: String,
    /// `reinstall` or `abort`.
    pub failure_policy: String,
    /// For one operation, as Go writes durations.
    pub timeout: String,
    /// Tries.
    pub back_off_limit: Option<u32>,
    /// Secret with username and password for the repository.
    pub auth_secret: Option<Named>,
    /// Show them to other hosts, too.
    pub auth_pass_credentials: bool,
    /// Take any certificate.
    #[serde(rename = "insecureSkipTLSVerify")]
    pub insecure_skip_tls_verify: bool,
    /// HTTP for OCI registries.
    #[serde(rename = "plainHTTP")]
    pub plain_http: bool,
    /// Secret with credentials for OCI registries.
    pub docker_registry_secret: Option<Named>,
    /// Single values.
    pub set: BTreeMap<String, Value>,
    /// Values as an object.
    pub values: Option<Value>,
    /// Values as text.
    pub values_content: String,
    /// Values in Secrets.
    pub values_secrets: Vec<ValuesSecret>,
    /// Take objects that are there already.
    pub take_ownership: bool,
}

/// `spec` of a HelmChartConfig.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConfigSpec {
    /// Values as an object.
    pub values: Option<Value>,
    /// Values as text.
    pub values_content: String,
    /// Values in Secrets.
    pub values_secrets: Vec<ValuesSecret>,
    /// `reinstall` or `abort`, before the chart's.
    pub failure_policy: String,
}

/// Parts of a chart that other objects of the namespace hold.
#[derive(Clone, Debug, Default)]
pub struct Fetched {
    /// Of Secrets that hold values, repository credentials and registry credentials, by name.
    pub secrets: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// Of the ConfigMap with authorities.
    pub authorities: Vec<String>,
}

/// Reaction to an installation that failed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Uninstall, and begin anew.
    Reinstall,
    /// Leave all as it is, for a person.
    Abort,
}

/// All that helm needs of a chart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Private files in helm's folder.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Whether the repository's index is fetched first.
    pub repository: bool,
    /// Whether the namespace of the release is made if there is none.
    pub create_namespace: bool,
    /// Arguments that name the values.
    pub values: Vec<String>,
    /// Arguments that say how to get the chart.
    pub options: Vec<String>,
    /// The chart, as helm is told.
    pub chart: String,
    /// For one operation.
    pub timeout: Duration,
    /// Tries.
    pub tries_max: u32,
    /// Reaction if it failed before.
    pub on_failure: OnFailure,
    /// Names the content: another one is another installation.
    pub hash: String,
}

/// A field of a HelmChart or HelmChartConfig that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct BadField {
    /// Such as `valuesSecrets`.
    pub field: &'static str,
    /// The fault, for people.
    pub why: String,
}

fn bad(field: &'static str, why: impl Into<String>) -> BadField {
    BadField { field, why: why.into() }
}

/// Says how helm is called for a chart.
///
/// Errors: the field that cannot be used.
pub fn layout(spec: &Spec, config: Option<&ConfigSpec>, fetched: &Fetched) -> Result<Layout, BadField> {
    let mut files = BTreeMap::new();
    let mut unhashed = Vec::new();
    let mut values = Vec::new();
    let mut bytes = 0;
    let mut add = |name: String, text: Vec<u8>, counts: bool| {
        bytes += text.len();
        if bytes > FILES_BYTES_MAX || values.len() >= VALUES_MAX {
            return Err(bad(
                "values",
                format!("more than {VALUES_MAX} documents, or than {} MiB of them", FILES_BYTES_MAX >> 20),
            ));
        }
        values.push(format!("--values={name}"));
        if !counts {
            unhashed.push(name.clone());
        }
        files.insert(name, text);
        Ok(())
    };
    let config = config.cloned().unwrap_or_default();
    let layers = [
        ("chart", &spec.values, &spec.values_content, &spec.values_secrets),
        ("config", &config.values, &config.values_content, &config.values_secrets),
    ];
    for (layer, object, content, secrets) in layers {
        if let Some(object) = object.as_ref().filter(|object| !object.is_null()) {
            add(format!("{layer}-values.yaml"), object.to_string().into_bytes(), true)?;
        }
        if !content.trim().is_empty() {
            add(format!("{layer}-content.yaml"), content.clone().into_bytes(), true)?;
        }
        for (idx, wanted) in secrets.iter().enumerate() {
            let held = fetched
                .secrets
                .get(&wanted.name)
                .ok_or_else(|| bad("valuesSecrets", format!("secret {:?} not found", wanted.name)))?;
            let keys: Vec<&String> =
                if wanted.keys.is_empty() { held.keys().collect() } else { wanted.keys.iter().collect() };
            for (number, key) in keys.into_iter().enumerate() {
                let text = held
                    .get(key)
                    .ok_or_else(|| bad("valuesSecrets", format!("secret {:?} has no key {key:?}", wanted.name)))?;
                add(format!("{layer}-secret-{idx}-{number}.yaml"), text.clone(), !wanted.ignore_updates)?;
            }
        }
    }
    if spec.set.len() > VALUES_MAX {
        return Err(bad("set", format!("more than {VALUES_MAX} values")));
    }
    for (idx, (name, value)) in spec.set.iter().enumerate() {
        set(&mut values, &mut files, idx, name, value)?;
    }
    let (chart, options, repository) = source(spec, fetched, &mut files)?;
    let policy = if config.failure_policy.is_empty() { &spec.failure_policy } else { &config.failure_policy };
    let mut layout = Layout {
        files,
        repository,
        create_namespace: spec.create_namespace,
        values,
        options,
        chart,
        timeout: timeout(&spec.timeout)?,
        tries_max: spec.back_off_limit.unwrap_or(TRIES_MAX),
        on_failure: on_failure(policy)?,
        hash: String::new(),
    };
    layout.hash = hash(&layout, spec, &unhashed);
    Ok(layout)
}

/// The reading of `failurePolicy`.
///
/// Errors: it is neither of the two.
fn on_failure(policy: &str) -> Result<OnFailure, BadField> {
    match policy {
        "" | "reinstall" => Ok(OnFailure::Reinstall),
        "abort" => Ok(OnFailure::Abort),
        other => Err(bad("failurePolicy", format!("{other:?} is none of reinstall, abort"))),
    }
}

/// The time that helm has; the usual one for an empty text.
///
/// Errors: the text is no duration, or none that passes.
fn timeout(text: &str) -> Result<Duration, BadField> {
    if text.is_empty() {
        return Ok(TIMEOUT);
    }
    let length = base::cron::duration(text).and_then(|length| Duration::try_from(length).ok());
    let length = length.filter(|length| !length.is_zero());
    length.ok_or_else(|| bad("timeout", format!("{text:?} is not a duration such as 5m0s")))
}

/// Whether helm reads a name as the path of one value: with a second one behind a comma it would read a file of its
/// author's choice.
fn is_one_path(name: &str) -> bool {
    let (mut escaped, mut fine) = (false, !name.is_empty());
    for c in name.chars() {
        fine &= !c.is_control() && (escaped || !matches!(c, '=' | ',' | '{' | '}'));
        escaped = c == '\\' && !escaped;
    }
    fine && !escaped
}

/// One value of `set`: numbers and true, false, null as they are; text by way of a file, for it may be a secret.
fn set(
    values: &mut Vec<String>,
    files: &mut BTreeMap<String, Vec<u8>>,
    idx: usize,
    name: &str,
    value: &Value,
) -> Result<(), BadField> {
    if !is_one_path(name) {
        return Err(bad(
            "set",
            format!("{name:?} is no path of one value: '=', ',', '{{' and '}}' must be escaped with a backslash"),
        ));
    }
    let plain = |text: &str| matches!(text.to_lowercase().as_str(), "true" | "false" | "null");
    match value {
        Value::String(text) if !plain(text) => {
            let file = format!("set-{idx}");
            values.push(format!("--set-file={name}={file}"));
            files.insert(file, text.clone().into_bytes());
        }
        Value::String(text) => values.push(format!("--set={name}={text}")),
        Value::Number(_) | Value::Bool(_) | Value::Null => values.push(format!("--set={name}={value}")),
        Value::Array(_) | Value::Object(_) => return Err(bad("set", format!("{name:?} is neither text nor a number"))),
    }
    Ok(())
}

/// The file with the authorities of a repository.
const AUTHORITIES: &str = "repo-ca.pem";

/// The options that say how the chart is got and taken, and the file that they name.
fn transport(spec: &Spec, fetched: &Fetched, files: &mut BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let authorities: Vec<&str> =
        [spec.repo_ca.as_str()].into_iter().chain(fetched.authorities.iter().map(String::as_str)).collect();
    let authorities = authorities.join("\n");
    let mut options = Vec::new();
    if !authorities.trim().is_empty() {
        files.insert(AUTHORITIES.to_owned(), authorities.into_bytes());
        options.push("--ca-file=repo-ca.pem".to_owned());
    }
    options.extend(spec.insecure_skip_tls_verify.then(|| "--insecure-skip-tls-verify".to_owned()));
    options.extend(spec.plain_http.then(|| "--plain-http".to_owned()));
    options.extend((!spec.version.is_empty()).then(|| format!("--version={}", spec.version)));
    options.extend(spec.take_ownership.then(|| "--take-ownership".to_owned()));
    options
}

/// The chart as helm is told, the options that go with it, and whether a repository's index is needed.
fn source(
    spec: &Spec,
    fetched: &Fetched,
    files: &mut BTreeMap<String, Vec<u8>>,
) -> Result<(String, Vec<String>, bool), BadField> {
    if !matches!(spec.helm_version.as_str(), "" | "v3") {
        return Err(bad("helmVersion", format!("{:?} is not supported; only v3 is", spec.helm_version)));
    }
    let mut options = transport(spec, fetched, files);
    let trusts = files.contains_key(AUTHORITIES);
    let held = |named: &Option<Named>, field: &'static str| match named {
        None => Ok(None),
        Some(named) => fetched
            .secrets
            .get(&named.name)
            .map(Some)
            .ok_or_else(|| bad(field, format!("secret {:?} not found", named.name))),
    };
    if let Some(registry) = held(&spec.docker_registry_secret, "dockerRegistrySecret")? {
        let text = registry
            .get(".dockerconfigjson")
            .ok_or_else(|| bad("dockerRegistrySecret", "it has no key \".dockerconfigjson\""))?;
        files.insert("registry.json".to_owned(), text.clone());
    }
    let login = held(&spec.auth_secret, "authSecret")?;
    if !spec.chart_content.is_empty() {
        let content: String = spec.chart_content.split_whitespace().collect();
        let archive = STANDARD.decode(content).map_err(|err| bad("chartContent", format!("no base64: {err}")))?;
        files.insert("chart.tgz".to_owned(), archive);
        return Ok(("./chart.tgz".to_owned(), options, false));
    }
    let chart = spec.chart.as_str();
    if chart.is_empty() {
        return Err(bad("chart", "neither it nor chartContent says which chart"));
    }
    if chart.contains("%{KUBERNETES_API}%") {
        return Err(bad(
            "chart",
            "kedge serves no charts under %{KUBERNETES_API}%; name a path on the servers, or use chartContent",
        ));
    }
    if !spec.repo.is_empty() {
        let text =
            |key: &str| login.and_then(|login| login.get(key)).map(|text| String::from_utf8_lossy(text).into_owned());
        let entry = json!({
            "name": REPOSITORY, "url": spec.repo, "username": text("username").unwrap_or_default(),
            "password": text("password").unwrap_or_default(), "caFile": if trusts { AUTHORITIES } else { "" },
            "insecure_skip_tls_verify": spec.insecure_skip_tls_verify,
            "pass_credentials_all": spec.auth_pass_credentials,
        });
        let list = json!({ "apiVersion": "", "generated": "2026-01-01T00:00:00Z", "repositories": [entry] });
        files.insert("repositories.yaml".to_owned(), list.to_string().into_bytes());
        // Said of the repository already.
        options.retain(|option| !matches!(option.as_str(), "--ca-file=repo-ca.pem" | "--insecure-skip-tls-verify"));
        return Ok((format!("{REPOSITORY}/{chart}"), options, true));
    }
    if login.is_some() {
        return Err(bad(
            "authSecret",
            "it is for a chart of a repository (spec.repo); for OCI use dockerRegistrySecret",
        ));
    }
    let found = chart.contains("://") || Path::new(chart).is_absolute();
    let refused = bad(
        "chart",
        format!(
            "{chart:?} is a name, and spec.repo does not say of which repository; else want a URL or an absolute path"
        ),
    );
    if found { Ok((chart.to_owned(), options, false)) } else { Err(refused) }
}

fn hash(layout: &Layout, spec: &Spec, unhashed: &[String]) -> String {
    let mut all = Sha256::new();
    let mut add = |bytes: &[u8]| {
        all.update((bytes.len() as u64).to_be_bytes());
        all.update(bytes);
    };
    for (name, text) in layout.files.iter().filter(|(name, _)| !unhashed.contains(name)) {
        add(name.as_bytes());
        add(text);
    }
    let words = layout.values.iter().chain(&layout.options).chain([&layout.chart, &spec.target_namespace]);
    words.for_each(|word| add(word.as_bytes()));
    format!("{:x}", all.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(value: Value) -> Spec {
        serde_json::from_value(value).unwrap()
    }

    fn laid(value: Value) -> Result<Layout, BadField> {
        layout(&spec(value), None, &Fetched::default())
    }

    #[test]
    fn a_name_of_a_value_is_no_second_value() {
        for good in ["a", "a.b[0].c", r"a\,b", r"nodeSelector.kubernetes\.io/os", r"a\=b"] {
            assert!(is_one_path(good), "{good}");
        }
        for bad in ["", "a=/var/lib/kedge/server/tls/client-ca.key,b", "a,b", r"a\\,b=c", "{a}", "a\nb", r"a\"] {
            assert!(!is_one_path(bad), "{bad}");
        }
    }

    #[test]
    fn values_are_files_in_the_order_in_which_they_win_and_texts_are_never_arguments() {
        let config = ConfigSpec { values_content: "b: 2\n".to_owned(), ..ConfigSpec::default() };
        let fetched = Fetched {
            secrets: [("s".to_owned(), [("k".to_owned(), b"hidden: 1".to_vec()), ("l".to_owned(), Vec::new())].into())]
                .into(),
            authorities: Vec::new(),
        };
        let spec = spec(json!({
            "chartContent": "aGk=\n", "valuesContent": "a: 1", "values": {"x": [1]},
            "valuesSecrets": [{"name": "s", "keys": ["k"]}],
            "set": {"on": "true", "n": 3, "password": "hidden"},
        }));
        let layout = layout(&spec, Some(&config), &fetched).unwrap();
        let expected = [
            "--values=chart-values.yaml",
            "--values=chart-content.yaml",
            "--values=chart-secret-0-0.yaml",
            "--values=config-content.yaml",
            "--set=n=3",
            "--set=on=true",
            "--set-file=password=set-2",
        ];
        assert_eq!(layout.values, expected);
        assert_eq!((layout.files["chart.tgz"].as_slice(), layout.chart.as_str()), (&b"hi"[..], "./chart.tgz"));
        assert_eq!(layout.files["set-2"], b"hidden");
        assert_eq!((layout.timeout, layout.tries_max, layout.on_failure), (TIMEOUT, 1000, OnFailure::Reinstall));
    }

    #[test]
    fn what_a_chart_names_many_times_is_bounded() {
        let large = [("k".to_owned(), vec![b'a'; 1 << 20])].into();
        let fetched = Fetched { secrets: [("s".to_owned(), large)].into(), authorities: Vec::new() };
        let named = |n: usize| spec(json!({"chartContent": "aGk=", "valuesSecrets": vec![json!({"name": "s"}); n]}));
        assert!(layout(&named(10), None, &fetched).is_ok());
        assert!(layout(&named(100_000), None, &fetched).unwrap_err().to_string().contains("16 MiB"));
        let set: serde_json::Map<String, Value> = (0..2000).map(|n| (format!("v{n}"), json!(1))).collect();
        assert!(laid(json!({"chartContent": "aGk=", "set": set})).unwrap_err().to_string().contains("1024"));
    }

    #[test]
    fn a_repository_s_credentials_are_in_a_file() {
        let secret = [("username", "u"), ("password", "hidden")].map(|(k, v)| (k.to_owned(), v.as_bytes().to_vec()));
        let fetched =
            Fetched { secrets: [("login".to_owned(), secret.into())].into(), authorities: vec!["PEM".to_owned()] };
        let spec = spec(
            json!({"chart": "web", "repo": "https://c.example", "version": "1.2.3", "authSecret": {"name": "login"}}),
        );
        let layout = layout(&spec, None, &fetched).unwrap();
        assert_eq!(
            (layout.chart.as_str(), layout.repository, layout.options),
            ("kedge/web", true, vec!["--version=1.2.3".to_owned()])
        );
        let list: Value = serde_json::from_slice(&layout.files["repositories.yaml"]).unwrap();
        assert_eq!(
            (&list["repositories"][0]["password"], &list["repositories"][0]["caFile"]),
            (&json!("hidden"), &json!("repo-ca.pem"))
        );
    }

    #[test]
    fn what_cannot_be_installed_says_which_field_is_wrong() {
        for (value, words) in [
            (json!({}), "neither it nor chartContent"),
            (json!({"chart": "web"}), "spec.repo does not say"),
            (json!({"chart": "https://%{KUBERNETES_API}%/static/x.tgz"}), "KUBERNETES_API"),
            (json!({"chartContent": "%"}), "chartContent"),
            (json!({"chart": "/c", "timeout": "soon"}), "timeout"),
            (json!({"chart": "/c", "failurePolicy": "shrug"}), "failurePolicy"),
            (json!({"chart": "/c", "helmVersion": "v2"}), "helmVersion"),
            (json!({"chart": "/c", "valuesSecrets": [{"name": "none"}]}), "secret \"none\" not found"),
            (json!({"chart": "https://x/c.tgz", "authSecret": {"name": "none"}}), "authSecret"),
        ] {
            let why = laid(value).unwrap_err().to_string();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn another_content_is_another_hash_unless_its_changes_are_to_be_ignored() {
        let hash = |secret: &str, ignore: bool| {
            let fetched = Fetched {
                secrets: [("s".to_owned(), [("k".to_owned(), secret.into())].into())].into(),
                authorities: Vec::new(),
            };
            let spec = spec(json!({"chart": "/c", "valuesSecrets": [{"name": "s", "ignoreUpdates": ignore}]}));
            layout(&spec, None, &fetched).unwrap().hash
        };
        assert_eq!(hash("1", false), hash("1", false));
        assert_ne!(hash("1", false), hash("2", false));
        assert_eq!(hash("1", true), hash("2", true));
    }

    #[test]
    fn timeouts_and_policies_are_those_of_the_spec_or_the_usual_ones() {
        for (text, secs) in
            [("", Some(300)), ("90s", Some(90)), ("1h", Some(3600)), ("0s", None), ("-5m", None), ("5", None)]
        {
            assert_eq!(timeout(text).ok().map(|length| length.as_secs()), secs, "{text:?}");
        }
        for (policy, want) in [
            ("", Some(OnFailure::Reinstall)),
            ("reinstall", Some(OnFailure::Reinstall)),
            ("abort", Some(OnFailure::Abort)),
            ("Abort", None),
        ] {
            assert_eq!(on_failure(policy).ok(), want, "{policy:?}");
        }
        // The configuration's policy goes before the chart's.
        let config = ConfigSpec { failure_policy: "abort".to_owned(), ..ConfigSpec::default() };
        let both =
            layout(&spec(json!({"chart": "/c", "failurePolicy": "reinstall"})), Some(&config), &Fetched::default());
        assert_eq!(both.unwrap().on_failure, OnFailure::Abort);
    }

    #[test]
    fn a_chart_of_a_registry_takes_its_credentials_and_options_along() {
        let secret = [(".dockerconfigjson".to_owned(), b"{}".to_vec())];
        let fetched = Fetched { secrets: [("login".to_owned(), secret.into())].into(), authorities: Vec::new() };
        let of = |more: Value| {
            let mut whole = json!({"chart": "oci://r.example/web", "dockerRegistrySecret": {"name": "login"}});
            whole.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
            layout(&spec(whole), None, &fetched)
        };
        let plain = of(json!({})).unwrap();
        assert_eq!(
            (plain.chart.as_str(), plain.repository, plain.create_namespace),
            ("oci://r.example/web", false, false)
        );
        assert_eq!(plain.files["registry.json"], b"{}");
        assert!(plain.options.is_empty());
        let all = of(json!({
            "version": "1", "plainHTTP": true, "insecureSkipTLSVerify": true, "repoCA": "PEM", "takeOwnership": true,
            "createNamespace": true, "backOffLimit": 3,
        }))
        .unwrap();
        let options =
            ["--ca-file=repo-ca.pem", "--insecure-skip-tls-verify", "--plain-http", "--version=1", "--take-ownership"];
        assert_eq!(all.options, options);
        assert_eq!((all.files["repo-ca.pem"].as_slice(), all.tries_max, all.create_namespace), (&b"PEM"[..], 3, true));
        let none = layout(
            &spec(json!({"chart": "oci://r/x", "dockerRegistrySecret": {"name": "none"}})),
            None,
            &Fetched::default(),
        );
        assert_eq!(none.unwrap_err().to_string(), "dockerRegistrySecret: secret \"none\" not found");
    }

    #[test]
    fn a_value_of_set_is_a_number_a_word_or_a_file_and_never_an_object() {
        let set = |value: Value| laid(json!({"chart": "/c", "set": {"a": value}})).map(|layout| layout.values);
        for (value, want) in [
            (json!(1.5), "--set=a=1.5"),
            (json!(false), "--set=a=false"),
            (json!(null), "--set=a=null"),
            (json!("NULL"), "--set=a=NULL"),
            (json!("1.5"), "--set-file=a=set-0"),
            (json!(""), "--set-file=a=set-0"),
        ] {
            assert_eq!(set(value.clone()).unwrap(), [want], "{value}");
        }
        for value in [json!([1]), json!({"b": 1})] {
            assert_eq!(set(value).unwrap_err().to_string(), "set: \"a\" is neither text nor a number");
        }
    }
}
