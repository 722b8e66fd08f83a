//! Planted links, FIFOs and sizes against the door.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

fn at(path: &str) -> &Path {
    Path::new(path)
}

/// A folder `v` that somebody else can write, and a file beside it that is not theirs.
fn volume() -> (tempfile::TempDir, Dir) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("v")).unwrap();
    fs::write(dir.path().join("precious"), "secret").unwrap();
    let volume = Dir::open(&dir.path().join("v")).unwrap();
    (dir, volume)
}

#[test]
fn no_link_and_no_path_leads_out_of_the_folder() {
    let (dir, volume) = volume();
    symlink(dir.path(), dir.path().join("v/out")).unwrap();
    symlink(dir.path().join("precious"), dir.path().join("v/file")).unwrap();
    for path in ["out/precious", "file", "../precious", "/etc/passwd", "out/../precious"] {
        assert!(volume.read(at(path), 100).is_err(), "{path}");
        assert!(volume.chmod(at(path), 0o777).is_err(), "{path}");
        assert!(volume.create_new(at(path), 0o600).is_err(), "{path}");
    }
    assert!(volume.write(at("out/new"), b"x", 0o600).is_err());
    assert!(volume.make_dir(at("out/new"), 0o700).is_err());
    assert!(volume.rename(at("out/precious"), at("here")).is_err());
    assert!(volume.remove_file(at("out/precious")).is_err());
    assert!(volume.read_link(at("out")).is_err(), "an absolute target");
    assert!(volume.dir(at("out")).is_err());
    assert_eq!(fs::read_to_string(dir.path().join("precious")).unwrap(), "secret");
}

#[test]
fn a_link_is_replaced_and_removed_as_a_link() {
    let (dir, volume) = volume();
    symlink(dir.path().join("precious"), dir.path().join("v/file")).unwrap();
    volume.write(at("file"), b"new", 0o640).unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("precious")).unwrap(), "secret");
    assert_eq!(volume.read(at("file"), 3).unwrap(), b"new");
    assert_eq!(volume.meta(at("file")).unwrap().mode, 0o640);
    volume.symlink(at("sub"), at("..data")).unwrap();
    assert_eq!(volume.read_link(at("..data")).unwrap(), at("sub"));
    volume.remove_tree(OsStr::new("..data")).as_error().unwrap();
    assert_eq!(volume.entries(10).unwrap().len(), 1);
}

#[test]
fn a_file_costs_no_more_memory_than_was_asked_for() {
    let (dir, volume) = volume();
    // Sparse: it costs whoever made it nothing.
    fs::File::create(dir.path().join("v/huge")).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(volume.read(at("huge"), 4096).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    assert_eq!(volume.head(at("huge"), 4096).unwrap().len(), 4096);
    assert_eq!(volume.tail(at("huge"), 4096).unwrap().len(), 4096);
    fs::write(dir.path().join("v/small"), "abc").unwrap();
    assert_eq!(volume.tail(at("small"), 2).unwrap(), b"bc");
    assert_eq!(volume.read(at("small"), 3).unwrap(), b"abc");
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let (dir, volume) = volume();
    let fifo = dir.path().join("v/fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("v/socket")).unwrap();
    fs::create_dir(dir.path().join("v/sub")).unwrap();
    for path in ["fifo", "socket", "sub"] {
        assert!(volume.open_file(at(path)).is_err(), "{path}");
    }
}

// issue 12: a pod's device node was opened before it was looked at, and a watchdog that was opened resets the machine.
#[test]
fn what_is_no_regular_file_is_not_even_opened() {
    use rustix::fs::inotify;
    let (dir, volume) = volume();
    let fifo = dir.path().join("v/fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    fs::write(dir.path().join("v/file"), "abc").unwrap();
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watch, dir.path().join("v"), inotify::WatchFlags::OPEN).unwrap();
    let mut buffer = [std::mem::MaybeUninit::uninit(); 1024];
    let mut opened = inotify::Reader::new(&watch, &mut buffer);
    assert!(volume.open_file(at("fifo")).is_err());
    assert!(volume.open_for_appending(at("fifo")).is_err());
    assert!(matches!(opened.next(), Err(Errno::AGAIN)), "the FIFO was opened");
    assert!(volume.open_file(at("file")).is_ok() && volume.open_for_appending(at("file")).is_ok());
    assert!(opened.next().is_ok(), "a file is");
}

#[test]
fn modes_are_what_was_asked_for_past_the_umask() {
    let (dir, volume) = volume();
    volume.make_dir(at("a/b"), 0o2777).unwrap();
    for path in ["v/a", "v/a/b"] {
        assert_eq!(fs::metadata(dir.path().join(path)).unwrap().permissions().mode() & 0o7777, 0o2777, "{path}");
    }
    volume.make_dir(at("a"), 0o700).unwrap();
    assert_eq!(volume.meta(at("a")).unwrap().mode, 0o2777, "a folder that was there keeps its mode");
    volume.create_new(at("f"), 0o666).unwrap();
    assert_eq!(volume.meta(at("f")).unwrap().mode, 0o666);
    volume.chmod(at("f"), 0o400).unwrap();
    volume.chown(at("f"), None, None).unwrap();
    assert_eq!(volume.meta(at("f")).unwrap().mode, 0o400);
    assert_eq!(volume.entries(1).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
}

#[test]
fn links_are_followed_as_far_as_they_stay_below() {
    let top = tempfile::tempdir().unwrap();
    let root = top.path().join("log");
    fs::create_dir_all(root.join("pods/p")).unwrap();
    fs::create_dir(root.join("containers")).unwrap();
    fs::write(root.join("pods/p/0.log"), "x").unwrap();
    fs::write(top.path().join("secret"), "x").unwrap();
    let links = [
        ("containers/far", root.join("pods/p/0.log")),
        ("containers/near", PathBuf::from("../pods/./p/0.log")),
        ("containers/twice", PathBuf::from("near")),
        ("through", PathBuf::from("pods")),
        ("containers/up", PathBuf::from("../../secret")),
        ("containers/out", top.path().join("secret")),
        ("containers/sly", root.join("../secret")),
        ("containers/loop", PathBuf::from("loop")),
        ("containers/gone", PathBuf::from("../pods/q/0.log")),
    ];
    for (name, target) in &links {
        symlink(target, root.join(name)).unwrap();
    }
    let dir = Dir::open(&root).unwrap();
    let log = PathBuf::from("pods/p/0.log");
    for path in ["containers/far", "containers/near", "containers/twice", "through/p/0.log", "pods/p/0.log"] {
        assert_eq!(dir.follow(at(path)).unwrap(), log, "{path}");
    }
    for (path, kind) in [
        ("containers/up", io::ErrorKind::InvalidData),
        ("containers/out", io::ErrorKind::InvalidData),
        ("containers/sly", io::ErrorKind::InvalidData),
        ("containers/loop", io::ErrorKind::InvalidData),
        ("containers/gone", io::ErrorKind::NotFound),
    ] {
        assert_eq!(dir.follow(at(path)).unwrap_err().kind(), kind, "{path}");
    }
    assert_eq!(dir.follow(at("")).unwrap(), PathBuf::new());
    assert!(dir.follow(at("../secret")).is_err());
}

// security.md L8: whoever knows the name that comes next plants a link there.
#[test]
fn a_temporary_file_is_never_what_somebody_planted_under_its_name() {
    let (dir, volume) = volume();
    let (precious, v) = (dir.path().join("precious"), dir.path().join("v"));
    fs::set_permissions(&precious, fs::Permissions::from_mode(0o644)).unwrap();
    let number = |tmp: &Path| tmp.to_str().unwrap().split('.').rev().nth(1).unwrap().parse::<u64>().unwrap();
    let plants: [&dyn Fn(&Path) -> io::Result<()>; 3] =
        [&|name| symlink(&precious, name), &|name| symlink(dir.path().join("new"), name), &|name| {
            fs::hard_link(&precious, name)
        }];
    for (i, plant) in plants.iter().enumerate() {
        let name = format!("f{i}");
        let (first, _file) = volume.create_temporary(OsStr::new(&name), 0o600).unwrap();
        // Other tests of this process count on, too.
        let planted = number(&first) + 1..number(&first) + 500;
        for next in planted.clone() {
            plant(&v.join(format!(".{name}.{}.{next}.tmp", std::process::id()))).unwrap();
        }
        let (tmp, mut file) = volume.create_temporary(OsStr::new(&name), 0o600).unwrap();
        assert!(planted.contains(&number(&tmp)), "{} was not planted", tmp.display());
        file.write_all(b"ours").unwrap();
        assert!(volume.meta(&tmp).unwrap().is_file());
        assert_eq!(fs::metadata(&precious).unwrap().permissions().mode() & 0o777, 0o644, "plant {i}");
        volume.write(at(&name), b"whole", 0o600).unwrap();
        assert_eq!(volume.read(at(&name), 10).unwrap(), b"whole");
        assert_eq!(fs::read_to_string(&precious).unwrap(), "secret", "plant {i}");
        assert!(!dir.path().join("new").exists());
    }
    // The folder is the one that was opened, whatever has its name now.
    fs::rename(&v, dir.path().join("w")).unwrap();
    symlink(dir.path(), &v).unwrap();
    let (tmp, _file) = volume.create_temporary(OsStr::new("g"), 0o600).unwrap();
    assert!(dir.path().join("w").join(&tmp).exists() && !dir.path().join(&tmp).exists());
}
