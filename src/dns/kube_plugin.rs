//! The kubernetes plugin: changes are worked into the index, and each question is answered from it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::sync::RwLock;
use base::task::Group;
use client::informer::{Informer, Informers, Key};
use client::services::{Services, Touched};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use k8s_openapi::api::core::v1::Namespace;
use model::pod::Pod;

use crate::config;
use crate::question::{Answer, Question};
use crate::zone::{Found, Index, PodNames, Wanted};

/// Of `dns-version`, as CoreDNS's.
const VERSION_TTL_SECS: u32 = 30;
/// A burst of changes is gathered this long before it is worked into the index.
const GATHER: Duration = Duration::from_millis(50);

pub(crate) struct Kubernetes {
    config: config::Kubernetes,
    index: RwLock<Index>,
    synced: AtomicBool,
}

impl Kubernetes {
    pub(crate) fn start(config: config::Kubernetes, informers: &Informers, group: &Group) -> Arc<Kubernetes> {
        let plugin = Arc::new(Kubernetes { config, index: RwLock::default(), synced: AtomicBool::new(false) });
        group.spawn("kubernetes", Arc::clone(&plugin).follow(informers.clone()));
        plugin
    }

    /// Whether the first lists of everything have arrived.
    pub(crate) fn is_ready(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }

    async fn follow(self: Arc<Kubernetes>, informers: Informers) {
        let (mut services, namespaces) = (Services::follow(&informers), informers.get::<Namespace>());
        let pods = (self.config.pods == PodNames::Verified).then(|| informers.get::<Pod>());
        let mut of_namespaces = namespaces.changes();
        let mut of_pods = pods.as_ref().map(|pods| pods.changes());
        services.synced().await;
        namespaces.synced().await;
        if let Some(pods) = &pods {
            pods.synced().await;
        }
        let mut touched = Touched::All;
        loop {
            let names = namespaces.list();
            let names =
                names.iter().filter_map(|ns| ns.metadata.name.clone()).filter(|name| self.is_exposed(name)).collect();
            self.work_in(&services, touched, names, pods.as_ref());
            self.synced.store(true, Ordering::Release);
            touched = Touched::none();
            let pod_change = async {
                match &mut of_pods {
                    Some(changes) => drop(changes.next().await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = services.touched(&mut touched) => {}
                _ = of_namespaces.next() => {}
                () = pod_change => {}
            }
            services.gather(GATHER, &mut touched).await;
            // Both are looked at as a whole.
            of_namespaces.drain();
            if let Some(changes) = &mut of_pods {
                changes.drain();
            }
        }
    }

    fn is_exposed(&self, ns: &str) -> bool {
        self.config.namespaces.is_empty() || self.config.namespaces.iter().any(|exposed| exposed == ns)
    }

    fn work_in(
        &self,
        services: &Services,
        touched: Touched,
        namespaces: BTreeSet<String>,
        pods: Option<&Informer<Pod>>,
    ) {
        let index = || self.index.write();
        let keys: BTreeSet<Key> = match touched {
            Touched::These(keys) => keys,
            Touched::All => services.list().iter().map(|service| Key::of(&**service)).chain(index().keys()).collect(),
        };
        for key in keys {
            let (service, slices) = (services.get(&key), services.slices(&key));
            index().set(&key, service.as_deref(), &slices, self.config.endpoint_names);
        }
        let mut index = index();
        index.set_namespaces(namespaces);
        if let Some(pods) = pods {
            index.set_pods(&pods.list());
        }
    }

    /// The cluster's zone that holds the name, and the namespace of the pod that asks, for `autopath`.
    pub(crate) fn search(&self, question: &Question) -> Option<(&Name, String)> {
        let holding = self.config.zones.iter().filter(|zone| zone.zone_of(&question.lower));
        let zone = holding.max_by_key(|zone| zone.num_labels())?;
        let namespace = self.index.read().namespace_of(question.client.ip().to_canonical())?;
        Some((zone, namespace))
    }

    /// `None` passes the question on.
    pub(crate) fn answer(&self, question: &Question) -> Option<Answer> {
        let zone = self
            .config
            .zones
            .iter()
            .filter(|zone| zone.zone_of(&question.lower))
            .max_by_key(|zone| zone.num_labels())?;
        if !self.is_ready() {
            return Some(Answer::new(ResponseCode::ServFail, "kubernetes"));
        }
        let index = self.index.read();
        if is_reverse(zone) {
            return self.reverse(&index, question, zone);
        }
        let outside = usize::from(question.lower.num_labels() - zone.num_labels());
        let texts: Vec<String> =
            question.lower.iter().take(outside).map(|label| String::from_utf8_lossy(label).into_owned()).collect();
        let labels: Vec<&str> = texts.iter().map(String::as_str).collect();
        let mut answer = Answer { authoritative: true, ..Answer::new(ResponseCode::NoError, "kubernetes") };
        match (labels.as_slice(), question.kind) {
            ([], RecordType::SOA) => answer.answers.push(self.soa(zone)),
            ([], RecordType::NS) => {
                answer.add(&question.name, self.config.ttl_secs, RData::NS(NS(below("ns.dns", zone)?)))
            }
            (labels, kind) => match index.find(labels, self.config.pods, wanted(kind)) {
                Some(found) => self.fill(&mut answer, question, zone, &found)?,
                None if self.config.fall.through(&question.lower) => return None,
                None => answer.code = ResponseCode::NXDomain,
            },
        }
        if answer.answers.is_empty() {
            answer.authorities.push(self.soa(zone));
        }
        Some(answer)
    }

    fn fill(&self, answer: &mut Answer, question: &Question, zone: &Name, found: &Found) -> Option<()> {
        let ttl = self.config.ttl_secs;
        if let Some(target) = &found.cname {
            answer.add(&question.name, ttl, RData::CNAME(CNAME(fqdn(target)?)));
            return Some(());
        }
        match question.kind {
            RecordType::A | RecordType::AAAA => {
                let data = found
                    .addresses
                    .iter()
                    .filter_map(|ip| address(*ip))
                    .filter(|data| data.record_type() == question.kind);
                data.for_each(|data| answer.add(&question.name, ttl, data));
            }
            RecordType::TXT => found.txt.iter().for_each(|text| {
                answer.add(&question.name, VERSION_TTL_SECS, RData::TXT(TXT::new(vec![text.clone()])))
            }),
            RecordType::SRV => {
                // Equal shares of 100, as CoreDNS gives them.
                let weight = u16::try_from(100 / found.srv.len().max(1)).unwrap_or(1).max(1);
                for srv in &found.srv {
                    answer.add(
                        &question.name,
                        ttl,
                        RData::SRV(SRV::new(0, weight, srv.port, below(&srv.target, zone)?)),
                    );
                }
                for (host, ip) in &found.hosts {
                    let host = below(host, zone)?;
                    answer.additionals.extend(address(*ip).map(|data| Record::from_rdata(host, ttl, data)));
                }
            }
            _ => {}
        }
        Some(())
    }

    fn reverse(&self, index: &Index, question: &Question, zone: &Name) -> Option<Answer> {
        let mut answer = Answer { authoritative: true, ..Answer::new(ResponseCode::NoError, "kubernetes") };
        // `zone` is a reverse zone; names live in the first that is not.
        let home = self.config.zones.iter().find(|zone| !is_reverse(zone));
        let names = question.address().map(|ip| index.reverse(ip)).unwrap_or_default();
        if names.is_empty() {
            if self.config.fall.through(&question.lower) {
                return None;
            }
            answer.code = ResponseCode::NXDomain;
        } else if question.kind == RecordType::PTR {
            for name in names {
                answer.add(&question.name, self.config.ttl_secs, RData::PTR(PTR(below(&name, home?)?)));
            }
        }
        if answer.answers.is_empty() {
            answer.authorities.push(self.soa(zone));
        }
        Some(answer)
    }

    fn soa(&self, zone: &Name) -> Record {
        let part = |text: &str| below(text, zone).unwrap_or_else(|| zone.clone());
        let ttl = self.config.ttl_secs;
        let soa = SOA::new(part("ns.dns"), part("hostmaster"), 1, 7200, 1800, 86400, ttl);
        Record::from_rdata(zone.clone(), ttl, RData::SOA(soa))
    }
}

fn wanted(kind: RecordType) -> Wanted {
    if kind == RecordType::SRV { Wanted::Services } else { Wanted::Addresses }
}

fn is_reverse(zone: &Name) -> bool {
    zone.iter().next_back().is_some_and(|label| label == b"arpa")
}

fn address(ip: IpAddr) -> Option<RData> {
    Some(match ip {
        IpAddr::V4(ip) => RData::A(A(ip)),
        IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
    })
}

fn fqdn(text: &str) -> Option<Name> {
    let mut name = Name::from_ascii(text).ok()?;
    name.set_fqdn(true);
    Some(name)
}

fn below(text: &str, zone: &Name) -> Option<Name> {
    Name::from_ascii(text).ok()?.append_domain(zone).ok()
}

#[cfg(test)]
mod tests;
