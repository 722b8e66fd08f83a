//! Events: lenient for the core API, as old clients write them; strict for events.k8s.io.

use model::meta;
use model::names;
use serde_json::{Value, json};

use crate::read;
use crate::validate::checks::{Errors, IMMUTABLE, invalid_each};
use crate::validate::error::FieldError;
use crate::validate::path::Path;

/// The rules of the core API for an event, new or changed.
pub(crate) fn event(object: &Value, errors: &mut Errors) {
    let (ns, own) = (read::text(object, "involvedObject.namespace"), meta::namespace(object));
    let newer = read::at(object, "eventTime").is_some();
    let fits = match ns {
        "" => own == "default" || (newer && own == "kube-system"),
        ns => newer || ns == own,
    };
    if !fits {
        errors.push(FieldError::invalid("involvedObject.namespace", ns, "does not match event.namespace"));
    }
    if !newer {
        return;
    }
    let controller = read::text(object, "reportingComponent");
    if controller.is_empty() {
        errors.push(FieldError::required("reportingComponent", ""));
    }
    invalid_each(Path("reportingComponent"), controller, names::qualified_name_errors(controller), errors);
    for (field, max, needed) in
        [("reportingInstance", 128, true), ("action", 128, true), ("reason", 128, true), ("message", 1024, false)]
    {
        let text = read::text(object, field);
        if text.is_empty() && needed {
            errors.push(FieldError::required(field, ""));
        }
        if text.len() > max {
            errors.push(FieldError::invalid(field, "", format!("can have at most {max} characters")));
        }
    }
}

/// The rules that events.k8s.io has in addition. `errors` are those of the core API, in whose form the object is; the
/// one field that is called otherwise gets its name.
pub(crate) fn strict(new: &Value, old: Option<&Value>, errors: &mut Errors) {
    for error in errors.iter_mut().filter(|error| error.field == "reportingComponent") {
        error.field = "reportingController".to_owned();
    }
    match old {
        None => strict_create(new, errors),
        Some(old) => strict_update(new, old, errors),
    }
}

fn strict_create(new: &Value, errors: &mut Errors) {
    series(new, errors);
    if read::at(new, "eventTime").is_none() {
        errors.push(FieldError::required("eventTime", ""));
    }
    let class = read::text(new, "type");
    if !matches!(class, "Normal" | "Warning") {
        errors.push(FieldError::invalid("type", "", format!("has invalid value: {class}")));
    }
    let source = ["component", "host"].into_iter().any(|field| !read::text(new, &format!("source.{field}")).is_empty());
    let set = |field: &str| read::at(new, field).is_some();
    for (field, is_set) in [
        ("firstTimestamp", set("firstTimestamp")),
        ("lastTimestamp", set("lastTimestamp")),
        ("count", read::number(new, "count") != 0),
        ("source", source),
    ] {
        if is_set {
            errors.push(FieldError::invalid(field, "", "needs to be unset"));
        }
    }
}

/// Of an event that is there only the series may change.
fn strict_update(new: &Value, old: &Value, errors: &mut Errors) {
    if read::at(new, "series") != read::at(old, "series") {
        series(new, errors);
    }
    for (field, shown) in [
        ("involvedObject", "involvedObject"),
        ("reason", "reason"),
        ("message", "message"),
        ("source", "source"),
        ("firstTimestamp", "firstTimestamp"),
        ("lastTimestamp", "lastTimestamp"),
        ("count", "count"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingComponent", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ] {
        let (now, before) = (read::at(new, field), read::at(old, field));
        if now != before {
            errors.push(FieldError::invalid(shown, now.cloned().unwrap_or(json!("")), IMMUTABLE));
        }
    }
}

fn series(event: &Value, errors: &mut Errors) {
    let Some(series) = read::at(event, "series") else { return };
    if read::number(series, "count") < 2 {
        errors.push(FieldError::invalid("series.count", "", "should be at least 2"));
    }
    if read::at(series, "lastObservedTime").is_none() {
        errors.push(FieldError::required("series.lastObservedTime", ""));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors_of(new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut errors = Vec::new();
        event(new, &mut errors);
        strict(new, old, &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_new_api_refuses_what_only_old_clients_write() {
        let old_style = json!({"metadata": {"namespace": "a"}, "involvedObject": {"namespace": "a"}, "type": "Odd",
            "count": 1, "series": {"count": 1}});
        let wanted = [
            "series.count: Invalid value: \"\": should be at least 2",
            "series.lastObservedTime: Required value",
            "eventTime: Required value",
            "type: Invalid value: \"\": has invalid value: Odd",
            "count: Invalid value: \"\": needs to be unset",
        ];
        assert_eq!(errors_of(&old_style, None), wanted);
    }

    #[test]
    fn an_event_that_is_there_gets_a_series_and_no_other_text() {
        let old = json!({"metadata": {"namespace": "a"}, "involvedObject": {"namespace": "a"}, "type": "Normal",
            "eventTime": "2024-01-01T00:00:00.000000Z",
                         "reportingComponent": "a.b/c", "reportingInstance": "x", "action": "A", "reason": "R",
                             "message": "m"});
        let mut new = old.clone();
        new["series"] = json!({"count": 2, "lastObservedTime": "2024-01-01T00:00:00.000000Z"});
        assert!(errors_of(&new, Some(&old)).is_empty());
        new["message"] = json!("n");
        new["reportingComponent"] = json!("q");
        let wanted = [
            "message: Invalid value: \"n\": field is immutable",
            "reportingController: Invalid value: \"q\": field is immutable",
        ];
        assert_eq!(errors_of(&new, Some(&old)), wanted);
    }
}
