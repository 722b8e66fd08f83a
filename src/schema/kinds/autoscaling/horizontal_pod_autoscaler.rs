//! HorizontalPodAutoscaler (autoscaling).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Counts, Object, Owners, Printer, Rules, kind};
use crate::convert;
use crate::defaults::{at, is_empty, make, put, text};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::print::workload::count;
use crate::read;
use crate::validate;

/// The row.
pub(crate) static HORIZONTAL_POD_AUTOSCALER: Behaviour = Behaviour {
    stored: Some(("autoscaling", "v2")),
    defaults,
    owners: Owners::CLIENTS.with_status(),
    rules: Rules {
        always: validate::autoscaler::autoscaler,
        new: validate::autoscaler::new_autoscaler,
        counts: Some(Counts {
            counts: &["currentReplicas", "desiredReplicas"],
            of_replicas: &[],
            of_ready: validate::status::READY,
        }),
        ..Rules::NONE
    },
    printer: Printer {
        columns: &[
            NAME,
            column::text("Reference"),
            column::text("Targets"),
            column::text("MinPods"),
            column::text("MaxPods"),
            column::integer("Replicas"),
            AGE,
        ],
        cells,
    },
    convert: convert::autoscaling::between,
    ..kind("autoscaling", "HorizontalPodAutoscaler")
};

fn defaults(object: &mut Object) {
    let v1 = text(object, "apiVersion") == "autoscaling/v1";
    let spec = make(object, "spec");
    put(spec, "minReplicas", 1);
    if v1 {
        return;
    }
    if is_empty(spec, "metrics") {
        let target = json!({"type": "Utilization", "averageUtilization": 80});
        spec.insert("metrics".into(), json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]));
    }
    let Some(behavior) = at(spec, "behavior") else { return };
    let up = json!([{"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15}]);
    let rules = make(behavior, "scaleUp");
    put(rules, "stabilizationWindowSeconds", 0);
    scaling_rules(rules, up);
    let rules = make(behavior, "scaleDown");
    scaling_rules(rules, json!([{"type": "Percent", "value": 100, "periodSeconds": 15}]));
}

fn scaling_rules(rules: &mut Object, policies: Value) {
    put(rules, "selectPolicy", "Max");
    if is_empty(rules, "policies") {
        rules.insert("policies".into(), policies);
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let reference = format!(
        "{}/{}",
        read::text(object, "spec.scaleTargetRef.kind"),
        read::text(object, "spec.scaleTargetRef.name")
    );
    let minimum = read::integer(object, "spec.minReplicas").map_or_else(|| "<unset>".to_owned(), |n| n.to_string());
    vec![
        name(object),
        json!(reference),
        json!(targets(object)),
        json!(minimum),
        json!(read::number(object, "spec.maxReplicas").to_string()),
        count(object, "status.currentReplicas"),
        age(object, now),
    ]
}

/// `cpu: 12%/80%`, one for each metric, at most two and how many more.
fn targets(object: &Value) -> String {
    if let Some(target) = read::integer(object, "spec.targetCPUUtilizationPercentage") {
        let current = read::integer(object, "status.currentCPUUtilizationPercentage");
        return format!("cpu: {}/{target}%", current.map_or_else(|| "<unknown>".to_owned(), |c| format!("{c}%")));
    }
    let current = read::list(object, "status.currentMetrics");
    let metrics = read::list(object, "spec.metrics");
    let texts: Vec<String> = metrics.iter().enumerate().map(|(idx, m)| target(m, current.get(idx))).collect();
    match texts.len() {
        0 => "<none>".to_owned(),
        n if n > 2 => format!("{} + {} more...", texts[..2].join(", "), n - 2),
        _ => texts.join(", "),
    }
}

fn target(metric: &Value, current: Option<&Value>) -> String {
    let field = match read::text(metric, "type") {
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        "Pods" => "pods",
        "Object" => "object",
        "External" => "external",
        _ => return "<unknown type>".to_owned(),
    };
    let wanted = |name: &str| read::at(metric, &format!("{field}.target.{name}"));
    let have = |name: &str| current.and_then(|c| read::at(c, &format!("{field}.current.{name}")));
    let show = |v: Option<&Value>| {
        v.map_or_else(|| "<unknown>".to_owned(), |v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
    };
    let prefix = match field {
        "resource" | "containerResource" => format!("{}: ", read::text(metric, &format!("{field}.name"))),
        _ => String::new(),
    };
    let suffix = if matches!(field, "object" | "external") { " (avg)" } else { "" };
    if wanted("averageUtilization").is_some() {
        let now = have("averageUtilization").map_or_else(|| "<unknown>".to_owned(), |v| format!("{v}%"));
        return format!("{prefix}{now}/{}%", show(wanted("averageUtilization")));
    }
    if wanted("averageValue").is_some() {
        return format!("{prefix}{}/{}{suffix}", show(have("averageValue")), show(wanted("averageValue")));
    }
    format!("{prefix}{}/{}", show(have("value")), show(wanted("value")))
}
