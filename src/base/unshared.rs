//! A test's own program again in a mount namespace of its own, where the test may mount.

use std::ffi::OsStr;
use std::io;
use std::process::Command;
use std::time::Duration;

use crate::program;

/// Set for the inner program.
const INSIDE: &str = "KEDGE_TEST_OWN_NAMESPACE";
/// The inner program has this long.
const LIMIT: Duration = Duration::from_secs(120);

/// Whether this is the inner program. The outer one runs the test `name`, its path in this program, inside, with `vars`
/// in its environment; as another user than root it runs nothing.
///
/// Errors: unshare(1) cannot be run, or the test failed inside; with what it said.
pub fn in_own_namespace(name: &str, vars: &[(&str, &OsStr)]) -> io::Result<bool> {
    if std::env::var_os(INSIDE).is_some() {
        return Ok(true);
    }
    if rustix::process::geteuid().is_root() {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation=private"]).arg(std::env::current_exe()?);
        command.args(["--exact", name, "--nocapture"]).env(INSIDE, "1").envs(vars.iter().copied());
        let done = program::output(&mut command, b"", LIMIT).map_err(io::Error::other)?;
        if !done.status.success() {
            let said = [done.stdout, done.stderr].concat();
            return Err(io::Error::other(format!(
                "{name} failed in a mount namespace of its own: {}",
                String::from_utf8_lossy(&said)
            )));
        }
    }
    Ok(false)
}
