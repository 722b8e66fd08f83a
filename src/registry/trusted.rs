//! Trusted words: annotations that one component of the system writes and others believe.
//!
//! The table says who may write each. Every write of an object passes [`violations`], whatever its verb and
//! subresource, so the readers (the node authorizer, the kubelet, the network) may take such a word for what it says.

use model::meta;
use schema::table::Resource;
use schema::validate::error::FieldError;
use serde_json::Value;

use crate::user::UserInfo;

/// The mark of a mirror pod: how a kubelet shows a pod that it has from a file.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// The users that may write a word into a new object. In an object that exists nobody adds, changes or removes one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Author {
    /// The kubelet of the node that the pod is bound to.
    OwnKubelet,
    /// The creator of the object.
    Creator,
}

struct Word {
    /// Group and plural of the objects that carry it.
    resource: (&'static str, &'static str),
    /// The annotation, or the beginning of several if it ends in `.` or `/`.
    annotation: &'static str,
    /// As refusals name it.
    name: &'static str,
    author: Author,
}

const WORDS: &[Word] = &[
    Word { resource: ("", "pods"), annotation: MIRROR, name: "mirror pod annotation", author: Author::OwnKubelet },
    // Hash, source and time of a pod's manifest: the pod's uid and its origin, as the node's parts read them.
    Word {
        resource: ("", "pods"),
        annotation: "kubernetes.io/config.",
        name: "annotations of a pod's source",
        author: Author::OwnKubelet,
    },
    Word {
        resource: ("", "pods"),
        annotation: "container.apparmor.security.beta.kubernetes.io/",
        name: "AppArmor annotations",
        author: Author::Creator,
    },
];

impl Word {
    fn is(&self, key: &str) -> bool {
        key == self.annotation || (self.annotation.ends_with(['.', '/']) && key.starts_with(self.annotation))
    }
}

/// The words of `object` that `user` may not write, given what was stored (`None`: the object is new).
///
/// Spec: for existing pods `ValidatePodSpecificAnnotationUpdates` of upstream's pkg/apis/core/validation (v1.36.2);
/// what new pods may carry is stricter than there.
pub fn violations(resource: &Resource, user: &UserInfo, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let words: Vec<&Word> =
        WORDS.iter().filter(|word| word.resource == (resource.group.as_ref(), resource.plural.as_ref())).collect();
    let word_of = |key: &str| words.iter().find(|word| word.is(key));
    let refused = |key: &str, why: String| FieldError::forbidden(format!("metadata.annotations[{key}]"), why);
    let keys = |of: &Value| -> Vec<String> {
        meta::annotations(of).into_iter().flatten().map(|(key, _)| key.clone()).collect()
    };
    let mut violations = Vec::new();
    let Some(old) = old else {
        let own = user.node().is_some_and(|node| !node.is_empty() && object["spec"]["nodeName"] == node);
        for key in keys(object) {
            if word_of(&key).is_some_and(|word| word.author == Author::OwnKubelet && !own) {
                violations.push(refused(&key, "may only be set by the kubelet of the pod's node".to_owned()));
            }
        }
        return violations;
    };
    for key in keys(old) {
        if let Some(word) = word_of(&key).filter(|_| meta::annotation(old, &key) != meta::annotation(object, &key)) {
            violations.push(refused(&key, format!("may not remove or update {}", word.name)));
        }
    }
    for key in keys(object) {
        if let Some(word) = word_of(&key).filter(|_| meta::annotation(old, &key).is_none()) {
            violations.push(refused(&key, format!("may not add {}", word.name)));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use model::reference::GroupResource;

    fn said(user: &UserInfo, object: &Value, old: Option<&Value>) -> Vec<String> {
        let pods = crate::forms::stored(GroupResource::core("pods")).unwrap();
        violations(&pods, user, object, old).iter().map(ToString::to_string).collect()
    }

    fn pod(annotations: Value) -> Value {
        json!({"metadata": {"name": "p", "annotations": annotations}, "spec": {"nodeName": "n1"}})
    }

    #[test]
    fn only_the_kubelet_of_its_node_makes_a_mirror_pod() {
        let mirror = pod(json!({"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "x", "other": "x"}));
        let node = |name: &str| UserInfo::new(format!("system:node:{name}"), &["system:nodes"]);
        assert!(said(&node("n1"), &mirror, None).is_empty());
        for user in [
            node("n2"),
            UserInfo::new("bob", &[]),
            UserInfo::new("root", &["system:masters"]),
            UserInfo::new("system:node:n1", &[]),
        ] {
            let said = said(&user, &mirror, None);
            assert_eq!(said.len(), 2, "{}: {said:?}", user.name);
            assert!(said[0].contains("may only be set by the kubelet of the pod's node"), "{said:?}");
        }
    }

    #[test]
    fn nobody_makes_a_pod_a_mirror_or_a_mirror_a_pod() {
        let (plain, mirror) = (pod(json!({"a": "b"})), pod(json!({"kubernetes.io/config.mirror": "x"})));
        let node = UserInfo::new("system:node:n1", &["system:nodes"]);
        let add = "metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not add mirror pod annotation";
        let change = "metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not remove or update mirror \
            pod annotation";
        assert_eq!(said(&node, &mirror, Some(&plain)), [add]);
        assert_eq!(said(&node, &plain, Some(&mirror)), [change]);
        assert_eq!(said(&node, &pod(json!({"kubernetes.io/config.mirror": "y"})), Some(&mirror)), [change]);
        assert!(
            said(&node, &mirror, Some(&mirror)).is_empty()
                && said(&node, &pod(json!({"a": "c"})), Some(&plain)).is_empty()
        );
        assert_eq!(said(&node, &pod(json!({"kubernetes.io/config.hash": "uid of another"})), Some(&plain)).len(), 1);
    }

    #[test]
    fn a_profile_of_apparmor_is_there_from_the_start() {
        let with = pod(json!({"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}));
        let bob = UserInfo::new("bob", &[]);
        assert!(said(&bob, &with, None).is_empty());
        assert_eq!(said(&bob, &with, Some(&pod(json!({})))).len(), 1);
    }
}
