//! Errors as the CNI specification prints them: code, message, details.
//!
//! Spec: <https://www.cni.dev/docs/spec/#error>

use std::fmt;

use serde_json::json;

/// Codes of the specification (1-99), and 999 for what only this plugin can tell, as upstream's plugins use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    IncompatibleVersion = 1,
    UnsupportedField = 2,
    InvalidEnvironment = 4,
    Io = 5,
    Decode = 6,
    InvalidConfig = 7,
    TryAgain = 11,
    Internal = 999,
}

/// Why a call failed. It becomes JSON on stdout, which containerd puts into the pod's event.
#[derive(Debug)]
pub(crate) struct CniError {
    pub(crate) code: u32,
    pub(crate) msg: String,
    pub(crate) details: String,
}

impl CniError {
    pub(crate) fn new(code: Code, msg: impl Into<String>) -> CniError {
        CniError { code: code as u32, msg: msg.into(), details: String::new() }
    }

    pub(crate) fn config(msg: impl Into<String>) -> CniError {
        CniError::new(Code::InvalidConfig, msg)
    }

    pub(crate) fn internal(msg: impl Into<String>) -> CniError {
        CniError::new(Code::Internal, msg)
    }

    pub(crate) fn io(msg: impl Into<String>, cause: &dyn fmt::Display) -> CniError {
        CniError { code: Code::Io as u32, msg: format!("{}: {cause}", msg.into()), details: String::new() }
    }

    pub(crate) fn to_json(&self, version: &str) -> String {
        let mut body = json!({ "cniVersion": version, "code": self.code, "msg": self.msg });
        if !self.details.is_empty() {
            body["details"] = json!(self.details);
        }
        format!("{body}\n")
    }
}
