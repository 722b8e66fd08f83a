//! The hosts plugin: names from a file in the form of /etc/hosts, read again when it changes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{A, AAAA, PTR};
use hickory_proto::rr::{Name, RData, RecordType};
use tracing::warn;

use crate::config;
use crate::question::{Answer, Question};
use crate::text_file;

/// The table in force, with its configuration.
pub(crate) struct Hosts {
    config: config::Hosts,
    table: ArcSwap<Table>,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Table {
    text: String,
    by_name: BTreeMap<Name, Vec<IpAddr>>,
    by_ip: BTreeMap<IpAddr, Vec<Name>>,
}

impl Hosts {
    /// Names in force.
    pub(crate) fn n_entries(&self) -> usize {
        self.table.load().by_name.values().map(Vec::len).sum()
    }

    pub(crate) fn new(config: config::Hosts) -> Arc<Hosts> {
        let hosts = Hosts { config, table: ArcSwap::default() };
        hosts.read();
        Arc::new(hosts)
    }

    /// Looks at the file again and again; a file that cannot be read leaves the last table in force.
    pub(crate) async fn follow(self: Arc<Hosts>) {
        if self.config.reload.is_zero() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(self.config.reload).await;
            self.read();
        }
    }

    fn read(&self) {
        let file = match text_file::read(&self.config.path, text_file::TABLE_BYTES_MAX) {
            Ok(text) => text,
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(err) => {
                return warn!(
                    path = %self.config.path.display(), err = %err,
                    "cannot read the hosts file, keeping the last one"
                );
            }
        };
        let text = format!("{file}\n{}", self.config.inline);
        if self.table.load().text != text {
            self.table.store(Arc::new(Table::parse(text)));
        }
    }

    /// `None` passes the question on.
    pub(crate) fn answer(&self, question: &Question) -> Option<Answer> {
        let table = self.table.load();
        let mut answer = Answer { authoritative: true, ..Answer::new(ResponseCode::NoError, "hosts") };
        let ttl = self.config.ttl_secs;
        if question.kind == RecordType::PTR && self.config.reverse {
            for name in question.address().and_then(|ip| table.by_ip.get(&ip)).into_iter().flatten() {
                answer.add(&question.name, ttl, RData::PTR(PTR(name.clone())));
            }
            return (!answer.answers.is_empty()).then_some(answer);
        }
        if !self.config.zones.iter().any(|zone| zone.zone_of(&question.lower)) {
            return None;
        }
        let ips = table.by_name.get(&question.lower);
        for ip in ips.into_iter().flatten() {
            match (ip, question.kind) {
                (IpAddr::V4(ip), RecordType::A) => answer.add(&question.name, ttl, RData::A(A(*ip))),
                (IpAddr::V6(ip), RecordType::AAAA) => answer.add(&question.name, ttl, RData::AAAA(AAAA(*ip))),
                _ => {}
            }
        }
        if ips.is_some() {
            let unsupported = !matches!(question.kind, RecordType::A | RecordType::AAAA);
            let passes = unsupported && self.config.fall_unsupported && self.config.fall.through(&question.lower);
            return (!passes).then_some(answer);
        }
        // Without a SOA record there is no honest NXDOMAIN.
        (!self.config.fall.through(&question.lower)).then(|| Answer::new(ResponseCode::ServFail, "hosts"))
    }
}

impl Table {
    pub(crate) fn parse(text: String) -> Table {
        let mut table = Table::default();
        for line in text.lines() {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let Some(ip) = words.next().and_then(|word| word.split('%').next()?.parse::<IpAddr>().ok()) else {
                continue;
            };
            for word in words {
                let Ok(mut name) = Name::from_ascii(word) else { continue };
                name.set_fqdn(true);
                let name = name.to_lowercase();
                let ips = table.by_name.entry(name.clone()).or_default();
                if !ips.contains(&ip) {
                    ips.push(ip);
                }
                let names = table.by_ip.entry(ip).or_default();
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        table.text = text;
        table
    }
}
