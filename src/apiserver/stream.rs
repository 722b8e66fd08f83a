//! Streams between a client and a node: exec, attach, port-forward, logs, proxy.
//!
//! SPDY clients are joined to the node byte by byte. WebSocket clients of remote commands are translated, because the
//! node's side speaks SPDY; WebSocket clients of port forwarding carry SPDY inside their messages and are unwrapped.

pub mod log;
mod page;
pub mod port_forward;
pub mod remote_command;
pub mod rewrite;
