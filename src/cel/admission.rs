//! The names that expressions of admission may use, with their types as far as upstream declares them.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use super::types::{BOOL, Object, TEXT, Ty};

/// The names that may be asked for beyond `object`, `oldObject`, `request` and `namespaceObject`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// `params`: the policy names a kind of parameters.
    pub params: bool,
    /// `authorizer`, and `authorizer.requestResource`.
    pub authorizer: bool,
}

/// Names and types. Policies add `variables` with [`with_variables`].
pub fn names(extras: Extras) -> Vec<(String, Ty)> {
    let mut all =
        vec![("object", Ty::Dyn), ("oldObject", Ty::Dyn), ("request", request()), ("namespaceObject", namespace())];
    if extras.params {
        all.push(("params", Ty::Dyn));
    }
    if extras.authorizer {
        all.extend([("authorizer", Ty::read("authorizer")), ("authorizer.requestResource", Ty::read("resourcecheck"))]);
    }
    all.into_iter().map(|(name, ty)| (name.to_owned(), ty)).collect()
}

/// The same, where `variables` has these fields.
pub fn with_variables(mut names: Vec<(String, Ty)>, variables: &BTreeMap<String, Ty>) -> Vec<(String, Ty)> {
    let object = Object { name: "kubernetes.variables".to_owned(), fields: variables.clone() };
    names.push(("variables".to_owned(), Ty::Object(Arc::new(object))));
    names
}

fn object(name: &str, fields: &[(&str, Ty)]) -> Ty {
    let fields = fields.iter().map(|(field, ty)| ((*field).to_owned(), ty.clone())).collect();
    Ty::Object(Arc::new(Object { name: name.to_owned(), fields }))
}

fn texts() -> Ty {
    Ty::List(Box::new(TEXT))
}

/// `kubernetes.AdmissionRequest`, without the objects.
fn request() -> Ty {
    static MADE: OnceLock<Ty> = OnceLock::new();
    MADE.get_or_init(|| {
        let kind = object("kubernetes.GroupVersionKind", &[("group", TEXT), ("version", TEXT), ("kind", TEXT)]);
        let resource =
            object("kubernetes.GroupVersionResource", &[("group", TEXT), ("version", TEXT), ("resource", TEXT)]);
        let extra = Ty::Map(Box::new(TEXT), Box::new(texts()));
        let user =
            object("kubernetes.UserInfo", &[("username", TEXT), ("uid", TEXT), ("groups", texts()), ("extra", extra)]);
        object(
            "kubernetes.AdmissionRequest",
            &[
                ("kind", kind.clone()),
                ("resource", resource.clone()),
                ("subResource", TEXT),
                ("requestKind", kind),
                ("requestResource", resource),
                ("requestSubResource", TEXT),
                ("name", TEXT),
                ("namespace", TEXT),
                ("operation", TEXT),
                ("userInfo", user),
                ("dryRun", BOOL),
                ("options", Ty::Dyn),
            ],
        )
    })
    .clone()
}

/// `kubernetes.Namespace`. Times come as they stand in JSON, so they are not declared as such.
fn namespace() -> Ty {
    static MADE: OnceLock<Ty> = OnceLock::new();
    MADE.get_or_init(|| {
        let map = Ty::Map(Box::new(TEXT), Box::new(TEXT));
        let metadata = [
            ("name", TEXT),
            ("generateName", TEXT),
            ("namespace", TEXT),
            ("labels", map.clone()),
            ("annotations", map),
            ("UID", TEXT),
            ("creationTimestamp", Ty::Dyn),
            ("deletionGracePeriodSeconds", Ty::Named("int")),
            ("deletionTimestamp", Ty::Dyn),
            ("generation", Ty::Named("int")),
            ("resourceVersion", TEXT),
            ("finalizers", texts()),
        ];
        let condition = object(
            "kubernetes.NamespaceCondition",
            &[("status", TEXT), ("type", TEXT), ("lastTransitionTime", Ty::Dyn), ("message", TEXT), ("reason", TEXT)],
        );
        let status = [("conditions", Ty::List(Box::new(condition))), ("phase", TEXT)];
        object(
            "kubernetes.Namespace",
            &[
                ("metadata", object("kubernetes.NamespaceMetadata", &metadata)),
                ("spec", object("kubernetes.NamespaceSpec", &[("finalizers", texts())])),
                ("status", object("kubernetes.NamespaceStatus", &status)),
            ],
        )
    })
    .clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Program;

    fn compile(text: &str) -> Result<Ty, String> {
        let names = names(Extras { params: false, authorizer: true });
        let names = with_variables(names, &BTreeMap::from([("n".to_owned(), Ty::Named("int"))]));
        Program::compile(text, &names).map(|p| p.result).map_err(|err| err.to_string())
    }

    #[test]
    fn undeclared_fields_of_the_request_are_found_before_anything_runs() {
        assert_eq!(
            compile("request.operation == 'CREATE' && request.userInfo.groups.exists(g, g == 'x')").unwrap(),
            BOOL
        );
        assert!(compile("request.nothing").unwrap_err().contains("undefined field 'nothing'"));
        assert!(compile("params.x == 1").unwrap_err().contains("undeclared reference to 'params'"));
        assert!(compile("variables.m").unwrap_err().contains("undefined field 'm'"));
        assert_eq!(compile("variables.n + 1").unwrap(), Ty::Named("int"));
        assert_eq!(compile("authorizer.requestResource.check('get').allowed()").unwrap(), BOOL);
        assert!(
            compile("authorizer.resource('pods')").unwrap_err().contains("found no matching overload for 'resource'")
        );
    }
}
