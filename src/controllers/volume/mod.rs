//! Volumes: claims get them (`binder`), what is in use stays (`protection`), folders are made on demand (`local_path`).

mod binder;
mod ephemeral;
mod local_path;
mod matching;
mod protection;

use crate::driver::Context;
use crate::settings::LocalPath;

/// Starts all controllers of volumes; the provisioner of folders only if it is configured.
pub(crate) fn start(context: &Context, local_path: Option<LocalPath>) {
    binder::start(context);
    protection::start(context);
    ephemeral::start(context);
    if let Some(config) = local_path {
        local_path::start(context, config);
    }
}
