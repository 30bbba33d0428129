//! `dyscod` on the hosts of a lab, with keys of one authority.

use std::fs;
use std::net::IpAddr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::link::{Family, Role};
use crate::{Host, Lab, Line, Process, Program, Ran, Star};

/// Finds a program or library of this workspace: in the folder that `DYSCO_BIN_DIR` names, or in
/// the folder of this program.
pub fn built(name: &str) -> Result<PathBuf> {
    let chosen = std::env::var_os("DYSCO_BIN_DIR").map(PathBuf::from);
    let own = std::env::current_exe().context("failed to find this program's own path")?;
    let folders = chosen
        .into_iter()
        .chain(own.ancestors().skip(1).take(2).map(Path::to_path_buf));
    let mut files = folders.map(|folder| folder.join(name));
    files.find(|file| file.exists()).with_context(|| {
        format!("{name} is not built: run `cargo xtask build`, or set DYSCO_BIN_DIR to its folder")
    })
}

/// Part of a configuration: the programs for sessions with handlers are loaded at the start, as by
/// default. Most daemons of a lab never need them, and there are thousands of daemons.
pub const PRELOADED: &str = "[services]\npreload = true\n";

/// The keys of a lab, and the folder with the files of `dyscod`.
pub struct Fleet {
    dir: PathBuf,
    dyscod: PathBuf,
    dyscoctl: PathBuf,
    faults: bool,
}

/// A running `dyscod`.
pub struct Daemon {
    /// Process of `dyscod`.
    pub process: Process,
}

/// A `dyscod` that may not answer yet.
pub struct Starting<'a> {
    process: Process,
    notices: UnixDatagram,
    host: &'a Host,
    fleet: &'a Fleet,
}

impl Starting<'_> {
    /// Waits until the daemon answers.
    pub fn ready(mut self) -> Result<Daemon> {
        let notices = &self.notices;
        self.process
            .wait_ready("dyscod to be ready", || says_ready(notices))?;
        let (fleet, host) = (self.fleet, self.host);
        self.process.wait_ready("dyscod to answer", || {
            fleet.dyscoctl(host, &["status"]).is_ok()
        })?;
        Ok(Daemon {
            process: self.process,
        })
    }
}

/// Number of times that the daemon of a host, and its predecessors, have lost this message or
/// command on purpose.
pub fn lost(host: &Host, name: &str) -> Result<usize> {
    let log = fs::read_to_string(host.dir().join("dyscod.log")).context("failed to read a log")?;
    Ok(log.matches(&format!(" {name} is lost on purpose")).count())
}

impl Fleet {
    /// Creates an authority for the lab, with the programs that were built with this one.
    pub fn new(lab: &Lab) -> Result<Fleet> {
        let dyscod = built("dyscod")?;
        Fleet::with_programs(lab, dyscod.parent().unwrap_or(Path::new(".")))
    }

    /// Creates an authority for the lab, with the programs of a folder.
    pub fn with_programs(lab: &Lab, programs: &Path) -> Result<Fleet> {
        Fleet::with_authority(lab, programs, "pki")
    }

    /// Creates a second authority in the lab. Its hosts are strangers to the hosts of the first.
    pub fn of_another_authority(lab: &Lab) -> Result<Fleet> {
        let dyscod = built("dyscod")?;
        Fleet::with_authority(lab, dyscod.parent().unwrap_or(Path::new(".")), "other")
    }

    /// Creates an authority for a line.
    pub fn of_line(line: &Line) -> Result<Fleet> {
        Fleet::new_in(line.dir().join("pki"), line.client())
    }

    /// Creates an authority in a folder, by a command on any host, with the programs that were
    /// built with this one.
    pub fn new_in(dir: PathBuf, host: &Host) -> Result<Fleet> {
        let dyscod = built("dyscod")?;
        Fleet::in_folder(dir, host, dyscod.parent().unwrap_or(Path::new(".")))
    }

    /// Creates an authority for a star, with the programs of a folder.
    pub fn of_star(star: &Star, programs: &Path) -> Result<Fleet> {
        Fleet::in_folder(star.dir().join("pki"), star.client(), programs)
    }

    fn with_authority(lab: &Lab, programs: &Path, name: &str) -> Result<Fleet> {
        Fleet::in_folder(lab.dir().join(name), &lab.router, programs)
    }

    /// Creates an authority in a folder, by a command on any host.
    pub fn in_folder(dir: PathBuf, host: &Host, programs: &Path) -> Result<Fleet> {
        let fleet = Fleet {
            dir,
            dyscod: programs.join("dyscod"),
            dyscoctl: programs.join("dyscoctl"),
            faults: false,
        };
        fleet.pki(host, &["init", "--dir", &fleet.dir.to_string_lossy()])?;
        Ok(fleet)
    }

    fn pki(&self, host: &Host, words: &[&str]) -> Result<()> {
        let program = self.dyscoctl.to_string_lossy();
        let mut all = vec!["pki"];
        all.extend(words);
        host.output(&program, &all).map(drop)
    }

    /// Creates keys for a host's addresses, and writes its configuration with `extra` appended.
    /// Returns the configuration's path.
    pub fn prepare(&self, lab: &Lab, role: Role, extra: &str) -> Result<PathBuf> {
        let addresses = [Family::V4, Family::V6].map(|family| role.address(family));
        self.prepare_host(lab.host(role), &addresses, &["eth0"], extra)
    }

    /// Creates keys for these addresses of a host of any lab, and writes its configuration with
    /// `extra` appended. Returns the configuration's path.
    pub fn prepare_host(
        &self,
        host: &Host,
        addresses: &[IpAddr],
        links: &[&str],
        extra: &str,
    ) -> Result<PathBuf> {
        let keys = host.dir().join("pki");
        let (authority, out) = (self.dir.to_string_lossy(), keys.to_string_lossy());
        let addresses: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
        let name = host.name();
        let mut words = vec!["issue", "--dir", &authority, "--name", name, "--out", &out];
        words.extend(addresses.iter().flat_map(|a| ["--address", a]));
        if !keys.exists() {
            self.pki(host, &words)?;
        }
        let file = host.dir().join("dyscod.toml");
        // See `PRELOADED`.
        let services = match extra.contains("[services]") {
            true => "",
            false => "[services]\npreload = false\n\n",
        };
        let text = format!(
            "[host]\naddresses = {addresses:?}\ninterfaces = {links:?}\n\n\
             {services}[control]\npki_dir = \"{out}\"\n\n{extra}\n"
        );
        fs::write(&file, text).with_context(|| format!("failed to write {}", file.display()))?;
        Ok(file)
    }

    /// Permits daemons that are started from now on to fail on purpose, as [`Fleet::set_faults`]
    /// requests.
    pub fn with_faults(mut self) -> Fleet {
        self.faults = true;
        self
    }

    /// Sets the faults of a running daemon and its successors: words of `DYSCOD_FAULTS`. They
    /// replace the former faults.
    pub fn set_faults(&self, host: &Host, words: &str) -> Result<()> {
        let (file, new) = (faults(host), host.dir().join("faults.new"));
        fs::write(&new, words)
            .and_then(|()| fs::rename(&new, &file))
            .with_context(|| format!("failed to write {}", file.display()))
    }

    /// Starts `dyscod` on a host and waits until it answers.
    pub fn start(&self, lab: &Lab, role: Role, extra: &str) -> Result<Daemon> {
        let file = self.prepare(lab, role, extra)?;
        self.restart(lab, role, &file)
    }

    /// Starts `dyscod` on a host that has keys and a configuration.
    pub fn restart(&self, lab: &Lab, role: Role, file: &Path) -> Result<Daemon> {
        self.start_by(lab.host(role), file)
    }

    /// Starts `dyscod` on a host of a line and waits until it answers.
    pub fn start_on(&self, line: &Line, at: usize, extra: &str) -> Result<Daemon> {
        let host = &line.hosts()[at];
        let file = self.prepare_host(host, &[line.address(at)], line.links(at), extra)?;
        self.start_by(host, &file)
    }

    /// Starts `dyscod` on one of a star's hosts and waits until it answers.
    pub fn start_around(&self, star: &Star, at: usize, extra: &str) -> Result<Daemon> {
        let host = &star.hosts()[at];
        let file = self.prepare_host(host, &[star.address(at)], &["eth0"], extra)?;
        self.start_by(host, &file)
    }

    /// Starts `dyscod` on hosts of a lab at the same time, and waits until all of them answer.
    pub fn start_all(
        &self,
        lab: &Lab,
        daemons: impl IntoIterator<Item = (Role, String)>,
    ) -> Result<Vec<Daemon>> {
        let launched: Vec<_> = daemons
            .into_iter()
            .map(|(role, extra)| self.launch(lab.host(role), &self.prepare(lab, role, &extra)?))
            .collect::<Result<_>>()?;
        launched.into_iter().map(Starting::ready).collect()
    }

    /// Starts `dyscod` on a host of any lab that has keys and a configuration, and waits until it
    /// answers.
    pub fn start_by(&self, host: &Host, file: &Path) -> Result<Daemon> {
        self.launch(host, file)?.ready()
    }

    /// Starts `dyscod` on a host of any lab that has keys and a configuration. Does not wait for
    /// it, so that several can start at the same time.
    pub fn launch<'a>(&'a self, host: &'a Host, file: &Path) -> Result<Starting<'a>> {
        self.launch_by(host, file, |program| program)
    }

    /// Starts `dyscod` as [`Fleet::launch`] does, after `wrap` has changed its command.
    pub fn launch_by<'a>(
        &'a self,
        host: &'a Host,
        file: &Path,
        wrap: impl FnOnce(Program) -> Program,
    ) -> Result<Starting<'a>> {
        let mut program = Program::new(&self.dyscod).arg("--config").arg(file);
        if self.faults {
            let file = faults(host).to_string_lossy().into_owned();
            program = program.env("DYSCOD_FAULTS", format!("@{file}"));
        }
        let (notices, name) = notices(host)?;
        Ok(Starting {
            process: host.spawn(wrap(program.env("NOTIFY_SOCKET", name)))?,
            notices,
            host,
            fleet: self,
        })
    }

    /// Path of `dyscoctl`.
    pub fn dyscoctl_path(&self) -> &Path {
        &self.dyscoctl
    }

    /// Runs `dyscoctl` on a host to its end. Returns its output.
    pub fn dyscoctl(&self, host: &Host, words: &[&str]) -> Result<String> {
        host.output(&self.dyscoctl.to_string_lossy(), words)
    }

    /// Runs `dyscoctl` and returns its result. A nonzero exit code is no error: exit codes have
    /// meanings.
    pub fn try_dyscoctl(&self, host: &Host, words: &[&str]) -> Result<Ran> {
        host.ran(&self.dyscoctl.to_string_lossy(), words)
    }

    /// Runs `dyscoctl … -o json`. Returns its output, parsed.
    pub fn json(&self, host: &Host, words: &[&str]) -> Result<serde_json::Value> {
        let mut all = words.to_vec();
        all.extend(["-o", "json"]);
        let text = self.dyscoctl(host, &all)?;
        serde_json::from_str(&text).with_context(|| format!("dyscoctl did not print JSON: {text}"))
    }

    /// Starts `dyscoctl monitor` on a host. Its log has the events there in JSON.
    pub fn monitor(&self, host: &Host) -> Result<Process> {
        let program = Program::new(&self.dyscoctl).args(["monitor", "-o", "json"]);
        host.spawn(program.named("monitor"))
    }

    /// Returns the program under the shim: `dyscoctl run -- PROGRAM…`.
    pub fn under_shim(&self, program: Program) -> Program {
        program.behind(&self.dyscoctl, &["run", "--"])
    }
}

/// Creates the socket on which a daemon notifies the service manager. Returns the socket and its
/// name. Polling with `dyscoctl` while the programs load would take a tenth of a processor.
fn notices(host: &Host) -> Result<(UnixDatagram, String)> {
    let path = host.dir().join("notify");
    // The file may remain from the previous daemon.
    let _ = fs::remove_file(&path);
    let socket = UnixDatagram::bind(&path)
        .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
        .with_context(|| format!("failed to listen on {}", path.display()))?;
    Ok((socket, path.to_string_lossy().into_owned()))
}

/// True if the daemon has reported that it is ready.
fn says_ready(notices: &UnixDatagram) -> bool {
    let mut notice = [0; 256];
    let said = notices.recv(&mut notice).map(|len| notice[..len].to_vec());
    said.is_ok_and(|said| said.split(|b| *b == b'\n').any(|line| line == b"READY=1"))
}

fn faults(host: &Host) -> PathBuf {
    host.dir().join("faults")
}
