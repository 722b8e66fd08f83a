//! Sentences for what the k8s-openapi crate has none: the parameters of requests, and lists.

/// The sentence about a parameter of the query; nothing for one that is not known.
pub(super) fn of_parameter(name: &str) -> Option<&'static str> {
    Some(match name {
        "allowWatchBookmarks" => "Send BOOKMARK events with a fresh resource version while watching.",
        "continue" => "Where the page before ended: the value that it gave. It is good for some minutes.",
        "dryRun" => "With the value All, every stage of the request runs, but nothing is stored.",
        "fieldManager" => {
            "Name under which the fields that this request changes are owned: at most 128 printable characters."
        }
        "fieldSelector" => {
            "A selector by fields that restricts the list of returned objects, as in metadata.name=x. Default: all."
        }
        "fieldValidation" => {
            "What unknown or repeated fields cause: Ignore nothing, Warn a warning, Strict an error. Default: Warn."
        }
        "force" => "Take fields that other managers own, instead of a conflict. For apply only.",
        "gracePeriodSeconds" => {
            "Seconds before the object is removed; 0 removes it at once. Default: what its kind says."
        }
        "ignoreStoreReadErrorWithClusterBreakingPotential" => {
            "Delete an object that cannot be read from the store any more, without its finalizers. Unsafe."
        }
        "labelSelector" => {
            "A selector by labels that restricts the list of returned objects, as in app=web. Default: all."
        }
        "limit" => {
            "At most so many objects in one answer; where there are more, it has a continue value for the next page."
        }
        "orphanDependents" => "Deprecated: use propagationPolicy. Whether what the object owns stays.",
        "pretty" => "If true, the answer is indented.",
        "propagationPolicy" => {
            "What becomes of what the object owns: Orphan lets it stay, Background removes it later, Foreground before \
            the object."
        }
        "resourceVersion" => "The state of the cluster that the answer is about. Empty: the newest.",
        "resourceVersionMatch" => "How resourceVersion is meant in a list: NotOlderThan or Exact.",
        "sendInitialEvents" => {
            "Begin a watch with an ADDED event for every object that is there, and a bookmark behind the last."
        }
        "timeoutSeconds" => "Seconds after which a list or watch ends.",
        "watch" => {
            "Watch for changes to the described resources: they come as a stream of events from resourceVersion on."
        }
        _ => return None,
    })
}

/// The sentence about a list of this kind, with this plural (an empty field), or about one of its fields.
pub(super) fn of_list(kind: &str, plural: &str, field: &str) -> Option<String> {
    Some(match field {
        "" => format!("{kind}List is a list of {plural}."),
        "items" => format!("List of {plural}."),
        "metadata" => {
            "Metadata of the list: the resource version at which it was read and, on a page, where the next begins."
                .to_owned()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{v2, v3};
    use crate::catalog::Catalog;

    #[test]
    fn lists_and_parameters_are_described() {
        // test/cmd/discovery.sh of upstream 1.36.2 looks for such sentences.
        let catalog = Catalog::builtin();
        let list = v2(catalog, "v1")["definitions"]["io.k8s.api.core.v1.ServiceList"].clone();
        assert_eq!(list["properties"]["items"]["description"], "List of services.");
        assert_eq!(list["description"], "ServiceList is a list of services.");
        for document in [v2(catalog, "v1"), v3(catalog, crate::table::GroupVersion::parse("apps/v1")).unwrap()] {
            let paths = document["paths"].as_object().unwrap();
            let operations = paths.values().flat_map(|path| path.as_object().unwrap().iter());
            let parameters = operations.flat_map(|(name, operation)| {
                if name == "parameters" { operation } else { &operation["parameters"] }.as_array().into_iter().flatten()
            });
            let silent: Vec<_> = parameters.filter(|p| p["in"] != "body" && p["description"].is_null()).collect();
            assert!(silent.is_empty(), "{:?}", silent.first());
        }
    }
}
