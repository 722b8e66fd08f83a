//! Collects the sentences of `kubectl explain` from the doc comments of the k8s-openapi crate: one compressed text in
//! OUT_DIR. The crate's source is only read, never compiled for this, so that the build stays quick.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../../Cargo.lock");
    let mut out = String::new();
    match source_of_k8s_openapi().and_then(|dir| Ok(collect(&dir.join("src/v1_36"), "io.k8s", &mut out)?)) {
        Ok(()) => {}
        Err(e) => println!("cargo:warning=kubectl explain will have no sentences: {e}"),
    }
    let target = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("descriptions.zst");
    let written = zstd::encode_all(out.as_bytes(), 19).and_then(|bytes| fs::write(&target, bytes));
    if let Err(e) = written {
        println!("cargo:error={}: {e}", target.display());
    }
}

/// The crate's folder: where cargo unpacks registry crates, else wherever `cargo metadata` says (vendored or patched).
fn source_of_k8s_openapi() -> Result<PathBuf, Box<dyn std::error::Error>> {
    let lock = fs::read_to_string("../../Cargo.lock")?;
    let entry = lock
        .split("[[package]]")
        .find(|p| p.contains("name = \"k8s-openapi\""))
        .ok_or("Cargo.lock names no k8s-openapi")?;
    let version =
        entry.split("version = \"").nth(1).and_then(|v| v.split('"').next()).ok_or("Cargo.lock gives it no version")?;
    let folder = format!("k8s-openapi-{version}");
    let home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|h| Path::new(&h).join(".cargo")));
    for registry in home.and_then(|h| fs::read_dir(h.join("registry/src")).ok()).into_iter().flatten().flatten() {
        let path = registry.path().join(&folder);
        if path.is_dir() {
            return Ok(path);
        }
    }
    from_metadata()
}

fn from_metadata() -> Result<PathBuf, Box<dyn std::error::Error>> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let answer = Command::new(cargo).args(["metadata", "--format-version", "1", "--locked", "--offline"]).output()?;
    let text = String::from_utf8(answer.stdout)?;
    for path in text.split("\"manifest_path\":\"").skip(1).filter_map(|rest| rest.split('"').next()) {
        let folder = Path::new(path).parent().unwrap_or(Path::new(""));
        if folder.file_name().is_some_and(|n| n.to_string_lossy().starts_with("k8s-openapi")) {
            return Ok(folder.to_owned());
        }
    }
    Err(format!("cargo metadata names no k8s-openapi: {}", String::from_utf8_lossy(&answer.stderr)).into())
}

/// `T TYPE`, the type's sentence, then `F field` and its sentence; line breaks inside are written as `\n`.
fn collect(dir: &Path, package: &str, out: &mut String) -> io::Result<()> {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir)?.map(|e| e.map(|e| e.path())).collect::<io::Result<_>>()?;
    entries.sort();
    for path in entries {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().replace('_', "-");
        if path.is_dir() {
            collect(&path, &format!("{package}.{stem}"), out)?;
        } else if stem != "mod" {
            collect_file(&fs::read_to_string(&path)?, package, out);
        }
    }
    Ok(())
}

fn collect_file(text: &str, package: &str, out: &mut String) {
    let mut docs: Vec<&str> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let trimmed = line.trim();
        if let Some(doc) = trimmed.strip_prefix("///") {
            docs.push(doc.strip_prefix(' ').unwrap_or(doc));
        } else if let Some(rest) = line.strip_prefix("pub struct ") {
            let name = rest.split([' ', '(', ';', '<']).next().unwrap_or_default();
            let _ = writeln!(out, "T {package}.{name}\n{}", docs.join("\\n"));
            docs.clear();
            inside = rest.ends_with('{');
        } else if line == "}" {
            if inside {
                return;
            }
        } else if let (true, Some(rest)) = (inside, trimmed.strip_prefix("pub ")) {
            let name = rest.split(':').next().unwrap_or_default().trim_start_matches("r#");
            let plain: String = name.chars().filter(|c| *c != '_').collect();
            let _ = writeln!(out, "F {plain}\n{}", docs.join("\\n"));
            docs.clear();
        } else if !trimmed.starts_with("#[") {
            docs.clear();
        }
    }
}
