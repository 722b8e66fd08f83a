//! A question as plugins see it, and what they answer.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

/// Bytes that fit through every network without fragments; larger promises of clients are not believed.
pub(crate) const UDP_BYTES_MAX: u16 = 1232;

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
    pub(crate) class: DNSClass,
    /// The asker, as it is seen at the socket.
    pub(crate) client: SocketAddr,
    pub(crate) transport: Transport,
    /// Whether the client speaks EDNS: old resolvers answer FORMERR to it, which is the asker's own affair.
    pub(crate) edns: bool,
    /// Options of EDNS, which a resolver is told, too.
    pub(crate) options: Arc<[EdnsOption]>,
    /// Bytes that the asker can take in one datagram, as a resolver is told.
    pub(crate) payload: u16,
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
            class: query.query_class,
            client: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            transport,
            edns: message.edns.is_some(),
            options: options(message),
            payload: UDP_BYTES_MAX,
            dnssec_ok: message.edns.as_ref().is_some_and(|edns| edns.flags().dnssec_ok),
            checking_disabled: message.metadata.checking_disabled,
            recursion_desired: message.metadata.recursion_desired,
        })
    }

    /// The name as CoreDNS's plugins see it: lower case, with a dot at its end.
    pub(crate) fn text(&self) -> String {
        let mut text = self.lower.to_ascii();
        if !text.ends_with('.') {
            text.push('.');
        }
        text
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

fn options(message: &Message) -> Arc<[EdnsOption]> {
    let options = message.edns.iter().flat_map(|edns| edns.options().as_ref());
    options.map(|(_, option)| option.clone()).collect()
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
    /// Why it is a failure, for the log.
    pub(crate) fault: Option<Arc<str>>,
    /// Additions of a plugin to the header and to EDNS; few answers have any.
    pub(crate) extra: Option<Box<Extra>>,
}

/// Parts of an answer that are not usual.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extra {
    /// Nothing is sent.
    pub(crate) dropped: bool,
    pub(crate) recursion_available: Option<bool>,
    pub(crate) recursion_desired: Option<bool>,
    /// Options for a client that speaks EDNS.
    pub(crate) options: Vec<EdnsOption>,
}

/// RFC 8914: code and text of an extended error.
pub(crate) fn extended_error(code: u16, text: &str) -> EdnsOption {
    const CODE: u16 = 15;
    let mut bytes = code.to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    EdnsOption::Unknown(CODE, bytes)
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
            fault: None,
            extra: None,
        }
    }

    /// A failure of this plugin, with its reason.
    pub(crate) fn failed(plugin: &'static str, why: impl Into<Arc<str>>) -> Answer {
        Answer { fault: Some(why.into()), ..Answer::new(ResponseCode::ServFail, plugin) }
    }

    /// Its unusual parts, to be changed.
    pub(crate) fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// All records, of all sections.
    pub(crate) fn records_mut(&mut self) -> impl Iterator<Item = &mut Record> {
        self.answers.iter_mut().chain(&mut self.authorities).chain(&mut self.additionals)
    }

    pub(crate) fn add(&mut self, name: &Name, ttl_secs: u32, data: RData) {
        self.answers.push(Record::from_rdata(name.clone(), ttl_secs, data));
    }
}
