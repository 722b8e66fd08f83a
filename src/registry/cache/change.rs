//! One change of one object, encoded once for all who watch it.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::Value;

use super::entry::Entry;
use super::filter::Filter;

/// Type of an event, as a watcher is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// The object is new to the watcher.
    Added,
    /// It changed.
    Modified,
    /// It is gone, or does not fit the selector any more.
    Deleted,
}

impl EventType {
    /// As the `type` field spells it.
    pub fn name(self) -> &'static str {
        match self {
            EventType::Added => "ADDED",
            EventType::Modified => "MODIFIED",
            EventType::Deleted => "DELETED",
        }
    }
}

/// About what a change costs besides its object.
const CHANGE_BYTES: usize = 512;

/// Before and after of one object at one revision.
#[derive(Debug)]
pub struct Change {
    /// The revision.
    pub rv: u64,
    /// State before; none for a create.
    pub before: Option<Arc<Entry>>,
    /// State after; none for a delete.
    pub after: Option<Arc<Entry>>,
    frames: [OnceLock<Bytes>; 3],
}

impl Change {
    /// A change nobody has encoded yet.
    pub fn new(rv: u64, before: Option<Arc<Entry>>, after: Option<Arc<Entry>>) -> Change {
        Change { rv, before, after, frames: Default::default() }
    }

    /// Where the object is or was.
    pub fn namespace(&self) -> &str {
        self.after.as_ref().or(self.before.as_ref()).map_or("", |entry| entry.namespace())
    }

    /// Bytes that are kept for it: what it adds to the state before, and the frame that this becomes.
    pub fn cost(&self) -> usize {
        let object = self.after.as_ref().or(self.before.as_ref()).map_or(0, |entry| entry.json.len());
        2 * object + CHANGE_BYTES
    }

    /// Type of the change for a watcher with this filter; nothing if it never sees the object.
    pub fn seen_through(&self, filter: &Filter) -> Option<EventType> {
        let before = self.before.as_ref().is_some_and(|e| filter.matches(e));
        let after = self.after.as_ref().is_some_and(|e| filter.matches(e));
        match (before, after) {
            (false, true) => Some(EventType::Added),
            (true, true) => Some(EventType::Modified),
            (true, false) => Some(EventType::Deleted),
            (false, false) => None,
        }
    }

    /// The object of the event. A DELETED one is the last state that the watcher saw, at the revision of the change.
    pub fn object(&self, event: EventType) -> Bytes {
        match (event, &self.before, &self.after) {
            (EventType::Deleted, Some(before), _) => before.json_at(self.rv),
            (_, _, Some(after)) => after.json.clone(),
            _ => Bytes::new(),
        }
    }

    /// The whole frame in the storage version, shared by every watcher that asks for it.
    pub fn frame(&self, event: EventType) -> Bytes {
        self.frames[event as usize].get_or_init(|| frame(event.name(), &self.object(event))).clone()
    }
}

/// How a watch is cut into events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// JSON, a line each.
    Lines,
    /// Protobuf, each behind its length.
    Protobuf,
}

impl Framing {
    /// For the `Content-Type` header.
    pub fn content_type(self) -> &'static str {
        match self {
            Framing::Lines => "application/json",
            Framing::Protobuf => schema::protobuf::WATCH_MEDIA_TYPE,
        }
    }

    /// An event with an object that is encoded already.
    pub fn frame(self, event: &str, object: &[u8]) -> Bytes {
        match self {
            Framing::Lines => frame(event, object),
            Framing::Protobuf => schema::protobuf::watch_frame(event, object).into(),
        }
    }

    /// An event with a value of a built-in kind.
    pub fn frame_of(self, event: &str, object: &Value) -> Bytes {
        match self {
            Framing::Lines => frame(event, object.to_string().as_bytes()),
            // Only a Status or a bookmark: both have tags and nothing in them that could be of a wrong type.
            Framing::Protobuf => self.frame(event, &schema::protobuf::encode(object).unwrap_or_default()),
        }
    }
}

/// `{"type":…,"object":…}` and a newline.
fn frame(event: &str, object: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(object.len() + 32);
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(event.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    out.extend_from_slice(object);
    out.extend_from_slice(b"}\n");
    out.into()
}
