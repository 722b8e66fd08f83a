//! An answer as the bytes of a reply.

use hickory_proto::op::{Edns, Message};
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption, NSIDPayload};

use crate::plugin::log::Flags;
use crate::question::{Answer, Transport, UDP_BYTES_MAX};

/// A record takes at least this much: a pointer to its name, type, class, time to live, length.
const RECORD_BYTES_MIN: usize = 12;

/// Settings of the server block for its replies.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape<'a> {
    /// Told to clients that ask for it.
    pub(super) nsid: Option<&'a str>,
    pub(super) bufsize: Option<u16>,
}

/// The reply's bytes, cut to what the client can take.
pub(super) fn encode(
    request: &Message,
    answer: &mut Answer,
    transport: Transport,
    shape: Shape<'_>,
) -> Option<(Vec<u8>, Flags)> {
    let extra = answer.extra.take().unwrap_or_default();
    let mut reply = Message::response(request.metadata.id, request.metadata.op_code);
    reply.metadata.recursion_desired = extra.recursion_desired.unwrap_or(request.metadata.recursion_desired);
    reply.metadata.checking_disabled = request.metadata.checking_disabled;
    reply.metadata.recursion_available = extra.recursion_available.unwrap_or(true);
    reply.metadata.authoritative = answer.authoritative;
    reply.metadata.truncation = answer.truncated;
    reply.metadata.response_code = answer.code;
    reply.queries.clone_from(&request.queries);
    // They are lent to the reply: the log looks at them afterwards.
    reply.answers = std::mem::take(&mut answer.answers);
    reply.authorities = std::mem::take(&mut answer.authorities);
    reply.additionals = std::mem::take(&mut answer.additionals);
    let mut limit = usize::from(u16::MAX);
    if let Some(asked) = &request.edns {
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_BYTES_MAX);
        edns.set_dnssec_ok(asked.flags().dnssec_ok);
        for option in extra.options {
            edns.options_mut().insert(option);
        }
        if let Some(nsid) = shape.nsid.filter(|_| asked.option(EdnsCode::NSID).is_some()) {
            edns.options_mut().insert(EdnsOption::NSID(NSIDPayload::new(nsid.as_bytes()).ok()?));
        }
        reply.set_edns(edns);
    }
    if transport == Transport::Udp {
        let most = shape.bufsize.unwrap_or(UDP_BYTES_MAX);
        limit = request.edns.as_ref().map_or(512, |edns| usize::from(edns.max_payload().clamp(512, most)));
    }
    let mut flags = Flags {
        authoritative: reply.metadata.authoritative,
        truncated: false,
        recursion_desired: reply.metadata.recursion_desired,
        recursion_available: reply.metadata.recursion_available,
        authentic: reply.metadata.authentic_data,
        checking_disabled: reply.metadata.checking_disabled,
    };
    let bytes = cut(&mut reply, limit)?;
    answer.answers = reply.answers;
    answer.authorities = reply.authorities;
    // The bit of the third byte, which cutting may have set.
    flags.truncated = bytes.get(2).is_some_and(|byte| byte & 2 != 0);
    Some((bytes, flags))
}

/// The bytes of a reply with as many of its records as fit into `limit` bytes. A Service of thousands of endpoints
/// costs what fits.
pub(super) fn cut(reply: &mut Message, limit: usize) -> Option<Vec<u8>> {
    let most = limit / RECORD_BYTES_MIN + 1;
    let all = reply.answers.len() + reply.authorities.len() + reply.additionals.len();
    if all <= most {
        let bytes = reply.to_vec().ok()?;
        if bytes.len() <= limit {
            return Some(bytes);
        }
    }
    // Additional records are a courtesy.
    reply.additionals.clear();
    let (answers, authorities) = (std::mem::take(&mut reply.answers), std::mem::take(&mut reply.authorities));
    let n_records = answers.len() + authorities.len();
    let mut with = |n: usize| {
        reply.answers = answers.iter().take(n).cloned().collect();
        reply.authorities = authorities.iter().take(n.saturating_sub(answers.len())).cloned().collect();
        reply.metadata.truncation |= n < n_records;
        reply.to_vec().ok()
    };
    if n_records <= most
        && let Some(bytes) = with(n_records).filter(|bytes| bytes.len() <= limit)
    {
        return Some(bytes);
    }
    // More than `fits` records do not fit, and `fits` do; a question alone always does.
    let (mut fits, mut too_many) = (0, n_records.min(most));
    while too_many - fits > 1 {
        let middle = usize::midpoint(fits, too_many);
        match with(middle)?.len() <= limit {
            true => fits = middle,
            false => too_many = middle,
        }
    }
    with(fits)
}
