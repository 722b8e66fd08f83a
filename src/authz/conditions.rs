//! `matchConditions` of an authorizer's webhook: CEL about the SubjectAccessReview that it would be asked.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cel::types::{BOOL, Object, TEXT, Ty};
use cel::value::Val;
use cel::{OBJECT_BUDGET, Program, Surroundings};
use serde_json::Value;

const CONDITIONS_MAX: usize = 64;

/// Compiles them.
///
/// Errors: a text with the place and what is wrong there.
pub fn read(conditions: &Value) -> Result<Vec<Program>, String> {
    let all = conditions.as_array().map_or(&[][..], Vec::as_slice);
    if all.len() > CONDITIONS_MAX {
        return Err(format!("matchConditions: Too many: {}: must have at most {CONDITIONS_MAX} items", all.len()));
    }
    let (mut seen, mut out) = (BTreeSet::new(), Vec::new());
    for (idx, condition) in all.iter().enumerate() {
        let at = format!("matchConditions[{idx}].expression");
        let text = condition["expression"].as_str().unwrap_or_default().trim();
        if text.is_empty() {
            return Err(format!("{at}: Required value"));
        }
        if !seen.insert(text) {
            return Err(format!("{at}: Duplicate value: {text:?}"));
        }
        let program = Program::compile(text, &names())
            .map_err(|why| format!("{at}: Invalid value: {text:?}: compilation failed: {why}"))?;
        if !program.makes(&BOOL) {
            return Err(format!("{at}: Invalid value: {text:?}: must evaluate to bool"));
        }
        out.push(program);
    }
    Ok(out)
}

fn object(name: &str, fields: &[(&str, Ty)]) -> Ty {
    let fields: BTreeMap<String, Ty> = fields.iter().map(|(field, ty)| ((*field).to_owned(), ty.clone())).collect();
    Ty::Object(Arc::new(Object { name: name.to_owned(), fields }))
}

/// `request` is a SubjectAccessReviewSpec.
fn names() -> Vec<(String, Ty)> {
    let texts = Ty::List(Box::new(TEXT));
    let requirement = object("SelectorRequirement", &[("key", TEXT), ("operator", TEXT), ("values", texts.clone())]);
    let selector =
        object("SelectorAttributes", &[("rawSelector", TEXT), ("requirements", Ty::List(Box::new(requirement)))]);
    let resource: Vec<(&str, Ty)> = ["namespace", "verb", "group", "version", "resource", "subresource", "name"]
        .into_iter()
        .map(|field| (field, TEXT))
        .chain([("fieldSelector", selector.clone()), ("labelSelector", selector)])
        .collect();
    let request = object(
        "kubernetes.SubjectAccessReviewSpec",
        &[
            ("resourceAttributes", object("kubernetes.ResourceAttributes", &resource)),
            ("nonResourceAttributes", object("kubernetes.NonResourceAttributes", &[("path", TEXT), ("verb", TEXT)])),
            ("user", TEXT),
            ("groups", texts.clone()),
            ("extra", Ty::Map(Box::new(TEXT), Box::new(texts))),
            ("uid", TEXT),
        ],
    );
    vec![("request".to_owned(), request)]
}

/// Whether all hold. One that does not settles it, whatever goes wrong with others.
///
/// Errors: a text that says what went wrong.
pub fn hold(conditions: &[Program], spec: &Value) -> Result<bool, String> {
    if conditions.is_empty() {
        return Ok(true);
    }
    let surroundings =
        Surroundings { values: vec![("request".to_owned(), Val::from_json(&whole(spec)))], lazy: None, host: None };
    let (budget, mut faults) = (Cell::new(OBJECT_BUDGET), Vec::new());
    for program in conditions {
        match program.holds(&surroundings, &budget) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(fault) => faults.push(format!("{}: {fault}", program.text)),
        }
    }
    if faults.is_empty() { Ok(true) } else { Err(faults.join(", ")) }
}

/// Texts that are not sent because they are empty are empty for expressions, and not missing.
fn whole(spec: &Value) -> Value {
    let mut spec = spec.clone();
    if let Some(resource) = spec.get_mut("resourceAttributes").and_then(Value::as_object_mut) {
        for field in ["namespace", "verb", "group", "version", "resource", "subresource", "name"] {
            resource.entry(field).or_insert_with(|| Value::from(""));
        }
    }
    for (field, empty) in [("groups", Value::Array(Vec::new())), ("uid", Value::from(""))] {
        if spec.get(field).is_none() {
            spec[field] = empty;
        }
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn conditions_choose_what_is_asked() {
        let read = |texts: &[&str]| read(&texts.iter().map(|t| json!({"expression": t})).collect());
        let spec = json!({"user": "u", "groups": ["g"],
            "resourceAttributes": {"namespace": "kube-system", "verb": "get", "resource": "pods"}});
        let holds = |texts: &[&str]| hold(&read(texts).unwrap(), &spec);
        let resources = "has(request.resourceAttributes)";
        assert_eq!(holds(&[resources, "request.resourceAttributes.namespace == 'kube-system'"]), Ok(true));
        assert_eq!(holds(&[resources, "!('g' in request.groups)"]), Ok(false));
        assert_eq!(holds(&["request.resourceAttributes.name == ''"]), Ok(true));
        // An error does not matter beside a condition that does not hold.
        assert_eq!(holds(&["request.nonResourceAttributes.path == '/'", "false"]), Ok(false));
        assert!(holds(&["request.nonResourceAttributes.path == '/'"]).is_err());
        assert!(read(&["request.nothing"]).unwrap_err().contains("undefined field 'nothing'"));
        assert!(read(&["request.user"]).unwrap_err().ends_with("must evaluate to bool"));
        assert!(read(&["true", "true"]).unwrap_err().starts_with("matchConditions[1].expression: Duplicate value"));
    }
}
