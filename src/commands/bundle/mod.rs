//! `kedge bundle`: one file with kedge, its runtime and images for a machine that has nothing, and putting it in force.

mod applied;
mod apply;
mod archive;
mod build;
mod elf;
pub(crate) mod error;
mod images;
mod keys;
mod manifest;
mod opened;
mod pack;
mod parts;
mod progress;
mod source;
mod trailer;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use self::applied::Bundles;
use self::apply::Done;
use self::build::BuildArgs;
use self::error::BundleError;
use self::keys::PublicKey;
use self::manifest::Manifest;
use self::opened::{Opened, Vouched};
use self::progress::Progress;
use crate::flags::shared::StateArgs;

/// Characters of a bundle's name that people are shown.
const SHORT: usize = 12;

/// Flags of `kedge bundle`.
#[derive(Clone, Debug, Args)]
pub(crate) struct BundleArgs {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    state: StateArgs,
}

#[derive(Clone, Debug, Args)]
struct FileArgs {
    /// The bundle (default: the one at whose head this kedge is).
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Public key of the one who must have signed it: minisign's, or PEM.
    #[arg(short, long, value_name = "FILE")]
    key: Option<PathBuf>,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// Make a bundle: kedge, containerd, runc, kubectl and images in one file that is kedge itself at its head.
    Build(Box<BuildArgs>),
    /// Check a bundle: every sum of it and, with --key, who signed it. Nothing is written.
    Verify(FileArgs),
    /// Check a bundle, unpack it into the data folder and put it in force. The one before is kept.
    Apply(FileArgs),
    /// List the bundles that are unpacked on this machine.
    #[command(visible_alias = "ls")]
    List {
        /// How to print them.
        #[arg(short, long, default_value = "text")]
        output: Form,
    },
    /// Put the bundle before the current one in force again.
    Rollback,
    /// Sign any file, as the sums of a release: FILE.minisig, which minisign checks.
    Sign {
        /// The file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Private key to sign it with.
        #[arg(long, value_name = "KEY")]
        sign: PathBuf,
    },
    /// Make a pair of keys to sign bundles with: FILE and FILE.pub.
    Keygen {
        /// The private key; it must not be there yet.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    Text,
    Json,
}

/// Runs the command and prints what it did.
pub(crate) fn main(args: &BundleArgs) -> Result<(), BundleError> {
    let layout = &args.state.layout;
    match &args.action {
        Action::Build(args) => build::main(args),
        Action::Verify(args) => {
            let (bundle, vouched) = checked(args)?;
            println!("{} is whole: {}.", bundle.path().display(), described(&bundle.manifest, &bundle.digest()));
            print_about(&bundle.manifest, &vouched);
            Ok(())
        }
        Action::Apply(args) => {
            let (bundle, vouched) = checked(args)?;
            let mut progress = Progress::new("unpacking", bundle.steps() - bundle.manifest.archive.size);
            let done = apply::apply(&bundle, layout, &mut |n| progress.step(n))?;
            drop(progress);
            print_done(&done, &bundle, &layout.bundle());
            print_about(&bundle.manifest, &vouched);
            Ok(())
        }
        Action::List { output } => list(Bundles::open(layout)?.as_ref(), *output),
        Action::Rollback => {
            let manifest = apply::rollback(layout)?;
            println!("kedge {} for {} is in force again. {RESTART}", manifest.version, manifest.arch);
            Ok(())
        }
        Action::Sign { file, sign } => {
            let signature = keys::sign_file(file, sign)?;
            println!("{} is signed: {}.", file.display(), signature.display());
            Ok(())
        }
        Action::Keygen { file } => {
            let (id, public) = keys::generate(file)?;
            println!("The key {id} is made: sign with {}, give {} away.", file.display(), public.display());
            Ok(())
        }
    }
}

/// Opens a bundle and checks all of it.
fn checked(args: &FileArgs) -> Result<(Opened, Vouched), BundleError> {
    let key = args.key.as_deref().map(PublicKey::read).transpose()?;
    let bundle = match &args.file {
        Some(file) => Opened::open(file)?,
        None => Opened::own()?.ok_or(BundleError::NoBundle)?,
    };
    // Before anything is unpacked, be it in memory only.
    let vouched = bundle.vouched(key.as_ref())?;
    let mut progress = Progress::new("checking", bundle.steps());
    bundle.check(&mut |n| progress.step(n))?;
    Ok((bundle, vouched))
}

/// The user's next step when other programs are in force than those that run.
const RESTART: &str = "Programs that run go on; 'systemctl restart kedge' takes the new ones, pods go on meanwhile.";

fn described(manifest: &Manifest, digest: &str) -> String {
    let Manifest { version, arch, files, images, .. } = manifest;
    let n_programs = files.iter().filter(|file| file.name.starts_with("bin/")).count() + 1;
    let n_images: usize = images.iter().map(|image| image.references.len()).sum();
    let short = digest.get(..SHORT).unwrap_or(digest);
    format!("kedge {version} for {arch}, {n_programs} programs, {n_images} images ({short})")
}

fn print_done(done: &Done, bundle: &Opened, folder: &Path) {
    let what = described(&bundle.manifest, &bundle.digest());
    let current = folder.join("current");
    if done.was_there {
        println!("{what} was in force already in {}.", current.display());
    } else {
        let restart = if done.is_first { "" } else { RESTART };
        println!("{what} is in force in {}. {restart}", current.display());
    }
    if let Some(newer) = &done.newer_before {
        eprintln!("warning: this is a downgrade: kedge {newer} was in force. 'kedge bundle rollback' goes back.");
    }
    for digest in &done.still_run {
        println!("An older bundle is kept while programs of it run: {digest}.");
    }
    for digest in &done.removed {
        println!("An older bundle was removed: {digest}.");
    }
}

/// Prints who vouches for a bundle, and what it says against itself.
fn print_about(manifest: &Manifest, vouched: &Vouched) {
    match vouched {
        Vouched::By(key, comment) => println!("Signed by the key {key}: {comment}."),
        Vouched::Nobody(None) => println!("Nobody vouches for it: it is not signed, and only its sums were compared."),
        Vouched::Nobody(Some(key)) => println!(
            "Nobody vouches for it: only its sums were compared. It says that the key {key} signed it; --key checks \
             that."
        ),
    }
    for note in &manifest.notes {
        println!("Note: {note}");
    }
}

fn list(bundles: Option<&Bundles>, output: Form) -> Result<(), BundleError> {
    let running = applied::running();
    let mut rows = Vec::new();
    for listed in bundles.map(Bundles::all).transpose()?.into_iter().flatten() {
        let is = |link: Option<String>| link.as_ref() == Some(&listed.digest);
        let state = match bundles {
            Some(bundles) if is(bundles.current()) => "current",
            Some(bundles) if is(bundles.previous()) => "previous",
            _ => "old",
        };
        let runs = bundles.is_some_and(|bundles| bundles.runs(&listed.digest, &running));
        rows.push(json!({
            "digest": listed.digest, "state": state, "running": runs, "signed": listed.signed,
            "version": listed.manifest.version, "arch": listed.manifest.arch, "files": listed.manifest.files,
            "images": listed.manifest.images,
        }));
    }
    if let Form::Json = output {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!("{:<12} {:<10} {:<8} {:<9} {:<7} {:<6} IMAGES", "BUNDLE", "VERSION", "ARCH", "STATE", "RUNNING", "SIGNED");
    let yes = |value: &serde_json::Value| if value.as_bool() == Some(true) { "yes" } else { "no" };
    for row in &rows {
        let text = |field: &str| row[field].as_str().unwrap_or_default();
        println!(
            "{:<12} {:<10} {:<8} {:<9} {:<7} {:<6} {}",
            text("digest").get(..SHORT).unwrap_or_default(),
            text("version"),
            text("arch"),
            text("state"),
            yes(&row["running"]),
            yes(&row["signed"]),
            row["images"].as_array().map_or(0, Vec::len)
        );
    }
    Ok(())
}
