//! A proxy in a container of podman, behind podman's own bridge and published port. `dyscod` serves
//! all network namespaces of the container host.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::{self, Fleet};
use dysco_netns::haproxy::Config;
use dysco_netns::stream::{Group, Plan, Server, all_intact};
use dysco_netns::{Family, Lab, Process, Ran, Role, wait};
use serde_json::Value;

use super::network::{LIMIT, dyscod};

/// Published port, which is the same in the container.
const PORT: u16 = 8080;
/// Port of the server.
const SERVER: u16 = 9000;

/// Start of the machine's first process: its mounts, and then `dyscod`.
///
/// The control groups are those of version 2 alone, as Debian 12 has them. Groups that a killed test
/// left are removed. podman's locks are in /dev/shm.
const MACHINE: &str = r#"
mount -t cgroup2 none /sys/fs/cgroup
mount -t tmpfs none /dev/shm
find /sys/fs/cgroup/dysco-podman -depth -mindepth 1 -type d -empty -exec rmdir {} + 2>/dev/null
exec "$@"
"#;

/// A container host: one process namespace with `dyscod` and the containers, which end with it.
struct Machine {
    lab: Lab,
    fleet: Fleet,
    server: Server,
    daemon: Process,
    /// Process of `dyscod`, as the test sees it.
    pid: String,
}

impl Machine {
    fn start(name: &str) -> Result<Machine> {
        let lab = Lab::builder(name).build()?;
        lab.proxy.sysctl("net.ipv4.ip_forward", "1")?;
        let fleet = Fleet::new(&lab)?;
        let server = Server::start(&lab.server, Role::Server.at(Family::V4, SERVER))?;
        let file = fleet.prepare(&lab, Role::Proxy, "")?;
        let text = fs::read_to_string(&file)?;
        fs::write(
            &file,
            text.replacen("[host]\n", "[host]\nnamespaces = \"all\"\n", 1),
        )?;
        let program = dyscod(&file)?.behind("sh".as_ref(), &["-c", MACHINE, "sh"]);
        let apart = [
            "--pid",
            "--fork",
            "--kill-child",
            "--mount",
            "--mount-proc",
            "--cgroup",
        ];
        let program = program.behind("unshare".as_ref(), &apart).named("dyscod");
        let mut daemon = lab.proxy.spawn(program)?;
        daemon.wait_ready("dyscod to answer", || {
            fleet.json(&lab.proxy, &["status"]).is_ok()
        })?;
        let outer = daemon.id();
        let pid = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children"))?;
        Ok(Machine {
            lab,
            fleet,
            server,
            daemon,
            pid: pid.trim().to_owned(),
        })
    }

    /// Runs a command as a process of the machine.
    fn run(&self, program: &str, words: &[&str]) -> Result<String> {
        let within = [
            "--target", &self.pid, "--pid", "--mount", "--cgroup", program,
        ];
        self.lab.proxy.output("nsenter", &[&within, words].concat())
    }

    /// Runs `dyscoctl` as a process of the machine, whose pids it names.
    fn dyscoctl(&self, words: &[&str]) -> Result<Ran> {
        let dyscoctl = self.fleet.dyscoctl_path().to_string_lossy();
        let within = ["--target", &self.pid, "--pid", "--mount", &dyscoctl];
        self.lab.proxy.ran("nsenter", &[&within, words].concat())
    }

    /// Runs podman, whose files are in the lab's folder.
    fn podman(&self, words: &[&str]) -> Result<String> {
        let at = |name: &str| self.lab.proxy.dir().join(name).display().to_string();
        let (root, networks) = (at("containers"), at("networks"));
        let own = [
            "--root",
            &root,
            "--runroot",
            "/run/containers",
            "--tmpdir",
            "/run/libpod",
            "--network-config-dir",
            &networks,
            "--network-backend",
            "netavark",
            "--cgroup-manager",
            "cgroupfs",
            "--runtime",
            "runc",
        ];
        self.run("podman", &[&own, words].concat())
    }

    /// Starts a container that sees this machine's `/usr` and the lab's folder. Returns its id.
    fn container(&self, name: &str, words: &[&str], program: &[&str]) -> Result<String> {
        let image = image(self.lab.proxy.dir())?.display().to_string();
        let dir = self.lab.dir().display().to_string();
        let folder = format!("{dir}:{dir}");
        // Machines of tests may not raise their own limits, and have not all controllers.
        let own = [
            "run",
            "--detach",
            "--name",
            name,
            "--cgroup-parent",
            "/dysco-podman",
            "--pids-limit",
            "0",
            "--ulimit",
            "nofile=1024:1024",
            "--ulimit",
            "nproc=1024:1024",
            "--volume",
            "/usr:/usr:ro",
            "--volume",
            &folder,
        ];
        let rootfs = ["--rootfs", &image];
        let id = self.podman(&[&own, words, &rootfs, program].concat())?;
        Ok(id.trim().to_owned())
    }

    /// Runs a command in the network namespace of a container.
    fn inside(&self, container: &str, program: &str, words: &[&str]) -> Result<String> {
        let pid = self.podman(&["inspect", "--format", "{{.State.Pid}}", container])?;
        let net = ["--target", pid.trim(), "--net", program];
        self.run("nsenter", &[&net, words].concat())
    }

    /// Starts HAProxy in the network namespace of the pod, and returns the id of its container.
    fn haproxy(&self, with_shim: bool) -> Result<String> {
        let listen = ([0, 0, 0, 0], PORT).into();
        let config = Config::tcp(listen, Role::Server.at(Family::V4, SERVER));
        config
            .connections(100)
            .pipes(100)
            .command(&self.lab.proxy)?;
        let file = self.lab.proxy.dir().join("haproxy.cfg");
        let shim = fleet::built("libdysco_splice_preload.so")?;
        let mounted = format!("{}:/dysco/shim.so:ro", shim.display());
        let mut words = vec!["--network", "container:pod", "--volume", &mounted];
        if with_shim {
            words.extend(["--env", "LD_PRELOAD=/dysco/shim.so"]);
        }
        let program = ["haproxy", "-db", "-f", &file.to_string_lossy()];
        let id = self.container("haproxy", &words, &program)?;
        wait::until("HAProxy to listen", LIMIT, || {
            let sockets = self.inside("pod", "ss", &["-Htln"]).ok()?;
            sockets.contains(&format!(":{PORT}")).then_some(())
        })
        .with_context(|| format!("{:?}", self.podman(&["logs", "haproxy"])))?;
        Ok(id)
    }

    /// Removes the chosen proxy from all sessions, until so many are proven and removed.
    fn remove(&self, chosen: &[&str], count: u64) -> Result<()> {
        let all = ["remove-middlebox", "self", "--all", "--wait", "-o", "json"];
        let (mut removed, mut last) = (0, Value::Null);
        wait::until("the sessions to lose their proxy", LIMIT, || {
            let words = [&all[..], chosen].concat();
            let ran = self.dyscoctl(&words).ok()?;
            last = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| ran.stderr.into());
            removed += last["summary"]["removed"].as_u64().unwrap_or_default();
            (removed == count).then_some(())
        })
        .with_context(|| format!("{last:#}\n{}", self.daemon.log()))
    }

    /// Asks for a removal by the published port, at which podman's own process listens on the host.
    /// Returns the namespace that the hint names.
    fn hinted(&self) -> Result<String> {
        let all = ["remove-middlebox", "self", "--all", "--wait", "-o", "json"];
        let words = [&all[..], &["--listen", ":8080"]].concat();
        let done: Value = serde_json::from_str(&self.dyscoctl(&words)?.stdout)?;
        let hint = done["hint"].as_str().context("no hint")?;
        ensure!(hint.contains("haproxy (pid "), "{done:#}");
        let (_, namespace) = hint.rsplit_once(' ').context("no namespace")?;
        Ok(namespace.to_owned())
    }

    /// Ends the pod, and waits until its namespace is not served any more. Then ends everything.
    fn finish(self) -> Result<()> {
        self.podman(&["rm", "--force", "--time", "0", "pod"])?;
        wait::until("the instance to end", LIMIT, || {
            let all = self.fleet.json(&self.lab.proxy, &["namespaces"]).ok()?;
            all.as_array()?.is_empty().then_some(())
        })
        .with_context(|| self.daemon.log())?;
        self.lab.finish((self.daemon, self.server))
    }

    /// Returns the namespace with a container of podman that is served.
    fn wait_served(&self) -> Result<Value> {
        wait::until("the instance to answer", LIMIT, || {
            let all = self.fleet.json(&self.lab.proxy, &["namespaces"]).ok()?;
            let all = all.as_array().cloned().unwrap_or_default();
            let name = |n: &Value| n["name"].as_str().unwrap_or_default().to_owned();
            let mut served = all.into_iter().filter(|n| n["sessions"].is_u64());
            served.find(|n| name(n).starts_with("podman:"))
        })
        .with_context(|| self.daemon.log())
    }
}

/// Makes a root file system whose programs and libraries are those of `/usr`, and returns its path.
fn image(dir: &Path) -> Result<PathBuf> {
    let root = dir.join("image");
    for name in ["usr", "etc", "proc", "sys", "dev", "tmp", "run"] {
        fs::create_dir_all(root.join(name))?;
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        let link = root.join(name);
        if !link.exists() && !link.is_symlink() {
            std::os::unix::fs::symlink(format!("usr/{name}"), link)?;
        }
    }
    Ok(root)
}

/// The containers share a network namespace, as those of a pod do. The proxy's container stops after
/// the removal, and its sessions go on.
fn leaves(name: &str, with_shim: bool) -> Result<()> {
    let machine = Machine::start(name)?;
    let published = format!("{PORT}:{PORT}");
    let pod = machine.container("pod", &["--publish", &published], &["sleep", "infinity"])?;
    let proxy = machine.haproxy(with_shim)?;
    let served = machine.wait_served()?;
    let namespace = served["name"].as_str().context("no name")?;
    let ids = [&pod, &proxy].map(|id| format!("podman:{}", &id[..12]));
    ensure!(ids.iter().any(|id| id == namespace), "{served:#}: {ids:?}");
    let plan = Plan {
        rate: Some(4_000_000),
        ..Plan::default()
    };
    let lab = &machine.lab;
    let to = Role::Proxy.at(Family::V4, PORT);
    let group = Group::open(&lab.client, &machine.server, to, 4, &plan)?;
    group.run();
    group.wait_progress(1 << 20)?;
    match with_shim {
        true => machine.remove(&["--namespace", namespace], 4)?,
        false => {
            let namespace = machine.hinted()?;
            machine.remove(&["--namespace", &namespace, "--listen", ":8080"], 4)?;
        }
    }
    machine.podman(&["rm", "--force", "--time", "0", "haproxy"])?;
    let left = machine.inside("pod", "ss", &["-Htnp", "state", "established"])?;
    ensure!(!left.contains("haproxy"), "{left}");
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    machine.finish()
}

#[test]
fn a_proxy_in_a_container_of_podman_leaves() -> Result<()> {
    leaves("podman", true)
}

#[test]
fn a_proxy_in_a_container_of_podman_without_the_shim_leaves() -> Result<()> {
    leaves("podmanout", false)
}
