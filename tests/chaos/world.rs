//! Three servers, three agents, a Deployment on them, and what is asked of all of it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::history::Clients;
use crate::hosts::{Host, Said, kill_hard, kubectl, make_lan, pid_of, run, wait_for, wake};
use crate::hung::Afar;

/// Building and emptying, on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);
/// Acknowledged operations through each server after a fault, as a sign that it works.
const OPERATIONS: usize = 4;
/// A role may hold so many descriptors more than at the beginning.
const SLACK_FDS: usize = 64;
/// Beside a file system that hangs, a pod comes and goes in so much time each.
const HANG_LIMIT: Duration = Duration::from_secs(60);
/// A server's disk.
const DISK: &str = "size=192m";

/// A machine with a role that ends and starts again.
pub(crate) struct Machine {
    host: Host,
    ip: String,
    role: &'static str,
    args: Vec<String>,
    process: Option<Child>,
    starts: usize,
    /// An agent's network file system.
    afar: Option<Afar>,
}

impl Machine {
    fn new(name: &'static str, number: u8, role: &'static str, place: &Path, program: &Path) -> Machine {
        let host = Host::new(name, number, place, program);
        Machine { host, ip: format!("10.210.0.{number}"), role, args: Vec::new(), process: None, starts: 0, afar: None }
    }

    fn start(&mut self) {
        self.starts += 1;
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        self.process = Some(self.host.start(self.role, &args, &format!("log{}", self.starts)));
    }

    fn log(&self) -> String {
        let log = self.host.log(&format!("log{}", self.starts));
        let lines: Vec<&str> = log.lines().collect();
        format!("{}, start {}:\n{}", self.host.name, self.starts, lines[lines.len().saturating_sub(25)..].join("\n"))
    }

    /// The role's own process, seen from outside.
    fn pid(&self) -> String {
        pid_of(self.process.as_ref().unwrap())
    }

    pub(crate) fn kill(&mut self) {
        kill_hard(self.process.take().unwrap());
    }

    pub(crate) fn pause(&mut self) {
        assert!(run(Command::new("kill").args(["-STOP", &self.pid()])).ok);
    }

    pub(crate) fn go_on(&mut self) {
        assert!(run(Command::new("kill").args(["-CONT", &self.pid()])).ok);
        wake(self.process.as_ref().unwrap());
    }

    /// The cable is pulled.
    pub(crate) fn cut(&mut self) {
        assert!(run(Command::new("ip").args(["link", "set", &format!("to-{}", self.host.name), "down"])).ok);
    }

    pub(crate) fn mend(&mut self) {
        assert!(run(Command::new("ip").args(["link", "set", &format!("to-{}", self.host.name), "up"])).ok);
    }

    pub(crate) fn fill_disk(&mut self) {
        let file = self.host.data_dir().join("filler");
        // It ends when nothing is left.
        let said = self.host.said("dd", &["if=/dev/zero", &format!("of={}", file.display()), "bs=64k"]);
        assert!(said.text.contains("No space left"), "{}", said.text);
    }

    pub(crate) fn free_disk(&mut self) {
        self.host.must("rm", &[self.host.data_dir().join("filler").to_str().unwrap()]);
    }

    pub(crate) fn lose_address(&mut self) {
        self.host.must("ip", &["address", "del", &format!("{}/24", self.ip), "dev", "eth0"]);
    }

    pub(crate) fn take_address(&mut self) {
        self.host.must("ip", &["address", "add", &format!("{}/24", self.ip), "dev", "eth0"]);
        self.host.must("ip", &["route", "replace", "default", "via", "10.210.0.1"]);
    }

    /// In its namespace of processes there is one; an agent that came again has adopted it, so it is not always the
    /// agent's child.
    pub(crate) fn kill_containerd(&mut self) {
        self.host.must("pkill", &["-KILL", "-x", "containerd"]);
    }

    pub(crate) fn flush_rules(&mut self) {
        self.host.must("nft", &["flush", "ruleset"]);
    }

    pub(crate) fn hang_afar(&mut self) {
        self.afar.as_mut().unwrap().hang();
    }

    pub(crate) fn answer_afar(&mut self) {
        self.afar.as_mut().unwrap().answer();
    }
}

/// How much of the machine is used: links and mounts in all, cgroups of pods that are gone; descriptors and memory
/// (KiB) by role.
#[derive(Debug)]
pub(crate) struct Footprint {
    links: usize,
    mounts: usize,
    cgroups: usize,
    roles: Vec<(usize, usize)>,
}

/// The cluster.
pub(crate) struct World {
    pub(crate) servers: Vec<Machine>,
    pub(crate) agents: Vec<Machine>,
    service: String,
    /// Every pod that was seen, by its uid: the hierarchy of cgroups is the whole machine's, so they are told apart by
    /// name.
    uids: BTreeSet<String>,
}

/// A pod of one node, NAME on NODE. What it reads comes from afar: PATH, as a folder of the host and as a local volume.
const READER: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"NAME"},
 "spec":{"nodeName":"NODE","terminationGracePeriodSeconds":0,
 "containers":[{"name":"c","image":"kedge.local/busybox:1","imagePullPolicy":"Never",
 "command":["sh","-c","while :; do cat /afar/page /claim/page; sleep 1; done"],
 "volumeMounts":[{"name":"afar","mountPath":"/afar"},{"name":"claim","mountPath":"/claim"}]}],
 "volumes":[{"name":"afar","hostPath":{"path":"PATH","type":"Directory"}},{"name":"claim","persistentVolumeClaim":{"claimName":"afar-NODE"}}]}}
"#;

const VOLUME: &str = r#"{"apiVersion":"v1","kind":"List","items":[
 {"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"afar-NODE"},"spec":{"capacity":{"storage":"1Mi"},"accessModes":["ReadWriteMany"],
 "persistentVolumeReclaimPolicy":"Retain","claimRef":{"namespace":"default","name":"afar-NODE"},"local":{"path":"PATH"},
 "nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"kubernetes.io/hostname","operator":"In","values":["NODE"]}]}]}}}},
 {"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"afar-NODE"},"spec":{"volumeName":"afar-NODE","storageClassName":"",
 "accessModes":["ReadWriteMany"],"resources":{"requests":{"storage":"1Mi"}}}}]}
"#;

/// A pod that has nothing to do with it.
const BESIDE: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"beside"},
 "spec":{"nodeName":"NODE","terminationGracePeriodSeconds":0,
 "containers":[{"name":"c","image":"kedge.local/busybox:1","imagePullPolicy":"Never","command":["sleep","100000"],
 "volumeMounts":[{"name":"v","mountPath":"/v"}]}],"volumes":[{"name":"v","emptyDir":{}}]}}
"#;

const WEB: &str = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"replicas":3,
 "selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{"terminationGracePeriodSeconds":0,
 "topologySpreadConstraints":[{"maxSkew":1,"topologyKey":"kubernetes.io/hostname","whenUnsatisfiable":"ScheduleAnyway","labelSelector":{"matchLabels":{"app":"web"}}}],
 "containers":[{"name":"c","image":"kedge.local/busybox:1","imagePullPolicy":"Never",
 "command":["sh","-c","mkdir /www; echo page >/www/index.html; exec httpd -f -p 80 -h /www"],
 "readinessProbe":{"tcpSocket":{"port":80},"periodSeconds":1}}]}}}}
"#;

impl World {
    /// Starts all of it and waits until the Deployment is available.
    pub(crate) fn build(place: &Path, program: &Path) -> World {
        make_lan();
        let machine = |name, number, role| Machine::new(name, number, role, place, program);
        let servers = vec![machine("s1", 10, "server"), machine("s2", 20, "server"), machine("s3", 30, "server")];
        let agents = vec![machine("a1", 40, "agent"), machine("a2", 50, "agent"), machine("a3", 60, "agent")];
        let mut world = World { servers, agents, service: String::new(), uids: BTreeSet::new() };
        world.start_servers();
        world.start_agents();
        let manifest = world.servers[0].host.dir.join("web.json");
        std::fs::write(&manifest, WEB).unwrap();
        world.must(&["apply", "-f", manifest.to_str().unwrap()]);
        world.must(&["expose", "deployment", "web", "--port=80"]);
        world.service = world.must(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
        world.until("the Deployment", &["rollout", "status", "deployment/web", "--timeout=20s"], |_| true);
        world.look_afar();
        world
    }

    /// Each agent gets a network file system, and a pod that reads from it.
    fn look_afar(&mut self) {
        for n in 0..self.agents.len() {
            self.agents[n].afar = Some(Afar::mount_on(&self.agents[n].host));
            self.apply(n, VOLUME, "");
            self.apply(n, READER, &format!("reader-{}", self.agents[n].host.name));
            self.runs(&format!("reader-{}", self.agents[n].host.name), LIMIT);
        }
    }

    /// Applies a template for an agent.
    fn apply(&self, n: usize, template: &str, name: &str) {
        let agent = &self.agents[n];
        let path = agent.afar.as_ref().map(|afar| afar.path.display().to_string()).unwrap_or_default();
        let text = template.replace("NODE", agent.host.name).replace("NAME", name).replace("PATH", &path);
        let manifest = self.servers[0].host.dir.join("manifest.json");
        std::fs::write(&manifest, text).unwrap();
        self.must(&["apply", "-f", manifest.to_str().unwrap()]);
    }

    fn runs(&self, pod: &str, limit: Duration) {
        wait_for(&format!("pod {pod}"), limit, || {
            let said = self.kubectl(&["get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].ready}"]);
            if said.text == "true" { Ok(()) } else { Err(format!("{}\n{}", said.text, self.logs())) }
        });
    }

    fn is_gone(&self, pod: &str, limit: Duration) {
        wait_for(&format!("the end of pod {pod}"), limit, || {
            let said = self.kubectl(&["get", "pod", pod, "--ignore-not-found", "-o", "name"]);
            if said.ok && said.text.is_empty() { Ok(()) } else { Err(format!("{}\n{}", said.text, self.logs())) }
        });
    }

    /// While an agent's network file system hangs: pods that wait for it come and go without an answer, and all others
    /// do as always; the kubelet says what is used. Leaves a pod behind that cannot end, and one that cannot begin.
    pub(crate) fn goes_on_beside_what_hangs(&self, n: usize) {
        let node = self.agents[n].host.name;
        self.apply(n, READER, &format!("late-{node}"));
        self.must(&["delete", "pod", &format!("reader-{node}"), "--wait=false"]);
        let began = Instant::now();
        self.apply(n, BESIDE, "");
        self.runs("beside", HANG_LIMIT);
        let summary = self.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/stats/summary")]);
        assert!(summary.ok && summary.text.contains("\"beside\""), "{}", summary.text);
        let said = self.kubectl(&["exec", "beside", "--", "echo", "here"]);
        assert_eq!(said.text, "here\n");
        self.must(&["delete", "pod", "beside", "--wait=false"]);
        self.is_gone("beside", HANG_LIMIT);
        println!("      beside it a pod came, was asked and went in {:.1?}", began.elapsed());
    }

    /// The remains of a file system that hung are as before.
    pub(crate) fn read_again(&self, n: usize) {
        let node = self.agents[n].host.name;
        self.runs(&format!("late-{node}"), LIMIT);
        self.must(&["delete", "pod", &format!("late-{node}"), "--wait=false"]);
        for pod in ["late", "reader"] {
            self.is_gone(&format!("{pod}-{node}"), LIMIT);
        }
        self.apply(n, READER, &format!("reader-{node}"));
        self.runs(&format!("reader-{node}"), LIMIT);
    }

    /// The first makes the cluster, the others join it. Each has a disk of its own.
    fn start_servers(&mut self) {
        let url = format!("https://{}:6443", self.servers[0].ip);
        let mut token = String::new();
        for (n, server) in self.servers.iter_mut().enumerate() {
            let (kubeconfig, data) = (server.host.dir.join("kubeconfig"), server.host.data_dir());
            std::fs::create_dir_all(&data).unwrap();
            server.host.must("mount", &["-t", "tmpfs", "-o", DISK, "tmpfs", data.to_str().unwrap()]);
            let own = [
                "--disable-agent".to_owned(),
                "--disable=coredns".to_owned(),
                format!("--write-kubeconfig={}", kubeconfig.display()),
            ];
            let join = ["--server".to_owned(), url.clone(), "--token".to_owned(), token.clone()];
            server.args = own.into_iter().chain(if n == 0 { [].to_vec() } else { join.to_vec() }).collect();
            server.start();
            wait_for("a server", LIMIT, || {
                let text = server.host.said(
                    kubectl().to_str().unwrap(),
                    &["--kubeconfig", kubeconfig.to_str().unwrap(), "get", "--raw", "/readyz"],
                );
                if text.ok { Ok(()) } else { Err(format!("{}\n{}", text.text, server.log())) }
            });
            if n == 0 {
                token = server.host.said("cat", &[data.join("server/token").to_str().unwrap()]).text.trim().to_owned();
            }
            let (arg, tmp) = (token.clone(), server.host.dir.join("token"));
            std::fs::write(tmp, arg).unwrap();
        }
    }

    fn start_agents(&mut self) {
        let (url, token) = (format!("https://{}:6443", self.servers[1].ip), self.servers[0].host.dir.join("token"));
        let tar = self.servers[0].host.dir.join("busybox.tar");
        let made =
            run(Command::new("sh").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/busybox-image.sh")).arg(&tar));
        assert!(made.ok, "{}", made.text);
        for agent in &mut self.agents {
            agent.args = ["--server", &url, "--token-file", token.to_str().unwrap()].map(str::to_owned).to_vec();
            agent.start();
        }
        for n in 0..self.agents.len() {
            let name = self.agents[n].host.name;
            self.until("a node", &["get", "node", name, "--no-headers"], |text| text.contains(" Ready"));
            let import = "for socket in /run/kedge*/containerd/containerd.sock; do ctr --address $socket -n k8s.io \
                images import \"$0\"; done";
            self.agents[n].host.must("sh", &["-c", import, tar.to_str().unwrap()]);
        }
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.servers[0].host.dir.join("kubeconfig")
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.servers.iter().map(|server| format!("https://{}:6443", server.ip)).collect()
    }

    fn machines(&mut self) -> impl Iterator<Item = &mut Machine> {
        self.servers.iter_mut().chain(&mut self.agents)
    }

    fn logs(&self) -> String {
        self.servers.iter().chain(&self.agents).map(Machine::log).collect::<Vec<_>>().join("\n")
    }

    /// kubectl by way of any server that answers.
    fn kubectl(&self, args: &[&str]) -> Said {
        let ask = |url: &String| {
            run(Command::new("timeout")
                .arg("40")
                .arg(kubectl())
                .arg("--kubeconfig")
                .arg(self.kubeconfig())
                .args(["--server", url])
                .args(args))
        };
        let mut said = None;
        for url in &self.urls() {
            let now = ask(url);
            if now.ok {
                return now;
            }
            said = Some(now);
        }
        said.unwrap()
    }

    fn must(&self, args: &[&str]) -> String {
        wait_for(&format!("kubectl {args:?}"), LIMIT, || {
            let said = self.kubectl(args);
            if said.ok { Ok(said.text) } else { Err(said.text) }
        })
    }

    fn until(&self, what: &str, args: &[&str], right: impl Fn(&str) -> bool) {
        wait_for(what, LIMIT, || {
            let said = self.kubectl(args);
            if said.ok && right(&said.text) { Ok(()) } else { Err(format!("{}\n{}", said.text, self.logs())) }
        });
    }

    /// Starts again what the fault killed, as its service manager would. No other fault may end a role.
    pub(crate) fn start_what_was_killed(&mut self, after: &str) {
        for machine in self.machines() {
            match machine.process.as_mut().map(|process| process.try_wait().unwrap()) {
                None => machine.start(),
                Some(None) => {}
                Some(Some(how)) => panic!("{} ended ({how}) after: {after}\n{}", machine.host.name, machine.log()),
            }
        }
    }

    /// No task of any role has panicked, in none of its lives.
    pub(crate) fn never_panicked(&self) {
        for machine in self.servers.iter().chain(&self.agents) {
            for n in 1..=machine.starts {
                let log = machine.host.log(&format!("log{n}"));
                let line = log.lines().find(|line| line.contains("panicked"));
                assert!(line.is_none(), "{}, start {n}: {}", machine.host.name, line.unwrap_or_default());
            }
        }
    }

    /// Every Service answers on every node. Returns after which time; fails after `limit`.
    pub(crate) fn heals(&self, after: &str, limit: Duration) -> Duration {
        let began = Instant::now();
        for agent in &self.agents {
            wait_for(
                &format!("the Services on {} after: {after}", agent.host.name),
                limit.saturating_sub(began.elapsed()),
                || {
                    let page = agent.host.said("curl", &["-s", "-m", "3", &format!("http://{}/", self.service)]);
                    let api = agent.host.said("curl", &["-s", "-k", "-m", "3", "https://10.43.0.1/livez"]);
                    let right = page.text.trim() == "page" && api.ok;
                    if right {
                        Ok(())
                    } else {
                        Err(format!("page: {:?}, api: {:?}\n{}", page.text, api.text, self.logs()))
                    }
                },
            );
        }
        let took = began.elapsed();
        assert!(took <= limit, "the Services answered {took:.1?} after: {after}, and that is more than {limit:?}");
        took
    }

    /// Clients are answered through every server again.
    pub(crate) fn works(&self, clients: &Clients, after: &str) {
        let before = clients.counts();
        wait_for(&format!("operations through every server after: {after}"), LIMIT, || {
            let now = clients.counts();
            let all = now.iter().zip(&before).all(|(now, before)| *now >= before + OPERATIONS);
            if all { Ok(()) } else { Err(format!("{before:?} {now:?}\n{}", self.logs())) }
        });
    }

    /// Pods come and go while faults do.
    pub(crate) fn scale(&mut self, replicas: usize) {
        let seen = self.uids_now();
        self.uids.extend(seen);
        self.must(&["scale", "deployment/web", &format!("--replicas={replicas}")]);
    }

    fn uids_now(&self) -> BTreeSet<String> {
        let text = self.must(&["get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"]);
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// The Deployment has as many pods as at the beginning again.
    pub(crate) fn settle(&mut self) {
        let seen = self.uids_now();
        self.uids.extend(seen);
        self.must(&["scale", "deployment/web", "--replicas=3"]);
        self.until("the Deployment's pods", &["rollout", "status", "deployment/web", "--timeout=20s"], |_| true);
    }

    /// The use of resources now, with as many pods as at the beginning.
    pub(crate) fn footprint(&self) -> Footprint {
        let count =
            |host: &Host, script: &str| -> usize { host.said("sh", &["-c", script]).text.trim().parse().unwrap() };
        let sum = |script: &str| self.agents.iter().map(|agent| count(&agent.host, script)).sum();
        let role = |machine: &Machine| {
            let pid = machine.pid();
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
            let rss = rss.trim().trim_end_matches(" kB").parse().unwrap();
            (std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(), rss)
        };
        Footprint {
            links: sum("ip -o link show type veth | wc -l"),
            mounts: sum("wc -l </proc/self/mountinfo"),
            cgroups: self.cgroups_of_the_gone(),
            roles: self.servers.iter().chain(&self.agents).map(role).collect(),
        }
    }

    fn cgroups_of_the_gone(&self) -> usize {
        let there = self.agents[0]
            .host
            .said("find", &["/sys/fs/cgroup", "-type", "d", "-name", "*pod*"])
            .text
            .replace('_', "-");
        let now = self.uids_now();
        // Those that live are seen, so those that are gone would be.
        assert!(now.iter().any(|uid| there.contains(uid)), "no pod's cgroup is seen: {there}");
        self.uids.difference(&now).filter(|uid| there.contains(uid.as_str())).count()
    }

    /// Links, mounts and cgroups are those of before, descriptors nearly. Memory is told; what it does over time is
    /// [`crate::soak`]'s.
    pub(crate) fn leaves_nothing(&self, before: &Footprint) {
        let after = wait_for("links, mounts and cgroups as before", LIMIT, || {
            let now = self.footprint();
            let same = (now.links, now.mounts, now.cgroups) == (before.links, before.mounts, before.cgroups);
            if same { Ok(now) } else { Err(format!("before {before:?}, now {now:?}")) }
        });
        for (n, ((fds, _), (fds_before, _))) in after.roles.iter().zip(&before.roles).enumerate() {
            assert!(*fds <= fds_before + SLACK_FDS, "role {n} holds {fds} descriptors, {fds_before} before");
        }
        println!("before {before:?}\nafter  {after:?}");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for machine in self.machines() {
            if let Some(mut process) = machine.process.take() {
                // The machine's end takes all of it away.
                let _gone = (process.kill(), process.wait());
            }
        }
    }
}
