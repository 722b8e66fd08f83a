//! CronJob (batch).

use jiff::Timestamp;
use model::labels::format_label_selector;
use serde_json::{Value, json};

use super::failure_policy;
use crate::behaviour::{Behaviour, Object, Owners, Printer, Rules, kind};
use crate::defaults::{self, make, put, put_zero};
use crate::print::cells::{age, containers, name, or_none};
use crate::print::column::{AGE, NAME};
use crate::print::workload::{CONTAINERS, IMAGES, SELECTOR};
use crate::print::{column, duration};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static CRON_JOB: Behaviour = Behaviour {
    defaults,
    owners: Owners::CLIENTS.with_status().counts_spec(),
    rules: Rules { always: validate::workload::cron_job, ..Rules::NONE },
    printer: Printer {
        columns: &[
            NAME,
            column::text("Schedule"),
            column::text("Timezone"),
            column::boolean("Suspend"),
            column::integer("Active"),
            column::text("Last Schedule"),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        cells,
    },
    ..kind("batch", "CronJob")
};

fn defaults(object: &mut Object) {
    let spec = make(object, "spec");
    put_zero(spec, "concurrencyPolicy", "Allow");
    put(spec, "suspend", false);
    put(spec, "successfulJobsHistoryLimit", 3);
    put(spec, "failedJobsHistoryLimit", 1);
    let job = make(make(spec, "jobTemplate"), "spec");
    failure_policy(job);
    defaults::pod::template(job);
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let last = read::some_text(object, "status.lastScheduleTime").map(|t| duration::since(Some(t), now));
    let suspend = match read::at(object, "spec.suspend").and_then(Value::as_bool) {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    };
    let (names, images) = containers(object, "spec.jobTemplate.spec.template.spec");
    vec![
        name(object),
        json!(read::text(object, "spec.schedule")),
        or_none(object, "spec.timeZone"),
        json!(suspend),
        json!(read::list(object, "status.active").len()),
        json!(last.unwrap_or_else(|| "<none>".to_owned())),
        age(object, now),
        names,
        images,
        json!(format_label_selector(read::at(object, "spec.jobTemplate.spec.selector"))),
    ]
}
