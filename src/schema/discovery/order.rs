//! The order of keys in discovery documents: clients that cut them as text (upstream's own scripts, shell with grep)
//! know upstream's.

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::{Map, Value};

/// An entry of an APIResourceList.
const RESOURCE: &[&str] = &[
    "name",
    "singularName",
    "namespaced",
    "group",
    "version",
    "kind",
    "verbs",
    "shortNames",
    "categories",
    "storageVersionHash",
];
/// A kind by group and version.
const KIND: &[&str] = &["group", "version", "kind"];
/// All other objects of these documents. No two of them want a different order.
const OTHERS: &[&str] = &[
    "kind",
    "apiVersion",
    "metadata",
    "groupVersion",
    "name",
    "version",
    "versions",
    "preferredVersion",
    "clientCIDR",
    "serverAddressByClientCIDRs",
    "groups",
    "resource",
    "subresource",
    "responseKind",
    "acceptedTypes",
    "scope",
    "singularResource",
    "verbs",
    "shortNames",
    "categories",
    "subresources",
    "resources",
    "freshness",
    "items",
];

/// A discovery document that is written with its keys in the order of upstream's types (apimachinery `meta/v1/types.go`
/// and apidiscovery `v2/types.go`, 1.36.2). Keys that upstream does not have come last.
pub struct InOrder<'a>(pub &'a Value);

impl Serialize for InOrder<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(fields) => {
                let order = order_of(fields);
                let mut map = out.serialize_map(Some(fields.len()))?;
                for (key, value) in order.iter().filter_map(|key| fields.get_key_value(*key)) {
                    map.serialize_entry(key, &InOrder(value))?;
                }
                for (key, value) in fields.iter().filter(|(key, _)| !order.contains(&key.as_str())) {
                    map.serialize_entry(key, &InOrder(value))?;
                }
                map.end()
            }
            Value::Array(items) => {
                let mut list = out.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(&InOrder(item))?;
                }
                list.end()
            }
            plain => plain.serialize(out),
        }
    }
}

fn order_of(fields: &Map<String, Value>) -> &'static [&'static str] {
    if fields.contains_key("singularName") {
        RESOURCE
    } else if fields.contains_key("group") {
        KIND
    } else {
        OTHERS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use crate::discovery;

    fn text(document: &Value) -> String {
        serde_json::to_string(&InOrder(document)).unwrap()
    }

    #[test]
    fn a_resource_is_found_as_text_as_upstreams_scripts_look_for_it() {
        // test/cmd/discovery.sh of upstream 1.36.2 greps for these.
        let core = text(&discovery::resources(Catalog::builtin(), crate::table::GroupVersion::CORE).unwrap());
        assert!(core.starts_with(
            r#"{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"bindings","singularName":"binding","namespaced":true,"#
        ));
        assert!(core.contains(r#"{"name":"configmaps","singularName":"configmap","namespaced":true,"kind":"ConfigMap","verbs":["create","delete","deletecollection","get","list","patch","update","watch"],"shortNames":["cm"],"storageVersionHash":"#));
        assert!(core.contains(r#""shortNames":["po"],"categories":["all"]"#));
        assert!(core.contains(r#"{"name":"pods/eviction","singularName":"","namespaced":true,"group":"policy","version":"v1","kind":"Eviction","verbs":["create"]}"#));
    }

    #[test]
    fn groups_and_the_aggregated_form_have_upstreams_order_too() {
        let apps = text(&discovery::group(Catalog::builtin(), "apps").unwrap());
        let want = [
            r#"{"kind":"APIGroup","apiVersion":"v1","name":"apps","#,
            r#""versions":[{"groupVersion":"apps/v1","version":"v1"}],"#,
            r#""preferredVersion":{"groupVersion":"apps/v1","version":"v1"}}"#,
        ]
        .concat();
        assert_eq!(apps, want);
        let all = text(&discovery::aggregated(Catalog::builtin(), true, discovery::Aggregated::V2));
        assert!(all.starts_with(r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[{"metadata":{},"versions":[{"version":"v1","resources":[{"resource":"bindings","responseKind":{"group":"","version":"","kind":"Binding"},"scope":"Namespaced""#));
        assert!(all.ends_with(r#""freshness":"Current"}]}]}"#));
    }

    #[test]
    fn nothing_is_lost_for_want_of_a_place() {
        let document = serde_json::json!({"kind": "A", "zeta": {"group": "g", "other": [1, null]}, "alpha": true});
        assert_eq!(serde_json::from_str::<Value>(&text(&document)).unwrap(), document);
        assert_eq!(text(&document), r#"{"kind":"A","alpha":true,"zeta":{"group":"g","other":[1,null]}}"#);
    }
}
