//! This room plugs pods into the node's network. containerd executes it under the names of the standard CNI plugins
//! (`bridge`, `host-local`, `loopback`, `portmap`, `bandwidth`, and our own `kedge-policy`); each call does one thing
//! and ends, in milliseconds. In: environment and JSON on stdin, as the CNI specification says. Out: links, addresses,
//! routes, nftables elements, JSON. It never knows what a Pod or an API server is, and it imports base and netfilter
//! only.

mod bandwidth;
mod bridge;
mod conflist;
mod error;
mod host_local;
mod ipam;
mod loopback;
mod netlink;
mod nft;
mod policy;
mod portmap;
mod request;
mod result;
mod source;

#[cfg(test)]
mod fuzz_tests;

use std::io::{Read as _, Write as _};

use crate::error::CniError;
use crate::request::{Command, Request};
use crate::result::NetResult;

/// Names under which the binary answers as a CNI plugin.
pub const PLUGINS: [&str; 6] = ["bridge", "host-local", "loopback", "portmap", "bandwidth", "kedge-policy"];

pub use crate::conflist::{Conflist, conflist};
pub use crate::source::is_possible as source_guard_is_possible;

/// Runs one CNI call as `plugin` (the base name of `argv[0]`) and returns the exit code: 0, or 1 with the spec's error
/// JSON on stdout.
pub fn main(plugin: &str) -> i32 {
    let mut stdin = Vec::new();
    let outcome = match std::io::stdin().lock().read_to_end(&mut stdin) {
        Ok(_) => run(plugin, &stdin),
        Err(err) => Err(CniError::io("cannot read the network configuration from stdin", &err)),
    };
    let (text, code) = match outcome {
        Ok(text) => (text, 0),
        Err(err) => (err.to_json(&request::version_of(&stdin)), 1),
    };
    // A closed stdout means that nobody listens; the exit code still tells.
    let _nobody_listens = std::io::stdout().lock().write_all(text.as_bytes());
    code
}

fn run(plugin: &str, stdin: &[u8]) -> Result<String, CniError> {
    let env = request::Env::read();
    let command = Command::parse(env.command.as_deref())?;
    if command == Command::Version {
        return Ok(request::versions(stdin));
    }
    let request = Request::new(command, env, stdin)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|err| CniError::io("cannot start the event loop", &err))?;
    let result = runtime.block_on(call(plugin, &request))?;
    Ok(result.map(|result| result.to_json(&request.version)).unwrap_or_default())
}

/// One plugin, one command. ADD has a result, DEL and CHECK have none.
async fn call(plugin: &str, request: &Request) -> Result<Option<NetResult>, CniError> {
    match (plugin, request.command) {
        ("bridge", Command::Add) => bridge::add(request).await.map(Some),
        ("bridge", Command::Del) => bridge::del(request).await.map(|()| None),
        ("bridge", Command::Check) => bridge::check(request).await.map(|()| None),
        ("host-local", Command::Add) => host_local::add(request).map(Some),
        ("host-local", Command::Del) => host_local::del(request).map(|()| None),
        ("host-local", Command::Check) => host_local::check(request).map(|()| None),
        ("loopback", Command::Add) => loopback::add(request).await.map(Some),
        ("loopback", Command::Del) => loopback::del(request).await.map(|()| None),
        ("loopback", Command::Check) => loopback::check(request).await.map(|()| None),
        ("portmap", Command::Add) => portmap::add(request).map(Some),
        ("portmap", Command::Del) => portmap::del(request).map(|()| None),
        ("portmap", Command::Check) => portmap::check(request).map(|()| None),
        ("bandwidth", Command::Add) => bandwidth::add(request).map(Some),
        ("bandwidth", Command::Del) => bandwidth::del(request).map(|()| None),
        ("bandwidth", Command::Check) => bandwidth::check(request).map(|()| None),
        ("kedge-policy", Command::Add) => policy::add(request).map(Some),
        ("kedge-policy", Command::Del) => policy::del(request).map(|()| None),
        ("kedge-policy", Command::Check) => policy::check(request).map(|()| None),
        (other, _) => Err(CniError::config(format!("no CNI plugin {other:?} here, only {}", PLUGINS.join(", ")))),
    }
}

/// The oracle of every script that this room writes: the program nft gets the same one.
#[cfg(test)]
#[path = "../netfilter/oracle.rs"]
mod oracle;
