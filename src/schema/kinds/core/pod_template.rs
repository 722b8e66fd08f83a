//! PodTemplate.

use crate::behaviour::{Behaviour, Deletion, Generation, Owners, Printer, Rules, kind};
use crate::defaults;
use crate::print;
use crate::print::column::{self, NAME};
use crate::validate;

/// The row.
pub(crate) static POD_TEMPLATE: Behaviour = Behaviour {
    defaults: defaults::pod::pod_template,
    owners: Owners::CLIENTS.generation(Generation::Counts(&[&["template"]])),
    rules: Rules { always: validate::pod::template, ..Rules::NONE },
    printer: Printer {
        columns: &[NAME, column::text("Containers"), column::text("Images"), column::text("Pod Labels")],
        cells: print::pod::pod_template,
    },
    deletion: Deletion::RETURNED,
    ..kind("", "PodTemplate")
};
