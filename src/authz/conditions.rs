//! `matchConditions` of an authorizer's webhook: CEL about the SubjectAccessReview that it would be asked.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cel::run::Fault;
use cel::types::{BOOL, Object, TEXT, Ty};
use cel::value::Val;
use cel::{OBJECT_BUDGET, Program, Surroundings};
use schema::validate::error::FieldError;
use serde_json::Value;

const CONDITIONS_MAX: usize = 64;

/// Conditions that are neither true nor false: their expressions, each with why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", listed(.0))]
pub struct Faults(Vec<(String, Fault)>);

fn listed(faults: &[(String, Fault)]) -> String {
    faults.iter().map(|(expression, fault)| format!("{expression}: {fault}")).collect::<Vec<_>>().join(", ")
}

/// Compiles them.
pub fn read(conditions: &Value) -> Result<Vec<Program>, FieldError> {
    let all = conditions.as_array().map_or(&[][..], Vec::as_slice);
    if all.len() > CONDITIONS_MAX {
        return Err(FieldError::too_many("matchConditions", all.len(), CONDITIONS_MAX));
    }
    let (mut seen, mut out) = (BTreeSet::new(), Vec::new());
    for (idx, condition) in all.iter().enumerate() {
        let at = format!("matchConditions[{idx}].expression");
        let text = condition["expression"].as_str().unwrap_or_default().trim();
        if text.is_empty() {
            return Err(FieldError::required(at, ""));
        }
        if !seen.insert(text) {
            return Err(FieldError::duplicate(at, text));
        }
        let program = Program::compile(text, &names())
            .map_err(|why| FieldError::invalid(at.as_str(), text, format!("compilation failed: {why}")))?;
        if !program.makes(&BOOL) {
            return Err(FieldError::invalid(at, text, "must evaluate to bool"));
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
pub fn hold(conditions: &[Program], spec: &Value) -> Result<bool, Faults> {
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
            Err(fault) => faults.push((program.text.clone(), fault)),
        }
    }
    if faults.is_empty() { Ok(true) } else { Err(Faults(faults)) }
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
        let read = |texts: &[&str]| {
            read(&texts.iter().map(|t| json!({"expression": t})).collect()).map_err(|err| err.to_string())
        };
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

    #[test]
    fn a_condition_that_cannot_be_used_is_refused_with_its_place() {
        let read = |all: Value| read(&all).map(|programs| programs.len()).map_err(|err| err.to_string());
        assert_eq!(read(Value::Null), Ok(0));
        let many: Vec<Value> = (0..65).map(|n| json!({"expression": format!("{n} == {n}")})).collect();
        assert_eq!(read(many[..64].into()), Ok(64));
        assert_eq!(read(many.into()).unwrap_err(), "matchConditions: Too many: 65: must have at most 64 items");
        let at = "matchConditions[1].expression";
        let second = |text: &str| read(json!([{"expression": "true"}, {"expression": text}])).unwrap_err();
        assert_eq!(second(" "), format!("{at}: Required value"));
        assert_eq!(second("true"), format!("{at}: Duplicate value: \"true\""));
        assert_eq!(second("1"), format!("{at}: Invalid value: \"1\": must evaluate to bool"));
        assert!(second("x").starts_with(&format!("{at}: Invalid value: \"x\": compilation failed: ")));
    }

    #[test]
    fn conditions_that_went_wrong_are_listed_with_why() {
        let conditions = ["request.resourceAttributes.verb == 'get'", "1 / 0 == 1"];
        let all = conditions.iter().map(|text| json!({"expression": text})).collect();
        let why = hold(&read(&all).unwrap(), &json!({"user": "u"})).unwrap_err().to_string();
        assert!(why.starts_with("request.resourceAttributes.verb == 'get': no such key"), "{why}");
        assert!(why.ends_with(", 1 / 0 == 1: division by zero"), "{why}");
    }
}
