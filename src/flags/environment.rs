//! The environment: the only place that reads it.

use std::ffi::OsString;

#[allow(clippy::disallowed_methods, reason = "this is the place the ban points to")]
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The PATH, on which containerd and runc are looked for.
pub(crate) fn search_path() -> OsString {
    environment("PATH")
        .unwrap_or_else(|| "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned())
        .into()
}

/// The variables that lead programs to the network.
pub(crate) fn proxies() -> Vec<(String, String)> {
    let names = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"];
    names.into_iter().filter_map(|name| Some((name.to_owned(), environment(name)?))).collect()
}

/// Where systemd waits to hear from us.
pub(crate) fn notify_socket() -> Option<String> {
    environment("NOTIFY_SOCKET")
}

/// A flag with a secret in it that stands on this process's command line.
pub(crate) fn secret_on_command_line() -> Option<&'static str> {
    let secrets = ["--etcd-s3-secret-key", "--etcd-s3-session-token", "--s3-secret-key", "--s3-session-token"];
    let given: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    secrets.into_iter().find(|secret| given.iter().any(|arg| arg.split('=').next() == Some(secret)))
}
