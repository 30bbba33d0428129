//! Packages of the distribution, without their services.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::shell;

/// Packages with services that would run from the next start of the machine on.
const SERVICES: &[(&str, &str)] = &[
    ("haproxy", "haproxy.service"),
    ("nginx-light", "nginx.service"),
    ("postgresql", "postgresql.service"),
    ("openssh-server", "ssh.service"),
    ("prometheus", "prometheus.service"),
    ("etcd-server", "etcd.service"),
    ("podman", "podman.service"),
    ("podman", "podman.socket"),
    ("podman", "podman-restart.service"),
    ("podman", "podman-auto-update.timer"),
];

/// Installs packages.
pub(super) fn install_packages(packages: &[&str]) -> Result<()> {
    eprintln!("missing: {}; asking apt-get", packages.join(" "));
    let Some(apt) = shell::find("apt-get") else {
        bail!("there is no apt-get here: install these by hand");
    };
    let _quiet = NoServices::begin()?;
    let call = |words: &[&str]| {
        let mut command = Command::new(&apt);
        command
            .args(words)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null());
        shell::run(to_stderr(&mut command))
    };
    // Outdated lists name packages that no longer exist.
    call(&["update", "-qq"])?;
    let mut words = vec!["install", "-qq", "-y", "--no-install-recommends"];
    words.extend(packages);
    call(&words)?;
    disable_services(packages);
    Ok(())
}

/// Disables the services of the packages that were just installed, because only the programs are
/// needed. A machine without systemd has none.
fn disable_services(packages: &[&str]) {
    let Some(systemctl) = shell::find("systemctl") else {
        return;
    };
    let new = SERVICES.iter().filter(|(p, _)| packages.contains(p));
    let units: Vec<_> = new.map(|(_, unit)| *unit).collect();
    if units.is_empty() {
        return;
    }
    let mut disable = Command::new(systemctl);
    disable.args(["disable", "--quiet"]).args(&units);
    match shell::run(to_stderr(&mut disable)) {
        Ok(()) => eprintln!("not enabled as services: {}", units.join(" ")),
        Err(error) => eprintln!("{} may start with the machine: {error:#}", units.join(" ")),
    }
}

/// Sends a command's output to standard error, where it does not mix with results.
pub(super) fn to_stderr(command: &mut Command) -> &mut Command {
    command.stdout(std::io::stderr())
}

/// Prevents the packages from starting their services as long as this value lives: the proxy and
/// the web server are needed in namespaces only.
struct NoServices {
    made: bool,
}

const POLICY: &str = "/usr/sbin/policy-rc.d";
const NONE: &str = "#!/bin/sh\n# of cargo xtask setup, while it installs\nexit 101\n";

impl NoServices {
    fn begin() -> Result<NoServices> {
        // A killed command may have left the file.
        if fs::read_to_string(POLICY).is_ok_and(|text| text == NONE) {
            return Ok(NoServices { made: true });
        }
        let options = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o755)
            .open(POLICY);
        let Ok(mut file) = options else {
            return Ok(NoServices { made: false });
        };
        let write = |file: &mut File| std::io::Write::write_all(file, NONE.as_bytes());
        write(&mut file).with_context(|| format!("failed to write {POLICY}"))?;
        Ok(NoServices { made: true })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.made {
            let _ = fs::remove_file(POLICY);
        }
    }
}
