//! Scratch: the plugins as a program of their own.
fn main() -> std::process::ExitCode {
    let name = std::env::args().next().unwrap_or_default();
    let name = std::path::Path::new(&name).file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
    std::process::ExitCode::from(cni::main(&name) as u8)
}
