//! MutatingWebhookConfiguration (admissionregistration.k8s.io).

use super::{WEBHOOKS, webhook, webhooks};
use crate::behaviour::{Behaviour, Finalizers, Generation, Object, Owners, Printer, Rules, kind};
use crate::defaults::{each, put};
use crate::validate;

/// The row.
pub(crate) static MUTATING_WEBHOOK_CONFIGURATION: Behaviour = Behaviour {
    defaults,
    owners: Owners::CLIENTS.generation(Generation::Counts(&[&["webhooks"]])).conditional(),
    rules: Rules { finalizers: Finalizers::Any, always: validate::webhook::configuration, ..Rules::NONE },
    printer: Printer { columns: WEBHOOKS, cells: webhooks },
    ..kind("admissionregistration.k8s.io", "MutatingWebhookConfiguration")
};

fn defaults(object: &mut Object) {
    for w in each(object, "webhooks") {
        webhook(w);
        put(w, "reinvocationPolicy", "Never");
    }
}
