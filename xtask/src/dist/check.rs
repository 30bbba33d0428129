//! `cargo xtask dist --check`: the life of a package on a host, from the installation to the
//! removal, under live sessions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::Server;
use dysco_netns::{Family, Lab, Role, wait};

use super::debian::Debian;
use super::sessions::{PORT, Sessions};
use super::{VERSION, container, empty, pack};
use crate::shell;

/// The packages that were made, with their folder.
pub(super) struct Made {
    /// Folder of the packages.
    pub folder: PathBuf,
    /// Package for Debian.
    pub deb: PathBuf,
    /// RPM package.
    pub rpm: PathBuf,
}

/// Maximum exposure of the unit according to `systemd-analyze security`, in tenths.
const EXPOSURE: &str = "40";
/// Version that precedes all existing versions.
const OLDER: &str = "0.0.1";
/// Time limit for the start of a service on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const KEY: &str = "/etc/dysco/pki/host.key";
const CONFIG: &str = "/etc/dysco/dyscod.toml";

/// Runs all checks.
///
/// # Errors
/// If a check fails.
pub(super) fn all(made: &Made, tree: &Path) -> Result<()> {
    unit()?;
    println!("the unit is hardened as far as dyscod allows");
    is_reproducible(made, tree)?;
    println!("the packages are the same if they are made again");
    rpm(made)?;
    println!("the RPM package can be installed and removed");
    let older = made.folder.join("older");
    empty(&older)?;
    let older = pack::deb(tree, &older, OLDER)?;
    let lab = Lab::builder("dist").build()?;
    let host = Host {
        debian: Debian::boot(&lab.proxy, &made.folder)?,
        server: Server::start(&lab.server, Role::Server.at(Family::V4, 9000))?,
        lab,
    };
    host.life(&older, &made.deb)?;
    println!("the package for Debian was installed, upgraded and removed under live sessions");
    container::check(made, tree)?;
    println!("the image was built, and its dyscod took a proxy out of live sessions");
    Ok(())
}

fn unit() -> Result<()> {
    let unit = shell::root().join("packaging/dyscod.service");
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["security", "--offline=true", "--no-pager"]);
    analyze.arg(format!("--threshold={EXPOSURE}")).arg(unit);
    let said = analyze
        .output()
        .context("failed to run systemd-analyze security")?;
    ensure!(
        said.status.success(),
        "the unit is more exposed than {EXPOSURE} tenths: {}{}",
        String::from_utf8_lossy(&said.stdout),
        String::from_utf8_lossy(&said.stderr)
    );
    Ok(())
}

/// Checks that the packed programs have the list of their crates, which `strip` could have removed.
///
/// # Errors
/// If a program has none.
pub(super) fn sbom(tree: &Path) -> Result<()> {
    for program in ["usr/sbin/dyscod", "usr/bin/dyscoctl"] {
        let program = tree.join(program);
        let said = Command::new("objdump").arg("-h").arg(&program).output();
        let said = said.context("failed to run objdump")?;
        ensure!(
            String::from_utf8_lossy(&said.stdout).contains(".dep-v0"),
            "{} has no section .dep-v0, the list of its crates",
            program.display()
        );
    }
    println!("the programs have the list of their crates");
    Ok(())
}

/// Checks that a package does not depend on the time at which its files are made.
fn is_reproducible(made: &Made, tree: &Path) -> Result<()> {
    let folder = made.folder.join("again");
    empty(&folder)?;
    let later = folder.join("tree");
    pack::copy(tree, &later)?;
    let mut touch = Command::new("find");
    shell::run(touch.arg(&later).args(["-exec", "touch", "{}", "+"]))?;
    let rpm = pack::rpm(&later, &folder, VERSION)?;
    let deb = pack::deb(&later, &folder, VERSION)?;
    for (one, other) in [(&made.rpm, rpm), (&made.deb, deb)] {
        let same = fs::read(one)? == fs::read(&other)?;
        ensure!(same, "{} differs if it is made again", one.display());
    }
    fs::remove_dir_all(&folder).context("failed to remove the packages that were made again")
}

/// Installs the RPM package below a folder, and removes it there.
fn rpm(made: &Made) -> Result<()> {
    let root = made.folder.join("rpm-root");
    empty(&root)?;
    let rpm = |words: &[&str], package: &Path| {
        let mut rpm = Command::new("rpm");
        rpm.arg("--root").arg(&root).args(words).arg(package);
        shell::run(rpm.stdout(std::io::stderr()))
    };
    // The folder contains no other package, and no shell for the scripts.
    rpm(&["--install", "--nodeps", "--noscripts"], &made.rpm)?;
    let dyscoctl = root.join("usr/bin/dyscoctl");
    let said = Command::new(&dyscoctl).arg("--version").output();
    let said = said.with_context(|| format!("failed to run {}", dyscoctl.display()))?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    ensure!(said.trim().ends_with(VERSION), "dyscoctl says {said}");
    rpm(&["--erase", "--nodeps", "--noscripts"], "dysco".as_ref())?;
    for left in ["usr/sbin/dyscod", "etc/dysco"] {
        ensure!(
            !root.join(left).exists(),
            "{left} is left after the removal"
        );
    }
    fs::remove_dir_all(&root).context("failed to remove the folder of the RPM package")
}

/// A proxy's host with Debian's HAProxy, between a client and a server.
struct Host {
    debian: Debian,
    server: Server,
    lab: Lab,
}

impl Host {
    /// Runs through the life of the package on a host whose HAProxy is older.
    fn life(self, older: &Path, newer: &Path) -> Result<()> {
        self.set_up_haproxy()?;
        let before = self.open()?;
        self.install(older)?;
        let started = self.debian.run(&["systemctl", "start", "dyscod"]);
        ensure!(started.is_err(), "a start without keys is no error");
        ensure!(!self.is_active()?, "dyscod runs without keys");
        self.configure()?;
        self.drain(&before)?;

        self.install(newer)?;
        self.is_upgraded()?;
        self.put_under_shim()?;
        before.go_on()?;
        self.confine_handlers()?;
        let later = self.open()?;
        self.drain(&later)?;

        self.debian.run(&["systemctl", "stop", "haproxy"])?;
        let said = self.debian.run(&["dpkg", "--remove", "dysco"])?;
        let warned = said.contains("run 'dyscoctl uninstall' first");
        ensure!(warned, "the removal does not say what stays: {said}");
        ensure!(!self.is_active()?, "dyscod runs after the removal");
        before.go_on()?;
        later.go_on()?;
        self.debian.run(&["dpkg", "--purge", "dysco"])?;
        ensure!(!self.debian.file(CONFIG).exists(), "{CONFIG} is left");
        ensure!(self.debian.file(KEY).exists(), "{KEY} is gone");
        before.finish()?;
        later.finish()?;
        let Host {
            debian,
            server,
            lab,
        } = self;
        drop((debian, server));
        lab.finish(())
    }

    fn set_up_haproxy(&self) -> Result<()> {
        let file = self.debian.file("/etc/haproxy/haproxy.cfg");
        let text = fs::read_to_string(&file).context("there is no configuration of HAProxy")?;
        let server = Role::Server.at(Family::V4, 9000);
        let listen = format!(
            "\nlisten relay\n  mode tcp\n  option splice-request\n  option splice-response\n  \
             bind :{PORT}\n  server one {server}\n"
        );
        fs::write(&file, text + &listen).context("failed to configure HAProxy")?;
        self.debian.run(&["systemctl", "restart", "haproxy"])?;
        self.wait_listens()
    }

    fn wait_listens(&self) -> Result<()> {
        wait::until("HAProxy to listen", PATIENCE, || {
            self.lab.proxy.listens(PORT).then_some(())
        })
    }

    fn open(&self) -> Result<Sessions> {
        Sessions::open(&self.lab, &self.server)
    }

    fn install(&self, package: &Path) -> Result<()> {
        let inside = Path::new("/srv/dysco.deb");
        fs::copy(package, self.debian.file("/srv/dysco.deb"))
            .context("failed to copy the package")?;
        let inside = inside.to_string_lossy();
        self.debian.run(&["dpkg", "--install", &inside]).map(drop)
    }

    /// Creates keys and edits the one file, as docs/install.md describes.
    fn configure(&self) -> Result<()> {
        let address = Role::Proxy.address(Family::V4).to_string();
        let words = ["dyscoctl", "pki", "init", "--dir", "/srv/authority"];
        self.debian.run(&words)?;
        let words = ["dyscoctl", "pki", "issue", "--dir", "/srv/authority"];
        let host = ["--name", "proxy", "--address", &address];
        let out = ["--out", "/etc/dysco/pki"];
        self.debian.run(&[&words[..], &host, &out].concat())?;
        let file = self.debian.file(CONFIG);
        let text = fs::read_to_string(&file).context("the package has no configuration")?;
        let listener = format!("\n[[listener]]\naddress = \":{PORT}\"\ntransparent = true\n");
        let edited = text.replace("addresses = []", &format!("addresses = [\"{address}\"]"));
        ensure!(edited != text, "the sample has no empty addresses");
        fs::write(&file, edited + &listener).context("failed to edit the configuration")?;
        self.debian
            .run(&["systemctl", "enable", "--now", "dyscod"])?;
        ensure!(self.is_active()?, "dyscod does not run");
        Ok(())
    }

    fn is_active(&self) -> Result<bool> {
        Ok(self.show("dyscod", "ActiveState")? == "active")
    }

    fn show(&self, unit: &str, property: &str) -> Result<String> {
        let words = ["systemctl", "show", "--value", "-p", property, unit];
        Ok(self.debian.run(&words)?.trim().to_owned())
    }

    /// Makes all sessions leave HAProxy.
    fn drain(&self, sessions: &Sessions) -> Result<()> {
        let words = ["dyscoctl", "drain", "haproxy.service", "--timeout", "60s"];
        self.debian.run(&words)?;
        sessions.go_on()
    }

    /// Checks that the new dyscod runs.
    fn is_upgraded(&self) -> Result<()> {
        let words = ["dpkg-query", "--show", "--showformat=${Version}", "dysco"];
        let version = self.debian.run(&words)?;
        ensure!(version.starts_with(VERSION), "dpkg has {version}");
        ensure!(self.is_active()?, "dyscod does not run after the upgrade");
        let pid = self.show("dyscod", "MainPID")?;
        let program = self
            .debian
            .run(&["readlink", &format!("/proc/{pid}/exe")])?;
        ensure!(
            !program.contains("deleted"),
            "the old dyscod runs: {program}"
        );
        Ok(())
    }

    /// Puts HAProxy under the shim by the drop-in.
    fn put_under_shim(&self) -> Result<()> {
        let (from, to) = (
            "/usr/share/dysco/haproxy-dysco.conf",
            "/etc/systemd/system/haproxy.service.d",
        );
        let install = ["install", "-D", "-m", "644", "-t", to, from];
        self.debian.run(&install)?;
        self.debian.run(&["systemctl", "daemon-reload"])?;
        self.debian.run(&["systemctl", "restart", "haproxy"])?;
        self.wait_listens()?;
        let pid = self.show("haproxy", "MainPID")?;
        let maps = self.debian.run(&["cat", &format!("/proc/{pid}/maps")])?;
        ensure!(
            maps.contains("/libdysco_splice_preload.so"),
            "HAProxy has no shim"
        );
        Ok(())
    }

    /// Gives dyscod the rights that services need, by the drop-in, and checks that a handler is
    /// confined in full.
    fn confine_handlers(&self) -> Result<()> {
        let (from, to) = (
            "/usr/share/dysco/dyscod-services.conf",
            "/etc/systemd/system/dyscod.service.d",
        );
        let install = ["install", "-D", "-m", "644", "-t", to, from];
        self.debian.run(&install)?;
        self.debian.run(&["systemctl", "daemon-reload"])?;
        self.debian.run(&["systemctl", "restart", "dyscod"])?;
        let run = ["systemd-run", "--unit", "served", "dyscoctl", "run"];
        let program = ["+count", "--", "sleep", "infinity"];
        self.debian.run(&[&run[..], &program].concat())?;
        let daemon = format!("/proc/{}/status", self.show("dyscod", "MainPID")?);
        wait::until("a confined handler", PATIENCE, || {
            let find = "grep -l -e '[-]-handler' /proc/[0-9]*/cmdline";
            let handler = self.debian.run(&["sh", "-c", find]).ok()?;
            let handler = handler.trim().strip_suffix("/cmdline")?;
            let handler = self.filters(&format!("{handler}/status"))?;
            // The handler has those of the unit, and its own.
            (handler > self.filters(&daemon)?).then_some(())
        })?;
        self.debian.run(&["systemctl", "stop", "served"])?;
        let log = ["journalctl", "--unit", "dyscod", "--output", "cat"];
        let log = self.debian.run(&log)?;
        ensure!(!log.contains("less confined"), "{log}");
        Ok(())
    }

    /// Returns the number of filters of system calls that a process has, by its status.
    fn filters(&self, status: &str) -> Option<u32> {
        let status = self.debian.run(&["cat", status]).ok()?;
        let line = |line: &str| Some(line.strip_prefix("Seccomp_filters:")?.trim().parse().ok());
        status.lines().find_map(line)?
    }
}
