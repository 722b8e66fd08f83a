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

/// nft refuses the rules that hold pods to their addresses; its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceGuardRefused(pub String);

impl fmt::Display for SourceGuardRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SourceGuardRefused {}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_the_specifications_json() {
        let mut err = CniError::new(Code::TryAgain, "busy");
        assert_eq!(err.to_json("1.0.0"), "{\"cniVersion\":\"1.0.0\",\"code\":11,\"msg\":\"busy\"}\n");
        err.details = "soon".to_owned();
        let body: serde_json::Value = serde_json::from_str(&err.to_json("0.4.0")).unwrap();
        assert_eq!(body, json!({"cniVersion": "0.4.0", "code": 11, "msg": "busy", "details": "soon"}));
        let io = CniError::io("cannot run nft", &"no such file");
        assert_eq!((io.code, io.msg.as_str()), (5, "cannot run nft: no such file"));
        assert_eq!((CniError::config("x").code, CniError::internal("x").code), (7, 999));
    }
}
