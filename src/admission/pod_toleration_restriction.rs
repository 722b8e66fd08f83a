//! Pods of a namespace get its tolerations, and a list says which tolerations they may have.

use std::sync::Arc;

use async_trait::async_trait;
use model::meta;
use model::reference::{GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::status::Status;
use registry::strict::known;
use schema::read;
use serde_json::{Value, json};

use super::error::ConfigurationError;
use super::{Operation, Plugin, Review};

const DEFAULTS: &str = "scheduler.alpha.kubernetes.io/defaultTolerations";
const ALLOWED: &str = "scheduler.alpha.kubernetes.io/tolerationsWhitelist";
const VERSION: &str = "podtolerationrestriction.admission.k8s.io/v1alpha1";

/// The plugin's configuration: what holds in namespaces that say nothing of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tolerations {
    default: Vec<Value>,
    allowed: Vec<Value>,
}

impl Tolerations {
    /// Reads it; `path` is where it stands.
    pub fn of(value: &Value, path: &str) -> Result<Tolerations, ConfigurationError> {
        if (read::text(value, "apiVersion"), read::text(value, "kind")) != (VERSION, "Configuration") {
            return Err(ConfigurationError::kind(value, path));
        }
        known(value, path, &["apiVersion", "kind", "default", "whitelist"])?;
        let mut errors = Vec::new();
        for list in ["default", "whitelist"] {
            schema::validate::tolerations(
                read::list(value, list),
                &format!("podtolerationrestriction.{list}"),
                &mut errors,
            );
        }
        match errors.is_empty() {
            true => Ok(Tolerations {
                default: read::list(value, "default").to_vec(),
                allowed: read::list(value, "whitelist").to_vec(),
            }),
            false => Err(ConfigurationError::Fields(errors).at(path)),
        }
    }
}

/// Upstream's `PodTolerationRestriction`.
pub struct PodTolerationRestriction(pub Tolerations);

#[async_trait]
impl Plugin for PodTolerationRestriction {
    fn name(&self) -> &'static str {
        "PodTolerationRestriction"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        a.is(GroupResource::core("pods")) && matches!(operation, Operation::Create | Operation::Update)
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        let mut more = match review.operation {
            Operation::Create => {
                annotated(namespace(review)?.as_ref(), DEFAULTS)?.unwrap_or_else(|| self.0.default.clone())
            }
            _ => Vec::new(),
        };
        if model::qos::qos_class(review.object) != "BestEffort" {
            more.push(
                json!({"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"}),
            );
        }
        if !more.is_empty() {
            let own = read::list(review.object, "spec.tolerations").to_vec();
            review.object["spec"]["tolerations"] = Value::Array(merged(own, more));
        }
        self.validate(review).await
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let has = read::list(review.object, "spec.tolerations");
        if has.is_empty() {
            return Ok(());
        }
        let (scope, allowed) = match annotated(namespace(review)?.as_ref(), ALLOWED)? {
            Some(of_namespace) => ("namespace", of_namespace),
            None => ("cluster", self.0.allowed.clone()),
        };
        if allowed.is_empty() || has.iter().all(|one| allowed.iter().any(|wide| covers(wide, one))) {
            return Ok(());
        }
        let why = format!(
            "pod tolerations (possibly merged with namespace default tolerations) conflict with its {scope} whitelist"
        );
        Err(Status::new(500, "", why))
    }
}

fn namespace(review: &Review<'_>) -> Result<Arc<Value>, Status> {
    let name = &review.attributes.namespace;
    review
        .lookup
        .get(GroupResource::core("namespaces"), NamespacedName::cluster(name))
        .ok_or_else(|| Status::not_found(GroupResource::core("namespaces"), name))
}

/// The tolerations that an annotation lists; an empty one is an empty list.
fn annotated(namespace: &Value, key: &str) -> Result<Option<Vec<Value>>, Status> {
    match meta::annotation(namespace, key) {
        None => Ok(None),
        Some("") => Ok(Some(Vec::new())),
        Some(text) => match serde_json::from_str::<Option<Vec<Value>>>(text) {
            Ok(list) if list.iter().flatten().all(Value::is_object) => Ok(Some(list.unwrap_or_default())),
            Ok(_) => Err(Status::new(500, "", format!("annotation {key}: not a list of tolerations"))),
            Err(err) => Err(Status::new(500, "", format!("annotation {key}: {err}"))),
        },
    }
}

/// Both lists; of two where one covers the other only the wider stays, of equal ones the first.
fn merged(own: Vec<Value>, more: Vec<Value>) -> Vec<Value> {
    let all = [own, more].concat();
    let mut out: Vec<Value> = Vec::new();
    for (idx, one) in all.iter().enumerate() {
        let wider_later = all[idx + 1..].iter().any(|later| !same(later, one) && covers(later, one));
        if !wider_later && !out.iter().any(|wide| covers(wide, one)) {
            out.push(one.clone());
        }
    }
    out
}

fn same(a: &Value, b: &Value) -> bool {
    let texts =
        ["key", "operator", "value", "effect"].into_iter().all(|field| read::text(a, field) == read::text(b, field));
    texts && read::integer(a, "tolerationSeconds") == read::integer(b, "tolerationSeconds")
}

/// Whether `wide` tolerates all that `one` does.
fn covers(wide: &Value, one: &Value) -> bool {
    if same(wide, one) {
        return true;
    }
    let differ = |field: &str| read::text(wide, field) != read::text(one, field);
    let any_key = read::text(wide, "key").is_empty() && read::text(wide, "operator") == "Exists";
    let effect = read::text(wide, "effect");
    if (differ("key") && !any_key) || (differ("effect") && !effect.is_empty()) {
        return false;
    }
    if effect == "NoExecute"
        && let Some(secs_max) = read::integer(wide, "tolerationSeconds")
        && read::integer(one, "tolerationSeconds").is_none_or(|secs| secs > secs_max)
    {
        return false;
    }
    match read::text(wide, "operator") {
        "Equal" | "" => read::text(one, "operator") == "Equal" && !differ("value"),
        "Exists" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;

    use super::*;

    #[test]
    fn the_wider_toleration_stays() {
        let equal = |value: &str| json!({"key": "a", "operator": "Equal", "value": value, "effect": "NoSchedule"});
        let exists = json!({"key": "a", "operator": "Exists"});
        let everything = json!({"operator": "Exists"});
        assert_eq!(merged(vec![equal("1"), equal("2")], vec![equal("1")]), vec![equal("1"), equal("2")]);
        assert_eq!(merged(vec![equal("1")], vec![exists.clone()]), vec![exists.clone()]);
        assert_eq!(merged(vec![exists.clone()], vec![equal("1")]), vec![exists.clone()]);
        assert_eq!(merged(vec![exists.clone(), equal("1")], vec![everything.clone()]), vec![everything]);
    }

    #[test]
    fn a_time_limit_covers_shorter_ones_only() {
        let secs =
            |secs: i64| json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": secs});
        let forever = json!({"key": "a", "operator": "Exists", "effect": "NoExecute"});
        assert!(
            covers(&secs(10), &secs(5))
                && !covers(&secs(5), &secs(10))
                && !covers(&secs(5), &forever)
                && covers(&forever, &secs(5))
        );
    }

    #[test]
    fn a_configuration_is_judged_as_a_pods_tolerations_are() {
        let configuration = |list: Value| json!({"apiVersion": VERSION, "kind": "Configuration", "whitelist": list});
        let of = |value: &Value| Tolerations::of(value, "x").map_err(|err| Chain(&err).to_string());
        assert_eq!(of(&configuration(json!([{"operator": "Exists"}]))).unwrap().allowed.len(), 1);
        let refused = of(&configuration(json!([{"key": "a b", "operator": "Exists"}]))).unwrap_err();
        assert!(
            refused.starts_with("x: invalid config: podtolerationrestriction.whitelist[0].key: Invalid value: \"a b\""),
            "{refused}"
        );
        assert!(of(&json!({"kind": "Configuration"})).unwrap_err().contains("no kind"));
    }

    #[test]
    fn an_annotation_lists_tolerations_or_is_an_error_of_the_server() {
        let of = |text: Option<&str>| {
            let annotations = text.map_or(json!({}), |text| json!({ (DEFAULTS): text }));
            annotated(&json!({"metadata": {"annotations": annotations}}), DEFAULTS)
        };
        assert_eq!(of(None).unwrap(), None, "the cluster's hold");
        assert_eq!(of(Some("")).unwrap(), Some(Vec::new()), "none at all");
        assert_eq!(of(Some("null")).unwrap(), Some(Vec::new()));
        assert_eq!(of(Some(r#"[{"key": "a"}]"#)).unwrap(), Some(vec![json!({"key": "a"})]));
        for text in ["[1]", "{}", "["] {
            let refused = of(Some(text)).unwrap_err();
            assert_eq!(refused.code, 500, "{text}");
            assert!(refused.message.starts_with(&format!("annotation {DEFAULTS}: ")), "{}", refused.message);
        }
    }
}
