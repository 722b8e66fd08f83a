//! `kedge bundle build`: gathers the parts of a bundle as its flags say, and tells what is missing in it.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use base::layout::{DEFAULT, Layout};
use clap::Args;

use super::elf;
use super::error::BundleError;
use super::images::{self, ImageError};
use super::keys::SigningKey;
use super::manifest::{Arch, Image, Manifest, Origin};
use super::opened::OWN;
use super::pack::{self, Inputs};
use super::parts::{self, CONTAINERD, Part, Wanted};
use super::source::{Builder, Seccomp};
use super::trailer::Trailer;
use crate::flags::environment::{environment, search_path};
use crate::process::version::mark;

/// Flags of `kedge bundle build`.
#[derive(Clone, Debug, Args)]
pub(super) struct BuildArgs {
    /// Processor of the machines that it is for.
    #[arg(long)]
    arch: Arch,
    /// The bundle that is written. It can be executed: its head is kedge.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The kedge in it (default: the one that runs).
    #[arg(long, value_name = "FILE")]
    kedge: Option<PathBuf>,
    /// containerd: a folder with containerd, containerd-shim-runc-v2 and ctr, or an archive as its releases are.
    #[arg(long, value_name = "DIR|FILE")]
    containerd: Option<PathBuf>,
    /// runc.
    #[arg(long, value_name = "FILE")]
    runc: Option<PathBuf>,
    /// kubectl.
    #[arg(long, value_name = "FILE")]
    kubectl: Option<PathBuf>,
    /// An archive of images (docker's or OCI's), or the name of an image that this node's containerd has. May be
    /// repeated.
    #[arg(long = "image", value_name = "FILE|NAME")]
    images: Vec<String>,
    /// File with one such archive or name a line.
    #[arg(long, value_name = "FILE")]
    images_list: Option<PathBuf>,
    /// Take the programs that are not named from PATH.
    #[arg(long, conflicts_with = "from_source")]
    from_path: bool,
    /// Build the programs that are not named from source, with this machine's Go.
    #[arg(long)]
    from_source: bool,
    /// With --from-source: build a runc that filters no system calls. The bundle tells it.
    #[arg(long, requires = "from_source")]
    without_seccomp: bool,
    /// With --from-source: version of containerd's module.
    #[arg(long, value_name = "VERSION", default_value = "v2.2.9")]
    containerd_version: String,
    /// With --from-source: version of runc's module.
    #[arg(long, value_name = "VERSION", default_value = "v1.4.3")]
    runc_version: String,
    /// With --from-source: version of kubectl's module (v0.36.6 is Kubernetes v1.36.6).
    #[arg(long, value_name = "VERSION", default_value = "v0.36.6")]
    kubectl_version: String,
    /// Private key to sign it with: PEM, from 'kedge bundle keygen' or openssl.
    #[arg(long, value_name = "FILE")]
    sign: Option<PathBuf>,
}

/// Makes a bundle and prints what is in it.
pub(super) fn main(args: &BuildArgs) -> Result<(), BundleError> {
    // What can fail at once fails before the long work.
    let key = args.sign.as_deref().map(SigningKey::read).transpose()?;
    let (mut program, version) = program(args)?;
    let output = std::path::absolute(&args.output).map_err(BundleError::write(&args.output))?;
    let beside = output.parent().unwrap_or(Path::new("/"));
    let work = tempfile::Builder::new().prefix(".bundle-").tempdir_in(beside);
    let work = work.map_err(BundleError::write(&args.output))?;
    let mut notes = Vec::new();
    let mut parts = programs(args, work.path(), &mut notes)?;
    notes.extend(parts.iter().filter_map(|part| {
        let interpreter = part.interpreter.as_ref()?;
        Some(format!("{} is not static: it needs {interpreter} and its libraries on the machine", part.name))
    }));
    let images = gather(args, work.path(), &mut parts)?;
    let inputs = Inputs { arch: args.arch, version, program: &mut program, parts, images, notes };
    let manifest = pack::write(inputs, &args.output, key.as_ref())?;
    print(args, &manifest)
}

fn print(args: &BuildArgs, manifest: &Manifest) -> Result<(), BundleError> {
    let size = fs::metadata(&args.output).map_err(BundleError::read(&args.output))?.len();
    println!("{}: kedge {} for {}, {size} bytes", args.output.display(), manifest.version, manifest.arch);
    for file in &manifest.files {
        println!("  {:<40} {:>12} {}", file.name, file.size, file.module.as_deref().unwrap_or_default());
    }
    for image in manifest.images.iter().flat_map(|image| &image.references) {
        println!("  image {image}");
    }
    for note in &manifest.notes {
        println!("Note: {note}");
    }
    let missing: Vec<&str> = CONTAINERD.into_iter().chain(["runc"]).filter(|name| !manifest.has(name)).collect();
    if !missing.is_empty() {
        println!("Note: there is no {} in it: the machine must have its own.", missing.join(", "));
    }
    if args.sign.is_none() {
        println!("Note: it is not signed (--sign): nobody will vouch for it but its sums.");
    }
    Ok(())
}

/// The kedge of the bundle, without a bundle that it may be the head of, and its version.
fn program(args: &BuildArgs) -> Result<(impl Read + use<>, String), BundleError> {
    let (flag, arch) = ("--kedge", args.arch);
    let ours = Arch::own().map_or(std::env::consts::ARCH, Arch::name);
    let path = match &args.kedge {
        Some(path) => path.clone(),
        None if Arch::own() == Some(arch) => PathBuf::from(OWN),
        None => return Err(BundleError::NoKedge { ours, arch }),
    };
    let refused = |why| BundleError::PartRefused { flag, path: path.clone(), why };
    let read = || BundleError::read(&path);
    let file = File::open(&path).map_err(read())?;
    let elf = elf::read(&file).map_err(read())?.ok_or_else(|| refused("it is no program of Linux"))?;
    if elf.arch != Some(arch) {
        return Err(BundleError::PartArch { flag, path, arch });
    }
    if elf.interpreter.is_some() {
        return Err(refused("it is not static: build it with 'make release'"));
    }
    let size = match Trailer::read(&file).map_err(read())? {
        Ok(trailer) => trailer.program,
        Err(_) => file.metadata().map_err(read())?.len(),
    };
    let again = file.try_clone().map_err(read())?;
    let version = parts::version_of(&mut super::trailer::Region::new(&again, 0, size), mark()).map_err(read())?;
    let version = version.ok_or_else(|| refused("it is no kedge that knows of bundles"))?;
    Ok((file.take(size), version))
}

/// The programs beside kedge.
fn programs(args: &BuildArgs, work: &Path, notes: &mut Vec<String>) -> Result<Vec<Part>, BundleError> {
    let arch = args.arch;
    let wanted = |flag| Wanted { flag, arch };
    let builder = Builder { arch, work };
    let found = search_path();
    let mut all = Vec::new();
    match &args.containerd {
        Some(given) => {
            let unpacked = work.join("containerd-release");
            fs::create_dir(&unpacked).map_err(BundleError::write(&unpacked))?;
            all.extend(parts::containerd(given, &unpacked, arch)?);
        }
        None if args.from_source => all.extend(builder.containerd(&args.containerd_version)?),
        None if args.from_path => {
            for name in CONTAINERD {
                all.push(parts::on_path(name, &found, wanted("--containerd"))?);
            }
        }
        None => {}
    }
    for (name, flag, given) in [("runc", "--runc", &args.runc), ("kubectl", "--kubectl", &args.kubectl)] {
        match given {
            Some(path) => all.push(parts::program(name, path.clone(), Origin::File, wanted(flag))?),
            None if args.from_source && name == "runc" => {
                let seccomp = if args.without_seccomp { Seccomp::Without } else { Seccomp::With };
                all.extend(builder.runc(&args.runc_version, seccomp)?);
                if seccomp == Seccomp::Without {
                    notes.push("its runc filters no system calls: pods that ask for a profile do not start".to_owned());
                }
            }
            None if args.from_source => all.extend(builder.kubectl(&args.kubectl_version)?),
            None if args.from_path => all.push(parts::on_path(name, &found, wanted(flag))?),
            None => {}
        }
    }
    Ok(all)
}

/// The images, as parts and as they are told of.
fn gather(args: &BuildArgs, work: &Path, parts: &mut Vec<Part>) -> Result<Vec<Image>, BundleError> {
    let mut words = args.images.clone();
    if let Some(list) = &args.images_list {
        let text = fs::read_to_string(list).map_err(BundleError::read(list))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        words.extend(lines.map(str::to_owned));
    }
    let usual = || Layout::new(DEFAULT).run().containerd_socket();
    let socket = environment("CONTAINERD_ADDRESS").map_or_else(usual, PathBuf::from);
    let mut all: Vec<Image> = Vec::new();
    for word in words {
        let failed = |source| BundleError::Image { name: word.clone(), source };
        let (path, origin) = match images::is_file(&word) {
            true if !Path::new(&word).is_file() => return Err(failed(ImageError::NoFile)),
            true => (PathBuf::from(&word), Origin::File),
            false => (images::export(&word, args.arch, &socket, work).map_err(failed)?, Origin::Containerd),
        };
        let name = format!("images/{}", images::file_name(&path).map_err(failed)?);
        let contents = images::look(&path, args.arch).map_err(failed)?;
        if all.iter().any(|image| image.file == name) {
            return Err(BundleError::Twice { what: "an archive of images", name });
        }
        all.push(Image { file: name.clone(), references: contents.references, digest: contents.digest });
        parts.push(Part { name, path, origin, module: None, interpreter: None });
    }
    all.sort_by(|a, b| a.file.cmp(&b.file));
    Ok(all)
}
