//! ValidatingWebhookConfiguration (admissionregistration.k8s.io).

use super::{WEBHOOKS, webhook, webhooks};
use crate::behaviour::{Behaviour, Finalizers, Generation, Object, Owners, Printer, Rules, kind};
use crate::defaults::each;
use crate::validate;

/// The row.
pub(crate) static VALIDATING_WEBHOOK_CONFIGURATION: Behaviour = Behaviour {
    defaults,
    owners: Owners::CLIENTS.generation(Generation::Counts(&[&["webhooks"]])).conditional(),
    rules: Rules { finalizers: Finalizers::Any, always: validate::webhook::configuration, ..Rules::NONE },
    printer: Printer { columns: WEBHOOKS, cells: webhooks },
    ..kind("admissionregistration.k8s.io", "ValidatingWebhookConfiguration")
};

fn defaults(object: &mut Object) {
    each(object, "webhooks").for_each(webhook);
}
