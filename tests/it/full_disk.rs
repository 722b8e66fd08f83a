//! A disk that fills up under a running server: it says so, keeps what it has, and goes on by itself when there is
//! room.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::{Place, SETTLE_LIMIT, Said, Server, run_with, wait_for};

/// Bytes of the small disk: the store reserves 16 MiB of it.
const DISK: &str = "size=96m";

/// A small disk of its own; it goes with the test.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> SmallDisk {
        fs::create_dir_all(at).unwrap();
        nix::mount::mount(Some("small"), at, Some("tmpfs"), nix::mount::MsFlags::empty(), Some(DISK)).unwrap();
        SmallDisk(at.to_owned())
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        let filler = self.0.join("filler");
        let said =
            run_with(Command::new("dd").args(["if=/dev/zero", "bs=64k"]).arg(format!("of={}", filler.display())), "");
        assert!(said.err.contains("No space left"), "{said:?}");
    }

    fn free(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a server that is being killed may still have files open.
        let _unmounted = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

fn alarms(place: &Place) -> String {
    let socket = place.data_dir().join("server/db/etcd.sock");
    let mut etcdctl = Command::new("etcdctl");
    etcdctl.env("ETCDCTL_API", "3").arg(format!("--endpoints=unix://{}", socket.display())).args(["alarm", "list"]);
    let said: Said = run_with(&mut etcdctl, "");
    assert_eq!(said.code, 0, "{said:?}");
    said.out
}

#[test]
fn a_full_disk_is_told_and_the_server_goes_on_when_there_is_room() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root mounts a small disk");
        return;
    }
    let place = Place::new(&["--disable=coredns"]);
    let data = place.data_dir();
    let disk = SmallDisk::mount(&data);
    let mut server = Server::start_in(place);
    // Controllers and leases are refused, too, as long as it lasts.
    server.announce("");
    let create = |name: &str| server.said(&["create", "configmap", name, "--from-literal=a=b"]);
    let mut kept = Vec::new();
    for n in 0..20 {
        assert_eq!(create(&format!("before-{n}")).code, 0);
        kept.push(format!("configmap/before-{n}"));
    }
    disk.fill();
    let mut n = 0;
    let refusal = wait_for("a write to be refused", SETTLE_LIMIT, || {
        n += 1;
        let name = format!("full-{n}");
        let said = create(&name);
        if said.code != 0 {
            return Ok(said.err);
        }
        kept.push(format!("configmap/{name}"));
        Err("it was taken".to_owned())
    });
    assert!(refusal.contains("no space left on the device that holds"), "a refusal that says why: {refusal}");
    // The alarm, for whoever watches machines, and a line for whoever reads logs.
    wait_for("the alarm", SETTLE_LIMIT, || {
        if alarms(&server.place).contains("NOSPACE") { Ok(()) } else { Err("none".to_owned()) }
    });
    let log = fs::read_to_string(server.place.path("log")).unwrap();
    assert!(log.contains("alarm NOSPACE: new values are refused until there is room"), "{log}");
    // Reading goes on.
    assert!(server.ok(&["get", "configmap", "before-0", "-o", "name"]).contains("before-0"));
    disk.free();
    wait_for("a write to be taken again", SETTLE_LIMIT, || {
        let said = create("after");
        if said.code == 0 || said.err.contains("AlreadyExists") { Ok(()) } else { Err(said.err) }
    });
    kept.push("configmap/after".to_owned());
    wait_for("the alarm to end", SETTLE_LIMIT, || {
        if alarms(&server.place).contains("NOSPACE") { Err("it stays".to_owned()) } else { Ok(()) }
    });
    // What was acknowledged is there, also for the next process.
    let all = |server: &Server| server.ok(&["get", "configmaps", "-o", "name"]);
    let place = {
        let now = all(&server);
        assert!(kept.iter().all(|name| now.lines().any(|line| line == name)), "{now}");
        server.kill_only()
    };
    let server = Server::start_in(place);
    let now = all(&server);
    assert!(kept.iter().all(|name| now.lines().any(|line| line == name)), "{now}");
    drop(server);
    drop(disk);
}
