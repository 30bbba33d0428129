//! The image for containers, built by its Containerfile, and the `podman run` of its comment.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use dysco_netns::haproxy::Config;
use dysco_netns::stream::Server;
use dysco_netns::{Family, Host, Lab, Process, Program, Role, wait};
use serde_json::Value;

use super::check::Made;
use super::sessions::{PORT, SESSIONS, Sessions};
use super::{debian, empty};
use crate::shell;

/// Start of the machine's first process. Its mounts are its own, /etc among them.
const MACHINE: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs none /run
mount -t tmpfs none /dev/shm
mount -t bpf none /sys/fs/bpf
mount -t cgroup2 none /sys/fs/cgroup
mount -t overlay -o "lowerdir=/etc,upperdir=$1/etc,workdir=$1/work" none /etc
echo yes > "$1/mounted"
exec sleep infinity
"#;
/// Beginning of the command in the Containerfile.
const RUN: &str = "podman run ";
const NAME: &str = "dyscod";
/// Time limit for the start of a program on a busy machine.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// A container host: a process namespace with its mounts, on the network of a lab's host. All its
/// processes end with it.
struct Machine<'a> {
    host: &'a Host,
    /// First process, as this process sees it.
    init: String,
    folder: PathBuf,
    _unshare: Process,
}

impl Machine<'_> {
    fn start(host: &Host, folder: PathBuf) -> Result<Machine<'_>> {
        empty(&folder)?;
        for dir in ["etc/dysco", "work"] {
            fs::create_dir_all(folder.join(dir))?;
        }
        let words = "--pid --fork --kill-child --mount --mount-proc --cgroup sh -c";
        let program = Program::new("unshare").args(words.split(' ')).arg(MACHINE);
        let mut unshare = host.spawn(program.arg("sh").arg(&folder).named("machine"))?;
        unshare.wait_ready("the mounts of the machine", || {
            folder.join("mounted").exists()
        })?;
        let outer = unshare.id();
        let init = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children"))?;
        Ok(Machine {
            host,
            init: init.trim().to_owned(),
            folder,
            _unshare: unshare,
        })
    }

    fn within(&self) -> [&str; 5] {
        ["--target", &self.init, "--pid", "--mount", "--cgroup"]
    }

    /// Runs a command to its end. Returns its output.
    fn run(&self, words: &[&str]) -> Result<String> {
        self.host
            .output("nsenter", &[&self.within()[..], words].concat())
    }

    /// Runs podman. Its files are in the machine's folder.
    fn podman(&self, words: &[&str]) -> Result<String> {
        let root = self.folder.join("containers").display().to_string();
        let own = [
            "podman",
            "--root",
            &root,
            "--storage-driver",
            "vfs",
            "--cgroup-manager",
            "cgroupfs",
            "--runtime",
            "runc",
        ];
        self.run(&[&own, words].concat())
    }

    fn dyscoctl(&self, words: &[&str]) -> Result<String> {
        self.podman(&[&["exec", NAME, "dyscoctl"], words].concat())
    }
}

/// Builds the image, and lets its `dyscod` take HAProxy out of sessions.
///
/// # Errors
/// If a step fails.
pub(super) fn check(made: &Made, tree: &Path) -> Result<()> {
    let lab = Lab::builder("image").build()?;
    let server = Server::start(&lab.server, Role::Server.at(Family::V4, 9000))?;
    let machine = Machine::start(&lab.proxy, made.folder.join("machine"))?;
    build(&machine, made)?;
    configure(&machine, tree)?;
    let listen = ([0, 0, 0, 0], PORT).into();
    let haproxy = Config::tcp(listen, Role::Server.at(Family::V4, 9000));
    let haproxy = haproxy.start(&lab.proxy, |program| {
        program.behind("nsenter".as_ref(), &machine.within())
    })?;
    let sessions = Sessions::open(&lab, &server)?;

    start(&machine)?;
    let said = machine.dyscoctl(&[
        "remove-middlebox",
        "self",
        "--all",
        "--listen",
        &format!(":{PORT}"),
        "--wait",
        "-o",
        "json",
    ])?;
    let said: Value = serde_json::from_str(&said).context("dyscoctl printed no JSON")?;
    let all = said["removals"].as_array().map_or(&[][..], Vec::as_slice);
    let removed = all.iter().filter(|one| one["outcome"] == "removed").count();
    ensure!(removed == SESSIONS, "{removed} of {SESSIONS}: {said}");
    sessions.go_on()?;
    // The sessions go on without the container.
    machine.podman(&["rm", "--force", "--time", "5", NAME])?;
    sessions.go_on()?;
    sessions.finish()?;
    let folder = machine.folder.clone();
    drop((haproxy, machine, server));
    fs::remove_dir_all(&folder)
        .with_context(|| format!("failed to remove {}", folder.display()))?;
    lab.finish(())
}

/// Builds the image upon Debian's own packages, since the registries' images need their hosts.
fn build(machine: &Machine, made: &Made) -> Result<()> {
    let base = debian::image(&made.folder)?.display().to_string();
    machine.podman(&["import", &base, "localhost/debian:12"])?;
    let file = containerfile().display().to_string();
    let context = machine.folder.join("context");
    empty(&context)?;
    let deb = made.deb.file_name().context("the package has no name")?;
    fs::copy(&made.deb, context.join(deb)).context("failed to copy the package")?;
    let context = context.display().to_string();
    let base = ["--build-arg", "BASE=localhost/debian:12"];
    let words = ["build", "--isolation", "chroot"];
    let image = ["-f", &file, "-t", "dysco", &context];
    machine.podman(&[&words[..], &base, &image].concat())?;
    Ok(())
}

/// Creates keys, and the configuration from the sample.
fn configure(machine: &Machine, tree: &Path) -> Result<()> {
    let address = Role::Proxy.address(Family::V4).to_string();
    let dyscoctl = tree.join("usr/bin/dyscoctl").display().to_string();
    let authority = machine.folder.join("authority").display().to_string();
    machine.run(&[&dyscoctl, "pki", "init", "--dir", &authority])?;
    let issue = [&dyscoctl, "pki", "issue", "--dir", &authority];
    let host = ["--name", "proxy", "--address", &address];
    let out = ["--out", "/etc/dysco/pki"];
    machine.run(&[&issue[..], &host, &out].concat())?;
    let sample = fs::read_to_string(shell::root().join("packaging/dyscod.toml"))?;
    let listener = format!("\n[[listener]]\naddress = \":{PORT}\"\ntransparent = true\n");
    let text = sample.replace("addresses = []", &format!("addresses = [\"{address}\"]"));
    ensure!(text != sample, "the sample has no empty addresses");
    let file = machine.folder.join("etc/dysco/dyscod.toml");
    fs::write(&file, text + &listener)
        .with_context(|| format!("failed to write {}", file.display()))
}

/// Starts the container by the commands of the Containerfile, and waits until `dyscod` answers.
fn start(machine: &Machine) -> Result<()> {
    let text = fs::read_to_string(containerfile()).context("there is no Containerfile")?;
    let words = run_words(&text).context("the Containerfile shows no podman run")?;
    machine.run(&["mkdir", "-p", "/run/dysco"])?;
    // Machines of checks may not raise their own limits, and have not all controllers.
    let more = [
        "run",
        "--detach",
        "--name",
        NAME,
        "--pids-limit",
        "0",
        "--ulimit",
        "nofile=1024:1024",
        "--ulimit",
        "nproc=1024:1024",
    ];
    machine.podman(&[&more[..], &words].concat())?;
    let answers = || machine.dyscoctl(&["status"]).ok();
    wait::until("the container's dyscod to answer", PATIENCE, answers)
        .with_context(|| machine.podman(&["logs", NAME]).unwrap_or_default())?;
    Ok(())
}

fn containerfile() -> PathBuf {
    shell::root().join("packaging/oci/Containerfile")
}

/// Returns the words after `podman run` in a comment, whose lines end with a backslash but for the
/// last one.
fn run_words(text: &str) -> Option<Vec<&str>> {
    let mut words = Vec::new();
    let lines = text.lines().map(|line| line.trim_start_matches('#').trim());
    for line in lines.skip_while(|line| !line.starts_with(RUN)) {
        let line = line.strip_prefix(RUN).unwrap_or(line);
        words.extend(line.trim_end_matches('\\').split_whitespace());
        if !line.ends_with('\\') {
            return Some(words);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::run_words;

    #[test]
    fn the_command_of_a_comment_goes_on_after_a_backslash() {
        let text = "# By\n#\n#   podman run --a b \\\n#     --c image\n#\nFROM x\n";
        assert_eq!(run_words(text), Some(vec!["--a", "b", "--c", "image"]));
        assert_eq!(run_words("# podman run --a \\\n"), None);
        assert_eq!(run_words("FROM x"), None);
    }
}
