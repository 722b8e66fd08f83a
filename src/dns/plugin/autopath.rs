//! `autopath [ZONE...] RESOLV-CONF | @kubernetes`: the search path is walked here, in one question of the client.

use hickory_proto::rr::rdata::CNAME;
use hickory_proto::rr::{Name, RData, Record};

use crate::args::{Parsed, body_less, names_or, wrong_count};
use crate::around::Surroundings;
use crate::corefile::{CorefileError, Directive};
use crate::question::{Answer, Question};
use crate::zone::PodNames;

/// Domains of a search path, as glibc bounds them.
const DOMAINS_MAX: usize = 32;

#[derive(Clone, Debug)]
pub(crate) struct Autopath {
    zones: Vec<Name>,
    search: Search,
    /// Where it stands, for errors that the whole block shows.
    directive: Directive,
}

#[derive(Clone, Debug)]
enum Search {
    /// The domains of a file.
    File(Vec<Name>),
    /// Those of the pod that asks, and then those of this pod's own resolv.conf.
    Kubernetes(Vec<Name>),
}

impl Autopath {
    pub(crate) fn parse(directive: &Directive, around: &Surroundings<'_>) -> Parsed<Autopath> {
        body_less(directive)?;
        let Some((source, zones)) = directive.args.split_last() else { return Err(wrong_count(directive)) };
        let zones = names_or(directive, zones, &around.zones)?;
        let search = match source.strip_prefix('@') {
            None => Search::File(domains(&around.config(directive, source)?)),
            Some("kubernetes") => {
                let own = (around.read)("/etc/resolv.conf", crate::text_file::CONFIG_BYTES_MAX).unwrap_or_default();
                Search::Kubernetes(domains(&own))
            }
            Some(other) => return Err(directive.error(format!("the plugin '{other}' has no search path here"))),
        };
        Ok(Autopath { zones, search, directive: directive.clone() })
    }

    /// The pod that asks must be known.
    pub(crate) fn check(&self, pods: Option<PodNames>) -> Result<(), CorefileError> {
        let knows_pods = pods == Some(PodNames::Verified);
        if matches!(self.search, Search::Kubernetes(_)) && !knows_pods {
            return Err(self.directive.error(
                "autopath @kubernetes needs 'pods verified' in the kubernetes plugin of the same server block",
            ));
        }
        Ok(())
    }

    /// The names to be asked for, the first of which the client asked for itself; empty: this question has no search
    /// path. `of_client` gives the cluster's zone and the namespace of a pod.
    pub(crate) fn candidates<'a>(
        &self,
        question: &Question,
        of_client: impl FnOnce() -> Option<(&'a Name, String)>,
    ) -> Vec<Name> {
        if !self.zones.iter().any(|zone| zone.zone_of(&question.lower)) {
            return Vec::new();
        }
        let mut path = match &self.search {
            Search::File(domains) => domains.clone(),
            Search::Kubernetes(own) => {
                let Some((zone, namespace)) = of_client() else { return Vec::new() };
                let below = |text: &str| Name::from_ascii(text).ok()?.append_domain(zone).ok();
                let Some(mut path) = [below(&format!("{namespace}.svc")), below("svc"), Some(zone.clone())]
                    .into_iter()
                    .collect::<Option<Vec<Name>>>()
                else {
                    return Vec::new();
                };
                path.extend(own.iter().cloned());
                path
            }
        };
        path.push(Name::root());
        let first = &path[0];
        let outside = question.lower.num_labels().saturating_sub(first.num_labels());
        if outside == 0 || first.is_root() || !first.zone_of(&question.lower) {
            return Vec::new();
        }
        let base: Vec<&[u8]> = question.name.iter().take(usize::from(outside)).collect();
        let Ok(base) = Name::from_labels(base) else { return Vec::new() };
        let whole = |domain: &Name| {
            let mut relative = base.clone();
            relative.set_fqdn(false);
            relative.append_domain(domain).ok()
        };
        path.iter().filter_map(whole).collect()
    }
}

/// The answer to another name than was asked for says so.
pub(crate) fn add_alias(answer: &mut Answer, asked: &Name) {
    let Some(other) = answer.answers.first().filter(|record| record.name != *asked) else { return };
    let alias = Record::from_rdata(asked.clone(), other.ttl, RData::CNAME(CNAME(other.name.clone())));
    answer.answers.insert(0, alias);
}

/// The domains of the last `search` line.
fn domains(resolv_conf: &str) -> Vec<Name> {
    let last = resolv_conf.lines().filter_map(|line| line.trim().strip_prefix("search")).next_back();
    let named = last.unwrap_or_default().split_whitespace().take(DOMAINS_MAX).filter_map(|word| {
        let mut name = Name::from_ascii(word).ok()?;
        name.set_fqdn(true);
        Some(name.to_lowercase())
    });
    named.collect()
}
