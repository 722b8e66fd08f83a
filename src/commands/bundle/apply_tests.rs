//! Bundles put in force: whole or not at all, and nothing that the enemy made.

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;

use super::super::images;
use super::super::keys::{PublicKey, SigningKey, generate};
use super::super::manifest::{Image, Origin};
use super::super::pack::{self, Inputs};
use super::super::parts::Part;
use super::*;

/// A folder with the parts of bundles and a data folder.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Machine {
        Machine(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn layout(&self) -> Layout {
        Layout::new(self.path("data"))
    }

    /// A bundle whose runc is this text.
    fn bundle(&self, version: &str, runc: &str) -> PathBuf {
        self.signed(version, runc, None)
    }

    fn signed(&self, version: &str, runc: &str, sign: Option<&SigningKey>) -> PathBuf {
        self.made(Arch::own().unwrap(), version, runc, sign)
    }

    fn made(&self, arch: Arch, version: &str, runc: &str, sign: Option<&SigningKey>) -> PathBuf {
        let (runc_at, image_at) = (self.path("runc"), self.path("i.tar"));
        fs::write(&runc_at, runc).unwrap();
        images::tests::archive(&image_at, &[("manifest.json", "[]")]);
        let part = |name: &str, path: PathBuf| Part {
            name: name.to_owned(),
            path,
            origin: Origin::File,
            module: None,
            interpreter: None,
        };
        let image =
            Image { file: "images/i.tar".to_owned(), references: vec!["i:1".to_owned()], digest: String::new() };
        let inputs = Inputs {
            arch,
            version: version.to_owned(),
            program: &mut &b"\x7fELF of kedge"[..],
            parts: vec![part("images/i.tar", image_at), part("bin/runc", runc_at)],
            images: vec![image],
            notes: Vec::new(),
        };
        let output = self.path(&format!("{version}-{}.bundle", runc.len()));
        pack::write(inputs, &output, sign).unwrap();
        output
    }

    fn apply(&self, path: &Path) -> Result<Done, BundleError> {
        let bundle = Opened::open(path)?;
        bundle.check(&mut |_| {})?;
        apply(&bundle, &self.layout(), &mut |_| {})
    }

    fn runc(&self) -> Option<String> {
        fs::read_to_string(self.path("data/bundle/current/bin/runc")).ok()
    }

    fn folders(&self) -> BTreeSet<String> {
        let names = fs::read_dir(self.path("data/bundle")).into_iter().flatten().flatten();
        names
            .map(|entry| entry.file_name().into_string().unwrap())
            .filter(|name| name.len() > 60 || name.starts_with('.'))
            .collect()
    }
}

fn text(err: &BundleError) -> String {
    base::chain::Chain(err).to_string()
}

#[test]
fn a_bundle_is_put_in_force_once_and_the_one_before_stays() {
    let machine = Machine::new();
    let (one, two, three) =
        (machine.bundle("0.1.0", "one"), machine.bundle("0.2.0", "second"), machine.bundle("0.3.0", "the third"));
    assert_eq!(machine.apply(&one).unwrap(), Done { is_first: true, ..Done::default() });
    assert_eq!(machine.runc().as_deref(), Some("one"));
    assert_eq!(fs::read(machine.path("data/bundle/current/bin/kedge")).unwrap(), b"\x7fELF of kedge");
    let mode = fs::metadata(machine.path("data/bundle/current/bin/runc")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
    let before = fs::metadata(machine.path("data/bundle/current/bin/runc")).unwrap().ino();
    assert!(machine.apply(&one).unwrap().was_there);
    assert_eq!(fs::metadata(machine.path("data/bundle/current/bin/runc")).unwrap().ino(), before);
    // The node imports what is in its folder of images.
    let image = machine.path("data/agent/images/bundle-i.tar");
    assert!(fs::metadata(&image).unwrap().is_file());
    let linked = fs::read_link(&image).unwrap();
    machine.apply(&two).unwrap();
    assert_ne!(fs::read_link(&image).unwrap(), linked);
    let gone = machine.apply(&three).unwrap().removed;
    assert_eq!((gone.len(), machine.folders().len()), (1, 2));
    assert_eq!(rollback(&machine.layout()).unwrap().version, "0.2.0");
    assert_eq!(machine.runc().as_deref(), Some("second"));
    assert_eq!(rollback(&machine.layout()).unwrap().version, "0.3.0");
    assert_eq!(machine.apply(&one).unwrap().newer_before.as_deref(), Some("0.3.0"));
}

#[test]
fn the_same_inputs_give_the_same_bytes() {
    let (one, other) = (Machine::new(), Machine::new());
    let bytes = |machine: &Machine| fs::read(machine.bundle("0.1.0", "one")).unwrap();
    assert_eq!(bytes(&one), bytes(&other));
}

#[test]
fn a_bundle_that_was_cut_or_changed_anywhere_changes_nothing() {
    let machine = Machine::new();
    machine.apply(&machine.bundle("0.1.0", "one")).unwrap();
    let (folders, other) = (machine.folders(), machine.bundle("0.2.0", "second"));
    let bytes = fs::read(&other).unwrap();
    let bad = machine.path("bad.bundle");
    let refused = |bytes: &[u8], what: &str, at: usize| {
        fs::write(&bad, bytes).unwrap();
        assert!(machine.apply(&bad).is_err(), "{what} at {at}");
    };
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        refused(&changed, "changed", at);
    }
    for n in (0..bytes.len()).step_by(64) {
        refused(&bytes[..n], "cut", n);
    }
    refused(&[bytes.as_slice(), b"\n"].concat(), "longer", bytes.len());
    assert_eq!((machine.runc().as_deref(), machine.folders()), (Some("one"), folders));
}

#[test]
fn a_key_vouches_for_its_own_bundles_alone() {
    let machine = Machine::new();
    let key = |name: &str| {
        let (_, public) = generate(&machine.path(name)).unwrap();
        (SigningKey::read(&machine.path(name)).unwrap(), PublicKey::read(&public).unwrap())
    };
    let ((one, public), (_, other)) = (key("one"), key("other"));
    let signed = machine.signed("0.1.0", "one", Some(&one));
    let vouched = |path: &Path, key| Opened::open(path).unwrap().vouched(key).map_err(|err| text(&err));
    assert!(format!("{:?}", vouched(&signed, Some(&public)).unwrap()).starts_with("By"));
    assert!(format!("{:?}", vouched(&signed, None).unwrap()).starts_with("Nobody(Some"));
    assert!(vouched(&signed, Some(&other)).unwrap_err().contains("is signed by the key"));
    let plain = machine.bundle("0.1.0", "plain");
    assert!(vouched(&plain, Some(&public)).unwrap_err().contains("bears no signature"));
    // The signature of one bundle under the manifest of another, with a trailer that fits.
    let (a, b) = (Opened::open(&signed).unwrap(), fs::read(&plain).unwrap());
    let at = b.len() - 129;
    let line = String::from_utf8(b[at..].to_vec()).unwrap();
    let words: Vec<&str> = line.trim_end().split(' ').collect();
    let (program, manifest): (usize, usize) = (words[1].parse().unwrap(), words[2].parse().unwrap());
    let (head, archive) = b[..at].split_at(program + manifest);
    let sum = super::super::trailer::sum_of(&[&head[program..], &a.signature]);
    let trailer = format!("{} {} {} {:05} {} {sum}\n", words[0], words[1], words[2], a.signature.len(), words[4]);
    let forged = machine.path("forged.bundle");
    fs::write(&forged, [head, &a.signature, archive, trailer.as_bytes()].concat()).unwrap();
    assert!(vouched(&forged, Some(&public)).unwrap_err().contains("another bundle's"));
}

#[test]
fn another_machines_bundle_and_a_folder_of_others_are_refused() {
    let machine = Machine::new();
    let other = if Arch::own() == Some(Arch::Arm64) { Arch::Amd64 } else { Arch::Arm64 };
    let refused = machine.apply(&machine.made(other, "0.1.0", "one", None)).unwrap_err();
    assert!(text(&refused).contains("and this machine is"), "{refused}");
    let one = machine.bundle("0.1.0", "one");
    fs::create_dir_all(machine.path("data/bundle")).unwrap();
    fs::set_permissions(machine.path("data/bundle"), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(text(&machine.apply(&one).unwrap_err()).contains("can be written by others"));
    fs::remove_dir(machine.path("data/bundle")).unwrap();
    fs::create_dir(machine.path("elsewhere")).unwrap();
    symlink(machine.path("elsewhere"), machine.path("data/bundle")).unwrap();
    assert!(machine.apply(&one).is_err());
    assert_eq!(fs::read_dir(machine.path("elsewhere")).unwrap().count(), 0);
    fs::remove_file(machine.path("data/bundle")).unwrap();
    if rustix::process::geteuid().is_root() {
        fs::create_dir(machine.path("data/bundle")).unwrap();
        std::os::unix::fs::chown(machine.path("data/bundle"), Some(4242), None).unwrap();
        assert!(text(&machine.apply(&one).unwrap_err()).contains("belongs to the user 4242"));
    }
    assert!(text(&machine.apply(Path::new("/dev/null")).unwrap_err()).contains("no regular file"));
}

#[test]
fn what_a_power_cut_left_goes_and_a_damaged_bundle_is_mended() {
    let machine = Machine::new();
    let one = machine.bundle("0.1.0", "one");
    // Whatever step was the last: folders and links that are not whole yet have no name that counts.
    let folder = machine.path("data/bundle");
    fs::create_dir_all(folder.join(".new-77/bin")).unwrap();
    fs::write(folder.join(".new-77/bin/runc"), "half").unwrap();
    symlink("nowhere", folder.join(".new-current")).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    machine.apply(&one).unwrap();
    assert_eq!(machine.folders().len(), 1);
    // The link was not switched yet: the folder that is whole is taken as it is.
    fs::remove_file(folder.join("current")).unwrap();
    assert!(!machine.apply(&one).unwrap().was_there);
    for name in ["bin/runc", "bin/kedge", "manifest.json", "images/i.tar"] {
        fs::write(folder.join("current").join(name), "damaged").unwrap();
        let bundles = Bundles::open(&machine.layout()).unwrap().unwrap();
        assert!(bundles.intact(&bundles.current().unwrap()).is_err(), "{name}");
        drop(bundles);
        machine.apply(&one).unwrap();
        assert_eq!((machine.runc().as_deref(), machine.folders().len()), (Some("one"), 1), "{name}");
    }
}

#[test]
fn an_old_bundle_stays_while_a_program_of_it_runs() {
    let machine = Machine::new();
    for (version, text) in [("0.1.0", "one"), ("0.2.0", "second")] {
        machine.apply(&machine.bundle(version, text)).unwrap();
    }
    let old = fs::read_link(machine.path("data/bundle/previous")).unwrap();
    let sleeper = machine.path("data/bundle").join(&old).join("bin/sleeper");
    fs::copy(if Path::new("/bin/sleep").exists() { "/bin/sleep" } else { "/usr/bin/sleep" }, &sleeper).unwrap();
    let mut runs = std::process::Command::new(&sleeper).arg("600").spawn().unwrap();
    let done = machine.apply(&machine.bundle("0.3.0", "the third")).unwrap();
    assert_eq!((done.still_run, done.removed.len()), (vec![old.display().to_string()], 0));
    runs.kill().unwrap();
    runs.wait().unwrap();
    let done = machine.apply(&machine.bundle("0.3.0", "the third")).unwrap();
    assert_eq!((done.was_there, done.removed), (true, vec![old.display().to_string()]));
}

#[test]
fn two_commands_do_not_work_in_one_folder() {
    let machine = Machine::new();
    let one = machine.bundle("0.1.0", "one");
    machine.apply(&one).unwrap();
    let held = Bundles::open(&machine.layout()).unwrap();
    assert!(text(&machine.apply(&one).unwrap_err()).contains("wait for it"));
    drop(held);
    machine.apply(&one).unwrap();
    assert!(text(&rollback(&machine.layout()).unwrap_err()).contains("no bundle"));
}

#[test]
fn a_disk_that_fills_up_meanwhile_leaves_what_was_in_force() {
    let name = "commands::bundle::apply::tests::a_disk_that_fills_up_meanwhile_leaves_what_was_in_force";
    if !base::unshared::in_own_namespace(name, &[]).unwrap() {
        return;
    }
    // The data folder is a file system of its own, too.
    let machine = Machine::new();
    let data = machine.path("data");
    fs::create_dir(&data).unwrap();
    let mount = |size: &str| {
        let mut command = std::process::Command::new("mount");
        assert!(command.args(["-t", "tmpfs", "-o", size, "none"]).arg(&data).status().unwrap().success());
    };
    mount("mode=755,size=32m");
    assert!(text(&machine.apply(&machine.bundle("0.1.0", "one")).unwrap_err()).contains("MiB free"));
    mount("mode=755,size=80m");
    machine.apply(&machine.bundle("0.1.0", "one")).unwrap();
    let (folders, next) = (machine.folders(), Opened::open(&machine.bundle("0.2.0", &"x".repeat(4 << 20))).unwrap());
    let mut fill = |_| {
        let mut filler = fs::OpenOptions::new().create(true).append(true).open(data.join("filler")).unwrap();
        while filler.write_all(&[1; 64 * 1024]).is_ok() {}
    };
    let full = apply(&next, &machine.layout(), &mut fill).unwrap_err();
    assert!(matches!(&full, BundleError::Write { source, .. } if source.raw_os_error() == Some(28)), "{}", text(&full));
    assert_eq!((machine.runc().as_deref(), machine.folders()), (Some("one"), folders));
    fs::remove_file(data.join("filler")).unwrap();
    apply(&next, &machine.layout(), &mut |_| {}).unwrap();
    assert_eq!(machine.runc().map(|runc| runc.len()), Some(4 << 20));
}
