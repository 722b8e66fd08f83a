//! A conversation with netfilter: a transaction and its answers, or a question and what is dumped.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use base::sync::Mutex;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use rustix::net::sockopt;

use crate::error::NetfilterError;
use crate::script::{Batch, SUBSYSTEM, cut};
use crate::wire::{ACK, HEADER, Head, Message, REQUEST, attribute, messages, put, put_message};

const ERROR: u16 = 2;
const DONE: u16 = 3;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
/// Flags of answers: a dump that was disturbed; an error with attributes behind it.
const DUMP_INTERRUPTED: u16 = 0x10;
const ERROR_HAS_ATTRIBUTES: u16 = 0x200;
/// Answers of a transaction whose every message is refused.
const RECEIVE_BYTES: usize = 4 << 20;
/// The kernel takes a transaction in one piece, with some bytes of its own.
const SPARE_BYTES: usize = 64 << 10;
/// An answer that does not come within this is lost: the kernel answers while it is asked.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Dumps that others disturb are begun anew this often.
const DUMPS_MAX: usize = 20;

/// Our sockets of a moment ago, by netlink port.
static OURS: Mutex<VecDeque<u32>> = Mutex::new(VecDeque::new());
const OURS_MAX: usize = 64;

/// Whether this netlink port is, or was a moment ago, one of this process's sockets: the kernel tells of every change
/// with the port of its author.
pub fn is_ours(port: u32) -> bool {
    OURS.lock().contains(&port)
}

fn remember(port: u32) {
    let mut ours = OURS.lock();
    ours.push_back(port);
    while ours.len() > OURS_MAX {
        ours.pop_front();
    }
}

/// A refusal of one message.
struct Refusal {
    seq: u32,
    source: io::Error,
    said: Option<String>,
    offset: Option<usize>,
}

/// Whether a transaction comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Commit,
    /// It is looked at and left.
    Check,
}

pub(crate) struct Conversation {
    socket: Socket,
}

impl Conversation {
    pub(crate) fn open() -> Result<Conversation, NetfilterError> {
        let failed = |source: io::Error| match rustix::io::Errno::from_io_error(&source) {
            Some(rustix::io::Errno::PROTONOSUPPORT) => NetfilterError::NoNftables,
            _ => NetfilterError::Io { doing: "cannot open a socket to netfilter", source },
        };
        let mut socket = Socket::new(NETLINK_NETFILTER).map_err(failed)?;
        let own = socket.bind_auto().map_err(failed)?;
        socket.connect(&SocketAddr::new(0, 0)).map_err(failed)?;
        remember(own.port_number());
        // Old kernels say less.
        let _less_is_said = socket.set_ext_ack(true).and(socket.set_cap_ack(true));
        if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BYTES).is_err() {
            let _smaller = sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BYTES);
        }
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(TIMEOUT))
            .map_err(|err| failed(err.into()))?;
        Ok(Conversation { socket })
    }

    /// Sends a transaction in one piece. `generation` is the one of which the tables were read: if others have changed
    /// them since, nothing is done.
    ///
    /// The kernel has done it all when the call returns. It confirms the last message: without that confirmation an
    /// answer was lost.
    pub(crate) fn transact(
        &mut self,
        script: &str,
        batch: &mut Batch,
        (mode, generation): (Mode, Option<u32>),
    ) -> Result<(), NetfilterError> {
        if let Some(flags) = batch.bytes.get_mut(batch.last + 6..batch.last + 8) {
            let with = u16::from_ne_bytes([flags[0], flags[1]]) | ACK;
            flags.copy_from_slice(&with.to_ne_bytes());
        }
        let head = |kind| Head { kind, flags: REQUEST, seq: 0, family: 0, resource: SUBSYSTEM };
        let mut bytes = Vec::with_capacity(batch.bytes.len() + 64);
        put_message(&mut bytes, head(BATCH_BEGIN), |out| {
            if let Some(generation) = generation {
                put(out, 1, &generation.to_be_bytes());
            }
        });
        let begins = bytes.len();
        bytes.extend(&batch.bytes);
        if mode == Mode::Commit {
            put_message(&mut bytes, head(BATCH_END), |_| {});
        }
        self.make_room(bytes.len())?;
        self.send(&bytes)?;
        let (refusals, is_confirmed) = self.answers()?;
        let Some(first) = refusals.into_iter().min_by_key(|refusal| refusal.seq) else {
            return if is_confirmed { Ok(()) } else { Err(NetfilterError::Lost) };
        };
        let message = message_of(bytes.get(begins..).unwrap_or_default(), first.seq);
        Err(refused(script, batch, first, message))
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), NetfilterError> {
        loop {
            match self.socket.send(bytes, 0) {
                Ok(_) => return Ok(()),
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(NetfilterError::Io { doing: "cannot send to netfilter", source }),
            }
        }
    }

    fn make_room(&mut self, len: usize) -> Result<(), NetfilterError> {
        let wanted = len + SPARE_BYTES;
        if sockopt::set_socket_send_buffer_size_force(&self.socket, wanted).is_ok() {
            return Ok(());
        }
        let failed = |err: rustix::io::Errno| NetfilterError::Io {
            doing: "cannot make room for a transaction",
            source: err.into(),
        };
        sockopt::set_socket_send_buffer_size(&self.socket, wanted).map_err(failed)
    }

    /// The answers to a transaction, all of which are there when it was sent.
    fn answers(&mut self) -> Result<(Vec<Refusal>, bool), NetfilterError> {
        let (mut refusals, mut is_confirmed, mut is_lost) = (Vec::new(), false, false);
        self.socket
            .set_non_blocking(true)
            .map_err(|source| NetfilterError::Io { doing: "cannot read from netfilter", source })?;
        loop {
            match self.socket.recv_from_full() {
                Ok((bytes, _)) => {
                    for message in messages(&bytes).filter(|message| message.kind == ERROR) {
                        match refusal(&message) {
                            Some(refusal) => refusals.push(refusal),
                            None => is_confirmed = true,
                        }
                    }
                }
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => break,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) if rustix::io::Errno::from_io_error(&err) == Some(rustix::io::Errno::NOBUFS) => is_lost = true,
                Err(source) => return Err(NetfilterError::Io { doing: "cannot read from netfilter", source }),
            }
        }
        if is_lost && refusals.is_empty() { Err(NetfilterError::Lost) } else { Ok((refusals, is_confirmed)) }
    }

    /// Asks for all things of a kind; each is given to `each` as the message behind netfilter's head. What others
    /// disturb is begun anew, with `again` first.
    pub(crate) fn dump<T>(
        &mut self,
        question: (u16, u8),
        fill: impl Fn(&mut Vec<u8>),
        each: impl Fn(u8, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, NetfilterError> {
        for _ in 0..DUMPS_MAX {
            match self.dump_once(question, (crate::wire::DUMP, &fill), &each) {
                Err(err) if err.errno() == Some(rustix::io::Errno::INTR) => {}
                done => return done,
            }
        }
        Err(NetfilterError::Unsteady)
    }

    /// Asks for one thing.
    pub(crate) fn get<T>(
        &mut self,
        question: (u16, u8),
        fill: impl Fn(&mut Vec<u8>),
        each: impl Fn(u8, &[u8]) -> Option<T>,
    ) -> Result<Option<T>, NetfilterError> {
        // The confirmation ends it, as `DONE` ends a dump.
        Ok(self.dump_once(question, (ACK, &fill), &each)?.pop())
    }

    fn dump_once<T>(
        &mut self,
        (kind, family): (u16, u8),
        (flags, fill): (u16, &dyn Fn(&mut Vec<u8>)),
        each: &dyn Fn(u8, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, NetfilterError> {
        let mut bytes = Vec::new();
        put_message(&mut bytes, Head { kind, flags: flags | REQUEST, seq: 1, family, resource: 0 }, |out| fill(out));
        self.send(&bytes)?;
        let (mut all, mut is_disturbed) = (Vec::new(), false);
        let failed = |source| NetfilterError::Io { doing: "cannot read from netfilter", source };
        loop {
            let (bytes, _) = match self.socket.recv_from_full() {
                Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
                received => received.map_err(failed)?,
            };
            for message in messages(&bytes) {
                is_disturbed |= message.flags & DUMP_INTERRUPTED != 0;
                match message.kind {
                    ERROR | DONE => {
                        if let Some(refusal) = refusal(&message) {
                            return Err(simple(kind, refusal.source));
                        }
                        let interrupted = || NetfilterError::Io {
                            doing: "cannot read from netfilter",
                            source: rustix::io::Errno::INTR.into(),
                        };
                        return if is_disturbed { Err(interrupted()) } else { Ok(all) };
                    }
                    _ => all.extend(
                        message
                            .body
                            .split_at_checked(4)
                            .and_then(|(head, rest)| each(head.first().copied().unwrap_or_default(), rest)),
                    ),
                }
            }
        }
    }
}

/// A refusal of a question.
fn simple(kind: u16, source: io::Error) -> NetfilterError {
    use rustix::io::Errno;
    match Errno::from_io_error(&source) {
        Some(Errno::PERM | Errno::ACCESS) => NetfilterError::Denied,
        Some(Errno::OPNOTSUPP | Errno::INVAL) if kind >> 8 == SUBSYSTEM => NetfilterError::NoNftables,
        Some(Errno::OPNOTSUPP | Errno::INVAL) => NetfilterError::NoConntrack,
        _ => NetfilterError::Io { doing: "netfilter refuses to tell", source },
    }
}

/// Of an answer that is no confirmation the reason.
fn refusal(message: &Message<'_>) -> Option<Refusal> {
    let code = i32::from_ne_bytes(message.body.get(..4)?.try_into().ok()?);
    if code == 0 {
        return None;
    }
    let source = io::Error::from_raw_os_error(code.checked_neg()?);
    let (mut said, mut offset) = (None, None);
    if message.kind == ERROR && message.flags & ERROR_HAS_ATTRIBUTES != 0 {
        let attributes = message.body.get(4 + HEADER..).unwrap_or_default();
        said = crate::wire::text(attributes, 1).map(str::to_owned);
        let number = |bytes: &[u8]| usize::try_from(u32::from_ne_bytes(bytes.try_into().ok()?)).ok();
        offset = attribute(attributes, 2).and_then(number);
    }
    Some(Refusal { seq: message.seq, source, said, offset })
}

/// The bytes of the message of this number.
fn message_of(bytes: &[u8], seq: u32) -> &[u8] {
    let mut rest = bytes;
    while let Some(message) = messages(rest).next() {
        let len = HEADER + message.body.len();
        if message.seq == seq {
            return rest.get(..len).unwrap_or_default();
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    &[]
}

fn refused(script: &str, batch: &Batch, refusal: Refusal, message: &[u8]) -> NetfilterError {
    use rustix::io::Errno;
    let Refusal { seq, source, said, offset } = refusal;
    match (Errno::from_io_error(&source), seq) {
        (Some(Errno::PERM | Errno::ACCESS), _) => return NetfilterError::Denied,
        // The transaction itself is refused, and no message of it.
        (Some(Errno::OPNOTSUPP | Errno::INVAL), 0) => return NetfilterError::NoNftables,
        (_, 0) => return NetfilterError::Io { doing: "netfilter refused the transaction", source },
        _ => {}
    }
    let line = batch.line_of(seq).and_then(|line| script.lines().nth(line)).unwrap_or_default();
    // The kernel points at an attribute. If that is a text, it is the name of what it does not have or know.
    let at = offset.and_then(|at| crate::wire::attributes(message.get(at..)?).next());
    let at = at.and_then(|(_, value)| std::str::from_utf8(value).ok()).map(|text| text.trim_end_matches('\0'));
    let is_word = |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
    NetfilterError::Refused { line: cut(line), at: at.filter(is_word).map(str::to_owned), said, source }
}
