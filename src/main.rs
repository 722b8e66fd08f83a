//! The front door: argv[0] or the subcommand decides the role; nothing else happens here.

mod addons;
mod admin;
mod agent;
mod authorities;
mod certificates;
mod charts;
mod claims;
mod cleanup;
mod cli;
mod config_check;
mod config_file;
mod connector;
mod datastore;
mod encryption;
mod flags;
mod front;
mod host;
mod identity;
mod images;
mod joining;
mod leader;
mod life;
mod local_path;
mod logging;
mod membership;
mod pause;
mod process_dir;
mod ranges;
mod refused;
mod rotation;
mod runtime_tools;
mod secrets_encrypt;
mod server;
mod signing;
mod snapshots;
mod status;
mod tokens;
mod tools;
mod why;

use std::path::Path;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let code = match name.as_str() {
        name if cni::PLUGINS.contains(&name) => cni::main(name),
        "coredns" => dns_main(&args.map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>()),
        "pause" => pause::main(),
        "local-path" => local_path::main(&args.map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>()),
        _ if tools::NAMES.contains(&name.as_str()) => cli::tool(&name, &args.collect::<Vec<_>>()),
        _ => cli::main(args.collect()),
    };
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// The DNS server logs to standard error, as everything in a pod does.
fn dns_main(args: &[String]) -> i32 {
    logging::to_stderr();
    dns::main(args)
}
