//! The audit log: what happened, who did it, and what the server's guards had to say about it.

pub mod auditor;
pub mod file;
pub mod policy;
