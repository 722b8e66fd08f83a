//! Snapshots by schedule, taken by the server.

use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::cron::Schedule;
use base::task::Group;
use base::time::Clock;
use client::events::{Recorder, Severity};
use cluster::snapshot::{self, Listed, Places, Series, SnapshotError};
use jiff::tz::TimeZone;
use k8s_openapi::api::core::v1::ObjectReference;
use tracing::{error, info};

use crate::flags::s3::S3Flags;
use crate::flags::store::StoreFlags;
use crate::process::version::VERSION;
use crate::server::away::{self, AwayError};
use crate::server::datastore::DatastoreError;

/// As k3s counts them, and by its labels.
const SAVED: base::exposition::Metric = base::exposition::Metric {
    name: "kedge_etcd_snapshot_save_duration_seconds",
    help: "How long a scheduled snapshot took, whether it was saved or not.",
};

/// The longest sleep before a look at the clock, which may have been set.
pub(crate) const LOOK: Duration = Duration::from_secs(1800);

/// Settings of a server's snapshots.
pub(crate) struct Plan {
    schedule: Schedule,
    places: Places,
    series: Series,
    keep: usize,
    /// Where else they go.
    s3: S3Flags,
}

/// Takes snapshots by the flags until the group stops, if they ask for it.
///
/// Errors: a schedule that cannot be read.
pub(crate) fn keep_by(
    flags: &StoreFlags,
    places: Places,
    node: &str,
    client: kube::Client,
    clock: &Clock,
    group: &Group,
) -> Result<(), DatastoreError> {
    if flags.etcd_disable_snapshots {
        return Ok(());
    }
    let plan = Plan {
        schedule: Schedule::parse(&flags.etcd_snapshot_schedule_cron).map_err(DatastoreError::Schedule)?,
        places,
        series: Series { prefix: flags.etcd_snapshot_name.clone(), node: node.to_owned() },
        keep: flags.etcd_snapshot_retention,
        s3: flags.s3.clone(),
    };
    keep(plan, client, clock.clone(), group);
    Ok(())
}

/// One that fails is logged; the next is tried in its time.
pub(crate) fn keep(plan: Plan, client: kube::Client, clock: Clock, group: &Group) {
    let recorder = Recorder::new(client.clone(), "kedge-snapshots", &plan.series.node, group);
    let (own, rng) = (group.clone(), group.rng().clone());
    group.spawn("snapshots", async move {
        let zone = TimeZone::system();
        let plan = Arc::new(plan);
        while let Some(next) = plan.schedule.next(clock.now(), &zone) {
            loop {
                let left = Duration::try_from(next.duration_since(clock.now())).unwrap_or_default();
                if left.is_zero() {
                    break;
                }
                tokio::time::sleep(left.min(LOOK)).await;
            }
            let (now, rng, taking) = (clock.clone(), rng.clone(), Arc::clone(&plan));
            let began = tokio::time::Instant::now();
            let taken = Group::blocking(move || {
                let saved = snapshot::save(&taking.places, &taking.series, VERSION, &now, &rng)?;
                let gone = snapshot::prune(&taking.places.dir, &taking.series, taking.keep)?;
                Ok::<_, SnapshotError>((saved, gone.len()))
            });
            let taken = taken.await;
            let status = if matches!(taken, Ok(Ok(_))) { "success" } else { "failure" };
            base::metrics::observe(SAVED, &[("status", status)], began.elapsed());
            let failed = |what: &str, why: String| {
                let about = ObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Node".to_owned()),
                    name: Some(plan.series.node.clone()),
                    uid: Some(plan.series.node.clone()),
                    ..ObjectReference::default()
                };
                error!(err = %why, "{what}");
                recorder.report_ref(about, Severity::Warning, "SnapshotFailed", format!("{what}: {why}"));
            };
            let saved = match taken {
                Ok(Ok((saved, n_gone))) => {
                    let (rev, bytes) = (saved.manifest.revision, saved.size);
                    info!(name = %saved.name, rev, bytes, n_gone, "snapshot taken");
                    saved
                }
                Ok(Err(err)) => {
                    failed("snapshot not taken", Chain(&err).to_string());
                    continue;
                }
                Err(err) => {
                    failed("snapshot not taken", Chain(&err).to_string());
                    continue;
                }
            };
            if plan.s3.etcd_s3 {
                match put_away(&plan, &saved, &client, &own).await {
                    Ok(()) => {}
                    Err(err) => failed("snapshot is kept on this machine, but not in S3", Chain(&err).to_string()),
                }
            }
        }
        // A schedule without a next time: nothing more to do.
        std::future::pending::<()>().await;
    });
}

async fn put_away(plan: &Plan, saved: &Listed, client: &kube::Client, group: &Group) -> Result<(), AwayError> {
    let bucket = plan.s3.bucket(Some(client), group).await?;
    let n_gone = away::take(&bucket, saved, &plan.series, plan.s3.etcd_s3_retention).await?;
    info!(location = %bucket.location(&saved.name), n_gone, "snapshot put into S3");
    Ok(())
}
