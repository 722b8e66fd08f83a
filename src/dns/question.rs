//! A question as plugins see it, and what they answer.

use std::net::IpAddr;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType};

/// How the question came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

#[derive(Clone, Debug)]
pub(crate) struct Question {
    /// As the client wrote it: answers repeat its letters' case.
    pub(crate) name: Name,
    pub(crate) lower: Name,
    pub(crate) kind: RecordType,
    pub(crate) transport: Transport,
    /// Whether the client speaks EDNS: old resolvers answer FORMERR to it, which is the asker's own affair.
    pub(crate) edns: bool,
    pub(crate) dnssec_ok: bool,
    pub(crate) checking_disabled: bool,
    pub(crate) recursion_desired: bool,
}

impl Question {
    pub(crate) fn of(message: &Message, transport: Transport) -> Option<Question> {
        let query = message.queries.first()?;
        Some(Question {
            name: query.name.clone(),
            lower: query.name.to_lowercase(),
            kind: query.query_type,
            transport,
            edns: message.edns.is_some(),
            dnssec_ok: message.edns.as_ref().is_some_and(|edns| edns.flags().dnssec_ok),
            checking_disabled: message.metadata.checking_disabled,
            recursion_desired: message.metadata.recursion_desired,
        })
    }

    /// The address that the name stands for, if it is a whole address's in a reverse zone.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        let net = self.lower.parse_arpa_name().ok()?;
        (net.prefix_len() == net.max_prefix_len()).then(|| net.addr())
    }

    /// The same question about another name, to follow a CNAME.
    pub(crate) fn about(&self, name: Name) -> Question {
        Question { lower: name.to_lowercase(), name, ..self.clone() }
    }
}

/// A plugin's answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) code: ResponseCode,
    pub(crate) authoritative: bool,
    pub(crate) truncated: bool,
    pub(crate) answers: Vec<Record>,
    pub(crate) authorities: Vec<Record>,
    pub(crate) additionals: Vec<Record>,
    /// The plugin that said it, for metrics.
    pub(crate) plugin: &'static str,
}

impl Answer {
    pub(crate) fn new(code: ResponseCode, plugin: &'static str) -> Answer {
        Answer {
            code,
            authoritative: false,
            truncated: false,
            answers: Vec::new(),
            authorities: Vec::new(),
            additionals: Vec::new(),
            plugin,
        }
    }

    pub(crate) fn add(&mut self, name: &Name, ttl_secs: u32, data: RData) {
        self.answers.push(Record::from_rdata(name.clone(), ttl_secs, data));
    }
}
