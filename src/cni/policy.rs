//! The `kedge-policy` plugin: holds a pod back until its network policies are in force on this node.
//!
//! It tells kedge over a unix socket which addresses the sandbox got, and passes the earlier plugins' result on when
//! kedge has answered. Without an answer the pod does not start: a pod that nobody guards must not be reachable.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::{CniError, Code};
use crate::request::Request;
use crate::result::NetResult;

/// Longer than kedge itself waits, so that its own words arrive.
const TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug, Deserialize)]
struct Config {
    socket: String,
}

pub(crate) fn add(request: &Request) -> Result<NetResult, CniError> {
    let prev = request.prev_result()?.ok_or_else(|| CniError::config("must be called as chained plugin"))?;
    let arg = |name: &str| request.args.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.as_str());
    let question = json!({
        "command": "ADD",
        "sandbox": request.container_id,
        "namespace": arg("K8S_POD_NAMESPACE"),
        "name": arg("K8S_POD_NAME"),
        "uid": arg("K8S_POD_UID"),
        "addresses": prev.container_ips().map(|ip| ip.address.addr()).collect::<Vec<_>>(),
        "netns": request.netns,
    });
    ask(request, &question)?;
    Ok(prev)
}

/// Kedge still knows the sandbox under its addresses, so its policies are in force.
pub(crate) fn check(request: &Request) -> Result<(), CniError> {
    let prev = request.prev_result()?.ok_or_else(|| CniError::config("CHECK needs a prevResult"))?;
    let addresses: Vec<_> = prev.container_ips().map(|ip| ip.address.addr()).collect();
    ask(request, &json!({ "command": "CHECK", "sandbox": request.container_id, "addresses": addresses }))
}

/// A kedge that is away learns from the API what is gone: that must not keep the sandbox from being removed.
pub(crate) fn del(request: &Request) -> Result<(), CniError> {
    let _later = ask(request, &json!({ "command": "DEL", "sandbox": request.container_id }));
    Ok(())
}

fn ask(request: &Request, question: &Value) -> Result<(), CniError> {
    let config: Config = request.parse()?;
    let away = |err: std::io::Error| {
        CniError::new(Code::TryAgain, format!("kedge does not answer on {}: {err}", config.socket))
    };
    let mut stream = UnixStream::connect(&config.socket).map_err(away)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(away)?;
    stream.write_all(format!("{question}\n").as_bytes()).map_err(away)?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).map_err(away)?;
    let answer: Value = serde_json::from_str(&line)
        .map_err(|err| CniError::new(Code::Decode, format!("cannot read kedge's answer: {err}")))?;
    match answer.get("error").and_then(Value::as_str) {
        None => Ok(()),
        Some(why) => Err(CniError::new(Code::TryAgain, why)),
    }
}
