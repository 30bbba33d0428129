//! Real services with long sessions: PostgreSQL and OpenSSH.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use crate::dialogue::Dialogue;
use crate::{Host, Process, Program, wait};

/// Folder of the versions of PostgreSQL in Debian.
const POSTGRES: &str = "/usr/lib/postgresql";
/// Folder in memory, visible only to this host. It must not belong to root.
const DATA: &str = "/run/postgres/data";
const PATIENCE: Duration = Duration::from_secs(30);

/// A running PostgreSQL that trusts every client.
pub struct Postgres {
    process: Process,
}

impl Postgres {
    /// Creates a cluster and serves it.
    pub fn start(host: &Host, at: SocketAddr) -> Result<Postgres> {
        let bin = newest_postgres()?;
        let program = |name: &str| bin.join(name).to_string_lossy().into_owned();
        let words = ["-d", "-o", "postgres", "-m", "700", "/run/postgres", DATA];
        host.output("install", &words)?;
        let initdb = [
            &AS_POSTGRES[..],
            &[&program("initdb"), "-D", DATA, "-A", "trust", "--no-sync"],
        ];
        host.output("setpriv", &initdb.concat())?;
        let (address, port) = (at.ip().to_string(), at.port().to_string());
        let sockets = "unix_socket_directories=";
        let serve = [
            &AS_POSTGRES[..],
            &["--pdeathsig", "KILL"],
            &[
                &program("postgres"),
                "-D",
                DATA,
                "-h",
                &address,
                "-p",
                &port,
            ],
            &["-c", "fsync=off", "-c", "ssl=off", "-c", sockets],
        ];
        let open = "host all all 0.0.0.0/0 trust\nhost all all ::/0 trust\n";
        host.run(move || fs::write(format!("{DATA}/pg_hba.conf"), open))
            .context("failed to let clients in")?;
        let serve = Program::new("setpriv")
            .args(serve.concat())
            .named("postgres");
        let mut process = host.spawn(serve)?;
        process.wait_ready("PostgreSQL to listen", || host.listens(at.port()))?;
        Ok(Postgres { process })
    }

    /// Starts a client on a host, with one session.
    pub fn client(host: &Host, to: SocketAddr) -> Result<Dialogue> {
        let (address, port) = (to.ip().to_string(), to.port().to_string());
        let words = [
            "-X", "-q", "-A", "-t", "-h", &address, "-p", &port, "-U", "postgres", "postgres",
        ];
        Dialogue::start(host, Program::new("psql").args(words))
    }
}

impl Drop for Postgres {
    /// Asks the server to end: its children end with it only in this case.
    fn drop(&mut self) {
        let _ = self.process.signal(Signal::SIGINT);
        let _ = wait::until("PostgreSQL to end", PATIENCE, || {
            (!self.process.runs()).then_some(())
        });
    }
}

const AS_POSTGRES: [&str; 3] = ["--reuid=postgres", "--regid=postgres", "--clear-groups"];

fn newest_postgres() -> Result<PathBuf> {
    let what = || format!("{POSTGRES} has none: run `cargo xtask setup`, or install postgresql");
    let versions = fs::read_dir(POSTGRES).with_context(what)?.flatten();
    let bin = versions.map(|version| version.path().join("bin"));
    let usable = bin.filter(|bin| bin.join("initdb").exists());
    usable.max().with_context(what)
}

/// A running OpenSSH server, with a key that grants access.
pub struct Ssh {
    _process: Process,
    key: PathBuf,
}

impl Ssh {
    /// Serves at an address.
    pub fn start(host: &Host, at: SocketAddr) -> Result<Ssh> {
        let file = |name: &str| host.dir().join(name);
        for name in ["ssh-host", "ssh-user"] {
            let key = file(name).to_string_lossy().into_owned();
            host.output("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &key])?;
        }
        host.run(|| fs::create_dir_all("/run/sshd"))
            .context("failed to make sshd's folder")?;
        let text = format!(
            "ListenAddress {at}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
             PermitRootLogin yes\nUsePAM no\nMaxStartups 1000\nForceCommand cat\n",
            file("ssh-host").display(),
            file("ssh-user.pub").display(),
        );
        fs::write(file("sshd.conf"), text).context("failed to write sshd's configuration")?;
        // sshd starts itself again for each session, by its full path.
        let serve = Program::new("/usr/sbin/sshd").args(["-D", "-e", "-f"]);
        let mut process = host.spawn(serve.arg(file("sshd.conf")))?;
        process.wait_ready("sshd to listen", || host.listens(at.port()))?;
        Ok(Ssh {
            _process: process,
            key: file("ssh-user"),
        })
    }

    /// Starts a client on a host, with one session, whose program echoes its input.
    pub fn client(&self, host: &Host, to: SocketAddr) -> Result<Dialogue> {
        let options = "-oStrictHostKeyChecking=no -oUserKnownHostsFile=/dev/null \
                       -oLogLevel=ERROR -oBatchMode=yes -oIPQoS=none -F/dev/null -T";
        let program = Program::new("ssh")
            .args(options.split_whitespace())
            .args(["-p", &to.port().to_string(), "-i"])
            .arg(&self.key)
            .arg(format!("root@{}", to.ip()));
        Dialogue::start(host, program)
    }
}
