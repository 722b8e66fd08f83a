//! SPDY/3.1 as containerd's streaming server and older kubectl speak it: streams over one upgraded connection.
//!
//! Only what remote commands and port forwarding use: SYN_STREAM, SYN_REPLY, RST_STREAM, DATA, PING, GOAWAY; flow
//! control is not part of this dialect (the peers' library ignores WINDOW_UPDATE). Spec: SPDY Protocol, draft 3.1.

pub mod frame;
pub mod session;

mod dictionary;
