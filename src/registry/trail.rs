//! Notes that a request gathers on its way: audit annotations and late warnings. All copies of a request's attributes
//! share them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base::sync::{Mutex, MutexGuard};
use serde_json::Value;

use crate::user::UserInfo;

/// The notes of one request.
#[derive(Clone, Default)]
pub struct Trail(Arc<Mutex<Notes>>);

#[derive(Default)]
struct Notes {
    annotations: BTreeMap<String, String>,
    warnings: Vec<String>,
    sent: Option<Value>,
    wants_sent: bool,
    impersonated: Option<Arc<UserInfo>>,
}

impl fmt::Debug for Trail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trail")
    }
}

/// Notes are no part of what is asked: requests are equal without them.
impl PartialEq for Trail {
    fn eq(&self, _other: &Trail) -> bool {
        true
    }
}

impl Eq for Trail {}

impl Trail {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.0.lock()
    }

    /// Keeps an annotation for the audit log. The first value of a key stays, as upstream has it.
    pub fn note(&self, key: &str, value: impl AsRef<str>) {
        self.notes().annotations.entry(key.to_owned()).or_insert_with(|| value.as_ref().to_owned());
    }

    /// Keeps texts for `Warning` headers.
    pub fn warn(&self, texts: impl IntoIterator<Item = String>) {
        self.notes().warnings.extend(texts);
    }

    /// From now on [`Trail::keep_sent`] keeps what it is given.
    pub fn want_sent(&self) {
        self.notes().wants_sent = true;
    }

    /// Keeps the request's body for the audit log, if somebody wants it; `read` makes a value of it.
    pub fn keep_sent(&self, read: impl FnOnce() -> Option<Value>) {
        if self.notes().wants_sent {
            let sent = read();
            self.notes().sent = sent;
        }
    }

    /// The object that was sent.
    pub fn sent(&self) -> Option<Value> {
        self.notes().sent.clone()
    }

    /// The request is made in somebody else's name.
    pub fn impersonates(&self, user: Arc<UserInfo>) {
        self.notes().impersonated = Some(user);
    }

    /// In whose name it is made.
    pub fn impersonated(&self) -> Option<UserInfo> {
        self.notes().impersonated.as_ref().map(|user| (**user).clone())
    }

    /// The annotations so far.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        self.notes().annotations.clone()
    }

    /// Takes the warnings out.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.notes().warnings)
    }
}
