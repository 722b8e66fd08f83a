//! `kedge server`: its parts are built in order ([`build`]); then it waits, and stops in the reverse order.

mod api;
pub(crate) mod authorities;
pub(crate) mod away;
mod build;
pub(crate) mod certificates;
pub(crate) mod charts;
pub(crate) mod connector;
pub(crate) mod datastore;
mod duties;
pub(crate) mod encryption;
pub(crate) mod error;
mod foundation;
pub(crate) mod joining;
pub(crate) mod leader;
pub(crate) mod listener;
pub(crate) mod membership;
pub(crate) mod packaged;
mod plan;
pub(crate) mod rotation;
pub(crate) mod signing;
pub(crate) mod snapshots;
pub(crate) mod users;

use base::task::Group;

use crate::flags::profile;
use crate::flags::roles::ServerArgs;
use crate::flags::token::Given;
use crate::process::{life, logging};
use crate::server::error::ServerError;
use crate::server::foundation::Groups;
use crate::server::plan::Plan;

/// Runs the server until SIGTERM or SIGINT. Pods keep running.
pub(crate) fn main(mut args: ServerArgs) -> Result<(), ServerError> {
    logging::start(&args.common)?;
    if args.store.cluster_reset {
        let given = Given { flag: "token", text: args.token.as_deref(), file: args.token_file.as_deref(), own: false };
        println!("{}", args.store.reset(&args.common.state.layout, &args.common.config, given.seal()?.as_ref())?);
        return Ok(());
    }
    if args.common.profile.is_some() {
        let server = args.common.state.layout.server();
        profile::write_files(&server.profile(), &server.logs())?;
        profile::expand_server(&mut args);
    }
    let plan = Plan::of(args)?;
    life::block_on(run(plan))
}

async fn run(plan: Plan) -> Result<(), ServerError> {
    let (root, fatal) = Group::root("kedge");
    let groups = Groups {
        workers: root.child("workers"),
        serving: root.child("api"),
        storage: root.child("store"),
        port: root.child("port"),
    };
    let order = [groups.workers.clone(), groups.serving.clone(), groups.storage.clone(), groups.port.clone(), root];
    Box::pin(life::live("kedge", build::build(&plan, &groups), order, fatal)).await
}
