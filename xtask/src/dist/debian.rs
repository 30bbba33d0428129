//! A Debian 12 with systemd as its first process, in its own namespaces, on the network of a lab's
//! host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::{Host, Process, Program, wait};

use super::empty;
use crate::kernel::packages;
use crate::shell;

/// Time limit for the boot on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Packages in addition to the minimal system.
const PACKAGES: &str = "--include=systemd-sysv,haproxy";
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Script that makes the folder `$1` the root of a separate host, and starts its systemd.
const BOOT: &str = r#"
set -e
root=$1
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t bpf bpf "$root/sys/fs/bpf"
for dir in run tmp dev; do mount -t tmpfs tmpfs "$root/$dir"; done
for device in null zero full random urandom tty; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
cd "$root"
pivot_root . mnt
umount -l /mnt
exec env -i container=dysco /lib/systemd/systemd --log-target=console --show-status=no
"#;

/// A running Debian. It ends when this value is dropped.
pub(super) struct Debian {
    unshare: Process,
    init: String,
    root: PathBuf,
}

impl Debian {
    /// Boots a Debian on the network of a host, with its files below a folder.
    ///
    /// # Errors
    /// If the Debian cannot be made, or does not boot.
    pub(super) fn boot(host: &Host, folder: &Path) -> Result<Debian> {
        let root = folder.join("debian-12");
        empty(&root)?;
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(&root).arg("-xf").arg(image(folder)?);
        shell::run(&mut tar)?;
        let words = "--pid --fork --kill-child --mount --uts --ipc --cgroup sh -c";
        let program = Program::new("unshare").args(words.split(' ')).arg(BOOT);
        let mut unshare = host.spawn(program.arg("sh").arg(&root).named("debian"))?;
        let children = format!("/proc/{0}/task/{0}/children", unshare.id());
        let mut init = None;
        unshare.wait_ready("systemd to start", || {
            let pids = fs::read_to_string(&children).unwrap_or_default();
            init = pids.split_whitespace().next().map(str::to_owned);
            init.is_some()
        })?;
        let debian = Debian {
            init: init.context("unshare has no child")?,
            unshare,
            root,
        };
        debian.wait_booted()?;
        Ok(debian)
    }

    fn wait_booted(&self) -> Result<()> {
        let state = || self.command(&["systemctl", "is-system-running"]).output();
        let booted = || {
            let said = state().ok()?;
            let said = String::from_utf8_lossy(&said.stdout).into_owned();
            ["running", "degraded"].contains(&said.trim()).then_some(())
        };
        wait::until("the Debian to boot", PATIENCE, booted).with_context(|| self.unshare.log())
    }

    /// Path of one of its files on this machine.
    pub(super) fn file(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Runs a command in the Debian to its end. Returns its output.
    ///
    /// # Errors
    /// If the command fails.
    pub(super) fn run(&self, words: &[&str]) -> Result<String> {
        let shown = words.join(" ");
        let ran = self.command(words).output();
        let ran = ran.with_context(|| format!("failed to run {shown}"))?;
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        ensure!(
            ran.status.success(),
            "{shown}: {}: {said}{}",
            ran.status,
            String::from_utf8_lossy(&ran.stderr)
        );
        Ok(said)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init, "--all", "--", "env", "-i", PATH]);
        command.arg("DEBIAN_FRONTEND=noninteractive").args(words);
        command.stdin(Stdio::null());
        command
    }
}

impl Drop for Debian {
    fn drop(&mut self) {
        let _ = self.unshare.kill();
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Returns the file system as an archive, which is made once.
///
/// # Errors
/// If mmdebstrap fails.
pub(super) fn image(folder: &Path) -> Result<PathBuf> {
    let image = folder.join("debian-12.tar");
    if !image.exists() {
        eprintln!("making a Debian 12, which takes minutes");
        let new = folder.join("debian-12.tar.new");
        let [main, _] = packages::own_sources()?;
        let mut mmdebstrap = Command::new("mmdebstrap");
        mmdebstrap.args(["--quiet", "--format=tar", "--variant=minbase"]);
        mmdebstrap.args([PACKAGES, "bookworm"]);
        shell::run(mmdebstrap.arg(&new).arg(main))?;
        fs::rename(&new, &image).with_context(|| format!("failed to write {}", image.display()))?;
    }
    Ok(image)
}
