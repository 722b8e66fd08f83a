//! The front door: `argv[0]` or the subcommand decides the role; nothing else happens here.

mod agent;
mod commands;
mod flags;
mod process;
mod server;

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
        "pause" => commands::pause::main(),
        "local-path" => {
            commands::local_path::main(&args.map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>())
        }
        _ if commands::tools::NAMES.contains(&name.as_str()) => commands::tool(&name, &args.collect::<Vec<_>>()),
        _ => commands::main(args.collect()),
    };
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// The DNS server logs to standard error, as everything in a pod does.
fn dns_main(args: &[String]) -> i32 {
    process::logging::to_stderr();
    dns::main(args)
}
