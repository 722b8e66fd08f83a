//! Programs of a bundle that are built from source: Go modules, by the Go toolchain of this machine and the proxy of
//! modules that it is configured with.
//!
//! The modules have `replace` lines, which `go install MODULE@VERSION` refuses; so each is built as a dependency of an
//! empty module. What the checksum database of Go says holds for all of them.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::error::BundleError;
use super::manifest::{Arch, Origin};
use super::parts::{CONTAINERD, Part, Wanted, program};
use crate::flags::environment::{environment, search_path};

/// Downloading and compiling one module on a small machine.
const LIMIT: Duration = Duration::from_secs(3600);
/// Lines of a compiler that are told.
const LINES_MAX: usize = 12;

/// The main package of kubectl: its module has the commands, and no program.
const KUBECTL: &str = r#"package main

import (
	"os"

	"k8s.io/kubectl/pkg/cmd"
)

func main() {
	if cmd.NewDefaultKubectlCommand().Execute() != nil {
		os.Exit(1)
	}
}
"#;

/// Why a program was not built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    #[error("there is no Go on PATH: install it (https://go.dev/dl), or name the programs' files")]
    NoGo,
    #[error("cannot run go")]
    Run(#[source] io::Error),
    #[error("cannot write {path}", path = path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{module}@{version} was not built: {said}")]
    Build { module: &'static str, version: String, said: String },
    #[error(
        "runc was not built with seccomp: its static library for this processor is missing (Debian: libseccomp-dev). \
         Install it, name a file with --runc, or give --without-seccomp, which the bundle tells: pods that ask for a \
         profile, as RuntimeDefault, do not start then. The compiler said: {said}"
    )]
    Seccomp { said: String },
    #[error("'{0}' is no version of a Go module: want one as v1.2.3")]
    Version(String),
    #[error("there is no C compiler for {arch} (runc has C in it): install {compiler}, or name a file with --runc")]
    NoCompiler { arch: Arch, compiler: String },
}

/// Whether runc filters system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seccomp {
    With,
    Without,
}

/// A module and what of it is built.
struct Module {
    flag: &'static str,
    path: &'static str,
    version: String,
    packages: Vec<String>,
    tags: &'static str,
    /// Flags of the linker.
    link: String,
    cgo: bool,
}

/// A Go toolchain that builds for one processor in a folder of its own.
pub(super) struct Builder<'a> {
    pub(super) arch: Arch,
    pub(super) work: &'a Path,
}

impl Builder<'_> {
    /// containerd, its shim and ctr.
    pub(super) fn containerd(&self, version: &str) -> Result<Vec<Part>, BundleError> {
        let path = "github.com/containerd/containerd/v2";
        self.build(&Module {
            flag: "--containerd",
            path,
            version: checked(version)?,
            packages: CONTAINERD.iter().map(|name| format!("{path}/cmd/{name}")).collect(),
            tags: "netgo osusergo static_build",
            link: format!("-X {path}/version.Version={version}"),
            cgo: false,
        })
    }

    /// runc: part of it is C, which enters namespaces before Go's threads are there.
    pub(super) fn runc(&self, version: &str, seccomp: Seccomp) -> Result<Vec<Part>, BundleError> {
        let path = "github.com/opencontainers/runc";
        let plain = version.trim_start_matches('v');
        let built = self.build(&Module {
            flag: "--runc",
            path,
            version: checked(version)?,
            packages: vec![path.to_owned()],
            tags: match seccomp {
                Seccomp::With => "netgo osusergo seccomp",
                Seccomp::Without => "netgo osusergo",
            },
            link: format!("-linkmode external -extldflags -static -X main.version={plain}"),
            cgo: true,
        });
        match built {
            Err(BundleError::Source(SourceError::Build { said, .. })) if said.contains("seccomp") => {
                Err(SourceError::Seccomp { said }.into())
            }
            built => built,
        }
    }

    /// kubectl.
    pub(super) fn kubectl(&self, version: &str) -> Result<Vec<Part>, BundleError> {
        let version = checked(version)?;
        // v0.36.2 of the module is v1.36.2 of Kubernetes.
        let shown = version.replacen("v0.", "v1.", 1);
        self.build(&Module {
            flag: "--kubectl",
            path: "k8s.io/kubectl",
            version,
            packages: vec![".".to_owned()],
            tags: "netgo osusergo",
            link: format!("-X k8s.io/component-base/version.gitVersion={shown}"),
            cgo: false,
        })
    }

    fn build(&self, module: &Module) -> Result<Vec<Part>, BundleError> {
        let dir = self.work.join(module.flag.trim_start_matches('-'));
        let bin = dir.join("bin");
        let write = |path: &Path, text: &str| {
            fs::write(path, text).map_err(|source| SourceError::Write { path: path.to_owned(), source })
        };
        fs::create_dir_all(&bin).map_err(|source| SourceError::Write { path: bin.clone(), source })?;
        write(&dir.join("go.mod"), "module kedge.invalid/bundle\n")?;
        let is_kubectl = module.packages == ["."];
        if is_kubectl {
            write(&dir.join("main.go"), KUBECTL)?;
        }
        let wanted = format!("{}@{}", module.path, module.version);
        eprintln!("building {wanted} for {} …", self.arch);
        self.go(module, &dir, &["get".into(), wanted.clone().into()])?;
        let link = format!("-s -w -buildid= {}", module.link);
        let mut args: Vec<OsString> = ["build", "-trimpath", "-buildvcs=false", "-mod=mod"].map(Into::into).into();
        args.extend([format!("-tags={}", module.tags).into(), format!("-ldflags={link}").into(), "-o".into()]);
        args.push(if is_kubectl { bin.join("kubectl") } else { bin.join("") }.into());
        args.extend(module.packages.iter().map(Into::into));
        self.go(module, &dir, &args)?;
        let name_of = |package: &String| match is_kubectl {
            true => "kubectl".to_owned(),
            false => package.rsplit('/').next().unwrap_or(package).to_owned(),
        };
        let part = |name: String| {
            let wanted_arch = Wanted { flag: module.flag, arch: self.arch };
            let part = program(&name, bin.join(&name), Origin::Source, wanted_arch)?;
            Ok(Part { module: Some(wanted.clone()), ..part })
        };
        module.packages.iter().map(name_of).map(part).collect()
    }

    /// Runs go for the processor, in the folder of a module.
    fn go(&self, module: &Module, dir: &Path, args: &[OsString]) -> Result<(), SourceError> {
        let mut go = Command::new("go");
        go.current_dir(dir).args(args).env("PATH", search_path());
        go.envs([("GOOS", "linux"), ("GOARCH", self.arch.name()), ("GOWORK", "off"), ("GOFLAGS", "-mod=mod")]);
        go.env("CGO_ENABLED", if module.cgo { "1" } else { "0" });
        if self.arch == Arch::Arm {
            go.env("GOARM", "7");
        }
        if let Some(compiler) = self.compiler().filter(|_| module.cgo) {
            let known = std::env::split_paths(&search_path()).any(|dir| dir.join(&compiler).is_file());
            if !known {
                return Err(SourceError::NoCompiler { arch: self.arch, compiler });
            }
            go.env("CC", compiler);
        }
        let output = base::program::output(&mut go, b"", LIMIT).map_err(|err| match err.kind() {
            io::ErrorKind::NotFound => SourceError::NoGo,
            _ => SourceError::Run(err),
        })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with("go: downloading")).collect();
        let said = lines[lines.len().saturating_sub(LINES_MAX)..].join("\n");
        Err(SourceError::Build { module: module.path, version: module.version.clone(), said })
    }

    /// The C compiler for another processor than this one's; what CC names is meant.
    fn compiler(&self) -> Option<String> {
        if Arch::own() == Some(self.arch) || environment("CC").is_some() {
            return None;
        }
        let triple = match self.arch {
            Arch::Amd64 => "x86_64-linux-gnu",
            Arch::Arm64 => "aarch64-linux-gnu",
            Arch::Arm => "arm-linux-gnueabihf",
            Arch::Riscv64 => "riscv64-linux-gnu",
        };
        Some(format!("{triple}-gcc"))
    }
}

/// A version that is no other argument, nor a branch that moves.
fn checked(version: &str) -> Result<String, SourceError> {
    match version.strip_prefix('v').and_then(super::manifest::numbers) {
        Some(_) => Ok(version.to_owned()),
        None => Err(SourceError::Version(version.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_fixed_ones() {
        assert!(checked("v2.2.9").is_ok() && checked("v1.5.0-rc.1").is_ok());
        for bad in ["latest", "main", "2.2.9", "v2", "", "v1.2.3 -x", "v1.2.3@x"] {
            assert!(checked(bad).unwrap_err().to_string().contains("no version"), "{bad}");
        }
    }
}
