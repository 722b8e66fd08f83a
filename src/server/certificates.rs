//! Renewal of this server's certificates while it runs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::clock_set::ClockSet;
use base::files::{self, FileError};
use base::folder::FolderWatch;
use base::task::Group;
use base::time::Clock;
use client::events::{Recorder, Severity};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use pki::leaf::Leaf;
use pki::server::Pki;
use tokio::sync::watch;
use tracing::{info, warn};

/// The longest time between two looks: a machine that slept, or a clock that was set, must not be waited out.
pub(crate) const LOOK: Duration = Duration::from_secs(12 * 3600);

/// After a failure.
pub(crate) const RETRY: Duration = Duration::from_secs(20);

pub(crate) const DAY_SECS: i64 = 86_400;

/// With less left a leaf is worth a warning: renewal has failed for months.
pub(crate) const LEAF_WARNING_DAYS: i64 = 30;

/// The same of an authority, which a person must replace.
pub(crate) const AUTHORITY_WARNING_DAYS: i64 = 365;

/// The admin's kubeconfig and how it is written.
#[derive(Clone, Debug)]
pub(crate) struct Kubeconfig {
    pub(crate) path: PathBuf,
    pub(crate) mode: u32,
    /// Number of the group it belongs to, if not root's.
    pub(crate) group: Option<u32>,
    pub(crate) url: String,
}

impl Kubeconfig {
    pub(crate) fn write(&self, pki: &Pki) -> Result<(), FileError> {
        if let Some(dir) = self.path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            std::fs::create_dir_all(dir).map_err(FileError::at("cannot create directory", dir))?;
        }
        files::write_atomic(&self.path, pki.admin_kubeconfig(&self.url).as_bytes(), self.mode)?;
        match self.group {
            None => Ok(()),
            group => std::os::unix::fs::chown(&self.path, None, group)
                .map_err(FileError::at("cannot set the group of", &self.path)),
        }
    }
}

/// Parts that keep a server's certificates.
pub(crate) struct Keeper {
    pub(crate) pki: Arc<Pki>,
    /// `server/tls`.
    pub(crate) dir: PathBuf,
    pub(crate) kubeconfig: Kubeconfig,
    pub(crate) node_name: String,
    pub(crate) client: kube::Client,
    pub(crate) clock: Clock,
    /// The node's addresses, which certificates name.
    pub(crate) node_ips: watch::Receiver<Vec<IpAddr>>,
    /// Of which certificate it was told last, and how many days it had then.
    pub(crate) told: BTreeMap<String, i64>,
}

impl Keeper {
    /// Renews each certificate at two thirds of its life, and at once one whose files are taken away; whoever shows it
    /// shows the new one from the next handshake on.
    pub(crate) fn start(mut self, group: &Group) {
        let recorder = Recorder::new(self.client.clone(), "kedge-certificates", &self.node_name, group);
        group.spawn("certificates", async move {
            let watch = FolderWatch::new(&self.dir);
            if let Err(err) = &watch {
                warn!(path = %self.dir.display(), err = %err, "cannot watch certificates: rotating them takes a \
                    restart");
            }
            let clock = ClockSet::listen();
            if let Err(err) = &clock {
                warn!(err = %err, "cannot hear of changes of the clock: certificates are looked at twice a day");
            }
            loop {
                let Some(wait) = self.round(&recorder) else {
                    // What the failed try wrote is a change of the folder, too: it must not be the reason for the next
                    // one.
                    tokio::time::sleep(RETRY).await;
                    continue;
                };
                let changed = FolderWatch::changed_if(&watch);
                // Cancel safe: everything is looked at anew.
                tokio::select! {
                    () = changed => {}
                    // A machine that began in 1970 finds its certificates ended when it learns the time.
                    () = ClockSet::next_if(&clock) => {}
                    Ok(()) = self.node_ips.changed() => {
                        self.pki.set_node_ips(self.node_ips.borrow_and_update().clone());
                    }
                    () = tokio::time::sleep(wait) => {}
                }
            }
        });
    }

    /// Renews what is due; returns how long nothing is, or nothing if that failed.
    fn round(&mut self, recorder: &Recorder) -> Option<Duration> {
        let renewed = self.pki.renew().map_err(|err| Chain(&err).to_string()).and_then(|renewed| {
            if renewed.contains(&Leaf::ClientAdmin) {
                self.kubeconfig.write(&self.pki).map_err(|err| Chain(&err).to_string())?;
            }
            Ok(renewed)
        });
        let now = self.clock.now();
        self.warn_of_ends(recorder, now);
        match renewed {
            Ok(renewed) => {
                if !renewed.is_empty() {
                    info!(n = renewed.len(), "certificates renewed");
                }
                let left = self.pki.next_renewal().as_second() - now.as_second();
                Some(Duration::from_secs(u64::try_from(left).unwrap_or(0).max(1)).min(LOOK))
            }
            Err(why) => {
                warn!(why, "cannot renew certificates, trying again");
                self.tell(recorder, "CertificateRenewalFailed", format!("Cannot renew certificates: {why}"));
                None
            }
        }
    }

    /// Once for each day that is left: the folder is looked at far more often.
    fn warn_of_ends(&mut self, recorder: &Recorder, now: Timestamp) {
        let Ok(ends) = self.pki.ends() else { return };
        for (stem, end) in ends {
            let authority = stem.ends_with("-ca");
            let days = (end.as_second() - now.as_second()) / DAY_SECS;
            let (limit, reason) = match authority {
                true => (AUTHORITY_WARNING_DAYS, "CACertificateExpirationWarning"),
                // Test lives are shorter than any warning.
                false if self.pki.options().leaf_life < Duration::from_secs(100 * 86_400) => continue,
                false => (LEAF_WARNING_DAYS, "CertificateExpirationWarning"),
            };
            if days < limit && self.told.insert(stem.to_string(), days) != Some(days) {
                warn!(name = stem, days, "a certificate nears its end");
                self.tell(
                    recorder,
                    reason,
                    format!("{stem}.crt ends in {days} days, at {end}: see 'kedge certificate check'"),
                );
            }
        }
    }

    fn tell(&self, recorder: &Recorder, reason: &str, text: String) {
        let name = Some(self.node_name.clone());
        let about =
            ObjectReference { kind: Some("Node".to_owned()), uid: name.clone(), name, ..ObjectReference::default() };
        recorder.report_ref(about, Severity::Warning, reason, text);
    }
}

/// The page of metrics of certificates, for Prometheus.
pub(crate) fn metrics(pki: &Pki, clock: &Clock) -> String {
    let now = clock.now().as_second();
    let mut text = "# HELP kedge_certificate_expiration_seconds Seconds until the certificate ends.\n# TYPE \
        kedge_certificate_expiration_seconds gauge\n"
        .to_owned();
    for (stem, end) in pki.ends().unwrap_or_default() {
        text += &format!("kedge_certificate_expiration_seconds{{name=\"{stem}\"}} {}\n", end.as_second() - now);
    }
    text
}

pub(crate) fn left(secs: i64) -> String {
    let (years, days, hours) = (secs / (365 * DAY_SECS), secs / DAY_SECS, secs / 3600);
    match () {
        () if secs <= 0 => "none".to_owned(),
        () if years >= 2 => format!("{years} years"),
        () if days >= 2 => format!("{days} days"),
        () if hours >= 2 => format!("{hours} hours"),
        () => format!("{secs} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_told_in_the_largest_unit_of_which_it_has_two() {
        let day = DAY_SECS;
        for (secs, text) in [
            (-1, "none"),
            (0, "none"),
            (59, "59 s"),
            (7199, "7199 s"),
            (7200, "2 hours"),
            (2 * day - 1, "47 hours"),
            (2 * day, "2 days"),
            (729 * day, "729 days"),
            (730 * day, "2 years"),
        ] {
            assert_eq!(left(secs), text);
        }
    }
}
