//! etcd on a host, with TLS.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::fleet::Fleet;
use crate::{Host, Process, Program};

/// Port of etcd for its clients.
const PORT: u16 = 2379;

/// A member of etcd that accepts hosts of a fleet alone. It has a certificate of the fleet.
pub struct Etcd<'a> {
    host: &'a Host,
    address: IpAddr,
    keys: PathBuf,
    process: Process,
}

impl<'a> Etcd<'a> {
    /// Starts etcd on a host with this address. It continues with the data of a former etcd there.
    pub fn start(fleet: &Fleet, host: &'a Host, address: IpAddr) -> Result<Etcd<'a>> {
        fleet.prepare_host(host, &[address], &["eth0"], "")?;
        let keys = host.dir().join("pki");
        let process = host.spawn(program(host, address, &keys))?;
        let mut etcd = Etcd {
            host,
            address,
            keys,
            process,
        };
        etcd.wait()?;
        Ok(etcd)
    }

    /// URL for clients.
    pub fn url(&self) -> String {
        url(self.address)
    }

    /// Runs `etcdctl` on etcd's host, with these words. Returns its output.
    pub fn ctl(&self, words: &[&str]) -> Result<String> {
        self.ctl_with(words, "")
    }

    /// Puts a value.
    pub fn put(&self, key: &str, value: &str) -> Result<()> {
        self.ctl_with(&["put", key], value).map(drop)
    }

    /// Kills etcd, as a crash would.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill().map(drop)
    }

    /// Starts etcd again, with its data.
    pub fn restart(&mut self) -> Result<()> {
        self.process = self
            .host
            .spawn(program(self.host, self.address, &self.keys))?;
        self.wait()
    }

    fn wait(&mut self) -> Result<()> {
        let (host, words) = (self.host, self.words(&["endpoint", "health"]));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let healthy = || host.ran("etcdctl", &words).is_ok_and(|r| r.code == Some(0));
        self.process.wait_ready("etcd to answer", healthy)
    }

    fn ctl_with(&self, words: &[&str], input: &str) -> Result<String> {
        let words = self.words(words);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.host.input("etcdctl", &words, input)
    }

    fn words(&self, words: &[&str]) -> Vec<String> {
        let file = |name: &str| self.keys.join(name).display().to_string();
        let own = [
            format!("--endpoints={}", self.url()),
            format!("--cacert={}", file("ca.crt")),
            format!("--cert={}", file("host.crt")),
            format!("--key={}", file("host.key")),
        ];
        let words = words.iter().map(|word| (*word).to_owned());
        own.into_iter().chain(words).collect()
    }
}

fn url(address: IpAddr) -> String {
    format!("https://{}", std::net::SocketAddr::new(address, PORT))
}

fn program(host: &Host, address: IpAddr, keys: &Path) -> Program {
    let url = url(address);
    Program::new("etcd")
        .arg("--data-dir")
        .arg(host.dir().join("etcd"))
        .args(["--listen-client-urls", &url])
        .args(["--advertise-client-urls", &url])
        .arg("--client-cert-auth")
        .arg("--cert-file")
        .arg(keys.join("host.crt"))
        .arg("--key-file")
        .arg(keys.join("host.key"))
        .arg("--trusted-ca-file")
        .arg(keys.join("ca.crt"))
}
