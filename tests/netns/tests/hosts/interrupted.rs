//! `cargo xtask demo` is interrupted in the middle: nothing of it is left on the machine.
//!
//! The demo itself runs here, in the machine's own namespaces, with the programs that were built
//! with this test. Only in this way does the test see that its processes, and its kernel objects,
//! vanish with it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::built;
use dysco_netns::{require_root, wait};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

const LIMIT: Duration = Duration::from_secs(120);

/// A demo with all its files in one folder.
struct Demo {
    child: Child,
    folder: tempfile::TempDir,
}

/// Kernel objects of the demo.
#[derive(Default, Debug)]
struct Kept {
    /// Network namespaces, by their inodes.
    namespaces: BTreeSet<u64>,
    /// Programs and maps, by kind and id.
    objects: BTreeSet<(&'static str, String)>,
}

impl Demo {
    fn start(words: &[&str]) -> Result<Demo> {
        require_root()?;
        let folder = tempfile::tempdir()?;
        let (xtask, dyscod) = (built("xtask")?, built("dyscod")?);
        fs::create_dir(folder.path().join("tmp"))?;
        let output = File::create(folder.path().join("output"))?;
        let mut command = Command::new(xtask);
        command
            .arg("demo")
            .args(words)
            .env("TMPDIR", folder.path().join("tmp"))
            .env("DYSCO_BIN_DIR", dyscod.parent().context("no folder")?)
            .stdin(Stdio::null())
            .stderr(output.try_clone()?)
            .stdout(output)
            // The group corresponds to that of a command that a shell has started.
            .process_group(0);
        let tie = || Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?);
        // SAFETY: the closure only makes a system call, as a forked child may.
        unsafe { command.pre_exec(tie) };
        let child = command.spawn().context("failed to start the demo")?;
        Ok(Demo { child, folder })
    }

    fn tmp(&self) -> PathBuf {
        self.folder.path().join("tmp")
    }

    fn output(&self) -> String {
        fs::read_to_string(self.folder.path().join("output")).unwrap_or_default()
    }

    fn wait_said(&mut self, words: &str) -> Result<()> {
        let mut ended = None;
        let said = wait::until(words, LIMIT, || {
            ended = self.child.try_wait().ok().flatten();
            (ended.is_some() || self.output().contains(words)).then_some(())
        });
        said.with_context(|| self.output())?;
        ensure!(
            ended.is_none(),
            "the demo ended: {ended:?}\n{}",
            self.output()
        );
        Ok(())
    }

    /// Processes that were started with the demo's folder for temporary files.
    fn processes(&self) -> Vec<u32> {
        let mark = format!("TMPDIR={}", self.tmp().display());
        let has = |pid: &u32| {
            let words = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            words.split(|b| *b == 0).any(|word| word == mark.as_bytes())
        };
        processes().into_iter().filter(has).collect()
    }

    fn kept(&self) -> Kept {
        let own = fs::metadata("/proc/self/ns/net").map(|m| m.ino()).ok();
        let mut kept = Kept::default();
        for pid in self.processes() {
            kept.namespaces.extend(namespaces(pid));
            let fds = listed(format!("/proc/{pid}/fdinfo"));
            for text in fds.iter().filter_map(|fd| fs::read_to_string(fd).ok()) {
                let lines = text.lines().filter_map(|line| line.split_once(":\t"));
                kept.objects.extend(lines.filter_map(|(name, id)| {
                    let kind = match name {
                        "prog_id" => "prog",
                        "map_id" => "map",
                        _ => return None,
                    };
                    Some((kind, id.to_owned()))
                }));
            }
        }
        kept.namespaces.retain(|ns| Some(*ns) != own);
        kept
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = killpg(
            Pid::from_raw(self.child.id().cast_signed()),
            Signal::SIGKILL,
        );
        let _ = self.child.wait();
    }
}

fn listed(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn processes() -> Vec<u32> {
    let named = listed("/proc");
    let pid = |path: &PathBuf| path.file_name()?.to_str()?.parse().ok();
    named.iter().filter_map(pid).collect()
}

/// Network namespaces in which a process has threads.
fn namespaces(pid: u32) -> BTreeSet<u64> {
    let threads = listed(format!("/proc/{pid}/task"));
    let namespace = |thread: &PathBuf| Some(fs::metadata(thread.join("ns/net")).ok()?.ino());
    threads.iter().filter_map(namespace).collect()
}

/// True if the object still exists in the kernel.
fn is_there(kind: &str, id: &str) -> bool {
    let asked = Command::new("bpftool")
        .args([kind, "show", "id", id])
        .output();
    asked.is_ok_and(|asked| asked.status.success())
}

/// Interrupts the demo once it has printed this text. `daemons` states whether its daemons run
/// then.
fn interrupted(words: &[&str], signal: Signal, at: &str, daemons: bool) -> Result<()> {
    let pins = listed("/sys/fs/bpf");
    let links = listed("/sys/class/net");
    let mut demo = Demo::start(words)?;
    demo.wait_said(at)?;
    let kept = demo.kept();
    ensure!(
        kept.namespaces.len() > 3 && kept.objects.is_empty() != daemons,
        "{kept:?}"
    );
    ensure!(kept.objects.iter().all(|(kind, id)| is_there(kind, id)));
    let group = Pid::from_raw(demo.child.id().cast_signed());
    killpg(group, signal).context("failed to interrupt the demo")?;
    let ended = wait::until("its end", LIMIT, || demo.child.try_wait().ok()?);
    let ended = ended.with_context(|| demo.output())?;
    ensure!(ended.signal() == Some(signal as i32), "{ended}");

    wait::until("its processes to end", LIMIT, || {
        let of_its_own = |pid: &u32| !namespaces(*pid).is_disjoint(&kept.namespaces);
        let left = processes().iter().any(of_its_own);
        (!left && demo.processes().is_empty()).then_some(())
    })
    .with_context(|| format!("left: {:?}", demo.processes()))?;
    let files = listed(demo.tmp());
    ensure!(files.is_empty(), "left: {files:?}");
    // The kernel needs some time to free unused objects.
    for (kind, id) in &kept.objects {
        wait::until("the kernel to forget", LIMIT, || {
            (!is_there(kind, id)).then_some(())
        })
        .with_context(|| format!("{kind} {id} is left"))?;
    }
    ensure!(listed("/sys/fs/bpf") == pins && listed("/sys/class/net") == links);
    Ok(())
}

#[test]
fn while_haproxy_carries_sessions() -> Result<()> {
    interrupted(&[], Signal::SIGINT, "through HAProxy", true)
}

#[test]
fn while_haproxy_leaves() -> Result<()> {
    let words = ["--seconds", "2"];
    interrupted(&words, Signal::SIGINT, "remove-middlebox", true)
}

#[test]
fn by_sigterm() -> Result<()> {
    let words = ["--seconds", "2"];
    interrupted(&words, Signal::SIGTERM, "HAProxy has left", true)
}

#[test]
fn while_a_firewall_is_there() -> Result<()> {
    let words = ["chain", "--seconds", "2"];
    interrupted(&words, Signal::SIGINT, "insert-middlebox", true)
}

#[test]
fn while_haproxy_is_reloaded() -> Result<()> {
    let words = ["reload"];
    interrupted(&words, Signal::SIGINT, "dyscoctl drain", true)
}

#[test]
fn without_dyscod() -> Result<()> {
    interrupted(&["--plain"], Signal::SIGINT, "through HAProxy", false)
}
