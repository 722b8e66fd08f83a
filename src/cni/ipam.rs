//! Asking the IPAM plugin for addresses: ours in process, another by executing it from `CNI_PATH`.

use std::process::Command as Process;
use std::time::Duration;

use serde_json::Value;

use crate::error::{CniError, Code};
use crate::host_local;
use crate::request::{Command, Request};
use crate::result::NetResult;

/// A plugin that asks a DHCP server may take its time; the runtime gives up after four minutes.
const LIMIT: Duration = Duration::from_secs(180);

/// The `ipam.type` of a configuration, or nothing when the network has no addresses (a pure layer 2 bridge).
pub(crate) fn kind(request: &Request) -> Option<&str> {
    request.config.get("ipam")?.get("type").and_then(Value::as_str).filter(|kind| !kind.is_empty())
}

pub(crate) fn add(request: &Request, kind: &str) -> Result<NetResult, CniError> {
    if kind == "host-local" {
        return host_local::add(request);
    }
    let stdout = execute(request, kind, Command::Add)?;
    serde_json::from_slice(&stdout)
        .map_err(|err| CniError::new(Code::Decode, format!("cannot parse the result of IPAM plugin {kind:?}: {err}")))
}

pub(crate) fn del(request: &Request, kind: &str) -> Result<(), CniError> {
    if kind == "host-local" { host_local::del(request) } else { execute(request, kind, Command::Del).map(drop) }
}

pub(crate) fn check(request: &Request, kind: &str) -> Result<(), CniError> {
    if kind == "host-local" { host_local::check(request) } else { execute(request, kind, Command::Check).map(drop) }
}

fn execute(request: &Request, kind: &str, command: Command) -> Result<Vec<u8>, CniError> {
    if kind.contains('/') {
        return Err(CniError::config(format!("invalid plugin name {kind:?}: contains a path separator")));
    }
    let path = request.plugin_dirs.iter().map(|dir| dir.join(kind)).find(|path| path.is_file());
    let path = path
        .ok_or_else(|| CniError::config(format!("failed to find plugin {kind:?} in path {:?}", request.plugin_dirs)))?;
    let broken = |err: std::io::Error| CniError::io(format!("cannot run IPAM plugin {}", path.display()), &err);
    // The environment is inherited but for the command: a failed ADD is undone by a DEL.
    let mut plugin = Process::new(&path);
    plugin.env("CNI_COMMAND", command.as_str());
    let output = base::program::output(&mut plugin, request.config.to_string().as_bytes(), LIMIT).map_err(broken)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let text = |field: &str| report.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    Err(CniError {
        code: report
            .get("code")
            .and_then(Value::as_u64)
            .and_then(|code| u32::try_from(code).ok())
            .unwrap_or(Code::Internal as u32),
        msg: match text("msg") {
            msg if msg.is_empty() => format!("IPAM plugin {kind:?} failed: {}", output.status),
            msg => msg,
        },
        details: text("details"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::request::for_test;

    #[test]
    fn a_network_has_addresses_only_if_it_names_who_gives_them() {
        let kind_of = |ipam: Value| {
            let config = json!({"cniVersion": "1.0.0", "name": "n", "ipam": ipam});
            kind(&for_test(Command::Add, "c1", config)).map(str::to_owned)
        };
        assert_eq!(kind_of(json!({"type": "host-local"})).as_deref(), Some("host-local"));
        for none in [json!({}), json!({"type": ""}), json!({"type": 7}), json!(null)] {
            assert_eq!(kind_of(none.clone()), None, "{none}");
        }
    }

    #[test]
    fn no_program_outside_the_folders_of_plugins_is_executed() {
        let request = for_test(Command::Add, "c1", json!({"cniVersion": "1.0.0", "name": "n"}));
        for (kind, wanted) in [
            ("../bin/sh", "invalid plugin name \"../bin/sh\": contains a path separator"),
            ("dhcp", "failed to find plugin \"dhcp\" in path []"),
        ] {
            let err = add(&request, kind).unwrap_err();
            assert_eq!((err.code, err.msg.as_str()), (7, wanted));
            assert_eq!(del(&request, kind).unwrap_err().msg, wanted);
        }
    }
}
