//! The types of served resources as expressions see them, and what a policy's expressions get wrong about them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cel::Program;
use cel::admission::{self, Extras};
use cel::types::{BOOL, INT, Object, TEXT, Ty};
use serde_json::{Value, json};

use crate::catalog::Catalog;
use crate::custom::rules::{escaped, type_of};
use crate::read;
use crate::table::{GroupVersion, Resource, Shape, TypeDef};

/// Types that one rule of a policy is checked against, as upstream.
const TYPES_MAX: usize = 10;

/// The type of a resource's objects.
pub fn of(resource: &Resource) -> Ty {
    match &resource.definition {
        Some(definition) => type_of(&definition.schema, true, &resource.kind),
        None => object(resource.type_def(), &mut Vec::new()),
    }
}

/// A struct's type; one that is part of itself is not known more closely the second time.
fn object<'t>(of: &'t TypeDef, above: &mut Vec<&'t str>) -> Ty {
    if of.open || above.contains(&of.name.as_ref()) {
        return Ty::Dyn;
    }
    above.push(&of.name);
    let fields = of.fields.iter().filter_map(|f| Some((escaped(&f.name)?, shaped(&f.shape, above)))).collect();
    above.pop();
    Ty::Object(Arc::new(Object { name: of.go_name().to_owned(), fields }))
}

fn shaped<'t>(shape: &'t Shape, above: &mut Vec<&'t str>) -> Ty {
    match shape {
        Shape::Bool => BOOL,
        Shape::Int32 | Shape::Int64 => INT,
        Shape::Float => Ty::Named("double"),
        Shape::String => TEXT,
        Shape::Bytes => Ty::Named("bytes"),
        // In JSON these are texts or numbers, and expressions may take them for either.
        Shape::Time | Shape::MicroTime | Shape::Duration | Shape::Quantity | Shape::IntOrString | Shape::Any => Ty::Dyn,
        Shape::List(item) => Ty::List(Box::new(shaped(item, above))),
        Shape::Map(value) => Ty::Map(Box::new(TEXT), Box::new(shaped(value, above))),
        Shape::Struct(of) => object(of.get(), above),
    }
}

/// `status.typeChecking.expressionWarnings` of a ValidatingAdmissionPolicy: where an expression cannot fit an object
/// that it will be asked about.
pub fn warnings(policy: &Value, catalog: &Catalog) -> Vec<Value> {
    let spec = &policy["spec"];
    let params = read::at(spec, "paramKind");
    let params = params.map(|kind| {
        let found = catalog.by_kind(GroupVersion::parse(read::text(kind, "apiVersion")), read::text(kind, "kind"));
        found.map_or(Ty::Dyn, |resource| of(resource))
    });
    let scopes: Vec<(String, Vec<(String, Ty)>)> = matched(spec, catalog)
        .into_iter()
        .map(|resource| (shown(resource), names(spec, resource, params.as_ref())))
        .collect();
    let mut out = Vec::new();
    for (idx, validation) in read::list(spec, "validations").iter().enumerate() {
        for field in ["expression", "messageExpression"] {
            let Some(text) = read::some_text(validation, field) else { continue };
            let wrong: Vec<String> = scopes
                .iter()
                .filter_map(|(kind, names)| {
                    Some(format!("{kind}: compilation failed: {}\n", Program::compile(text, names).err()?))
                })
                .collect();
            if !wrong.is_empty() {
                out.push(json!({"fieldRef": format!("spec.validations[{idx}].{field}"), "warning": wrong.join("\n")}));
            }
        }
    }
    out
}

/// `apps/v1, Kind=Deployment`, as Go prints it.
fn shown(resource: &Resource) -> String {
    format!("{}/{}, Kind={}", resource.group, resource.version, resource.kind)
}

/// The resources that a policy names; rules with wildcards are not looked at.
fn matched<'c>(spec: &Value, catalog: &'c Catalog) -> Vec<&'c Resource> {
    let mut out: BTreeMap<(String, String, String), &Resource> = BTreeMap::new();
    for rule in read::list(spec, "matchConstraints.resourceRules") {
        let parts = ["apiGroups", "apiVersions", "resources"]
            .map(|field| read::texts(rule, field).into_iter().collect::<BTreeSet<_>>());
        let [groups, versions, resources] = &parts;
        if groups.iter().chain(versions).any(|text| text.contains('*')) {
            continue;
        }
        let mut n = 0;
        for (group, version) in groups.iter().flat_map(|g| versions.iter().map(move |v| (g, v))) {
            for plural in resources.iter().filter(|r| !r.contains(['*', '/'])) {
                let Some(found) = catalog.resource(GroupVersion { group, version }, plural) else { continue };
                out.insert((found.group.to_string(), found.version.to_string(), found.kind.to_string()), found);
                n += 1;
                if n == TYPES_MAX {
                    return out.into_values().collect();
                }
            }
        }
    }
    out.into_values().collect()
}

/// The names that a policy's expressions may use, where `object` is of this resource.
fn names(spec: &Value, resource: &Resource, params: Option<&Ty>) -> Vec<(String, Ty)> {
    let ty = of(resource);
    let mut names = admission::names(Extras { params: params.is_some(), authorizer: true });
    for (name, known) in &mut names {
        match name.as_str() {
            "object" | "oldObject" => *known = ty.clone(),
            "params" => *known = params.cloned().unwrap_or(Ty::Dyn),
            _ => {}
        }
    }
    let mut variables = BTreeMap::new();
    for variable in read::list(spec, "variables") {
        let scope = admission::with_variables(names.clone(), &variables);
        let made =
            Program::compile(read::text(variable, "expression"), &scope).map_or(Ty::Dyn, |program| program.result);
        variables.insert(read::text(variable, "name").to_owned(), made);
    }
    admission::with_variables(names, &variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(expression: &str, rule: Value) -> Value {
        json!({"spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "variables": [{"name": "n", "expression": "object.spec.replicas"}],
            "validations": [{"expression": expression}]}})
    }

    #[test]
    fn a_field_that_no_matched_kind_has_is_warned_about() {
        let said = |expression: &str| {
            let rule = json!({"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]});
            warnings(&policy(expression, rule), Catalog::builtin())
        };
        assert!(said("object.spec.replicas > 1 && variables.n < 5").is_empty());
        assert!(said("has(object.spec.template.spec.containers[0].resources.limits.cpu)").is_empty());
        assert!(said("object.metadata.labels['a'] == 'b'").is_empty());
        let wrong = said("object.spec.replicaz > 1");
        assert_eq!(wrong[0]["fieldRef"], "spec.validations[0].expression");
        let text = wrong[0]["warning"].as_str().unwrap();
        assert!(
            text.starts_with(
                "apps/v1, Kind=Deployment: compilation failed: ERROR: <input>:1:12: undefined field 'replicaz'"
            ),
            "{text}"
        );
        assert!(
            said("variables.n == 'x'")[0]["warning"]
                .as_str()
                .unwrap()
                .contains("found no matching overload for '_==_'")
        );
    }

    #[test]
    fn wildcards_are_not_checked_and_types_that_hold_themselves_end() {
        let all = json!({"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]});
        assert!(warnings(&policy("object.nothing", all), Catalog::builtin()).is_empty());
        let definitions = json!({"apiGroups": ["apiextensions.k8s.io"], "apiVersions": ["v1"],
            "resources": ["customresourcedefinitions"]});
        assert!(warnings(&policy("object.spec.group == 'a'", definitions), Catalog::builtin()).is_empty());
    }
}
