//! The daemons of the hosts: their configurations, and their lives.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use dysco_netns::fleet::built;
use dysco_netns::{Family, Process, Program, wait};

use super::{At, PATIENCE, Steered, left};

pub(super) fn program(name: &str) -> Result<String> {
    Ok(built(name)?.display().to_string())
}

impl Steered {
    pub(super) fn start_daemons(&mut self, those: &[At], policy: &str) -> Result<()> {
        let authority = self.authority();
        let words = ["pki", "init", "--dir", &authority];
        self.router.output(&program("dyscoctl")?, &words)?;
        self.write_policy(policy)?;
        self.daemons.resize_with(self.all.len(), || None);
        self.start_those(those)
    }

    pub(super) fn start_those(&mut self, those: &[At]) -> Result<()> {
        for at in those {
            self.configure(*at)?;
            let (place, daemon) = (self.place(*at), self.start(*at)?);
            self.daemons[place] = Some(daemon);
        }
        Ok(())
    }

    fn authority(&self) -> String {
        self.path("pki").display().to_string()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        let dir = self.dir.as_ref().map(|dir| dir.path().to_owned());
        dir.unwrap_or_default().join(name)
    }

    pub(super) fn policy_file(&self) -> PathBuf {
        self.path("policy.toml")
    }

    fn configure(&self, at: At) -> Result<()> {
        let (host, authority) = (self.host(at), self.authority());
        let keys = host.dir().join("pki").display().to_string();
        let own = [Family::V4, Family::V6].map(|family| at.address(family).to_string());
        let mut words = vec!["pki", "issue", "--dir", &authority, "--name", at.name()];
        words.extend(["--out", &keys, "--address", &own[0], "--address", &own[1]]);
        host.output(&program("dyscoctl")?, &words)?;
        let policy = match at {
            At::Client => format!("[chain]\npolicy = \"{}\"\n", self.policy_file().display()),
            At::Proxy => left::DECLARED.to_owned(),
            _ => String::new(),
        };
        let text = format!(
            "[host]\naddresses = {own:?}\ninterfaces = [\"eth0\"]\n\n\
             [control]\npki_dir = \"{keys}\"\n\n{policy}"
        );
        fs::write(host.dir().join("dyscod.toml"), text).context("failed to write a configuration")
    }

    /// Starts a host's `dyscod`, which may fail on purpose.
    pub(super) fn start(&self, at: At) -> Result<Process> {
        let host = self.host(at);
        let faults = host.dir().join("faults").display().to_string();
        let program_ = Program::new(program("dyscod")?)
            .arg("--config")
            .arg(host.dir().join("dyscod.toml"))
            .env("DYSCOD_FAULTS", format!("@{faults}"));
        let mut daemon = host.spawn(program_)?;
        daemon.wait_ready("dyscod to answer", || self.ctl(at, &["status"]).is_ok())?;
        Ok(daemon)
    }

    /// Sets the faults of a host's daemon and its successors.
    pub fn set_faults(&self, at: At, words: &str) -> Result<()> {
        let dir = self.host(at).dir();
        let (file, new) = (dir.join("faults"), dir.join("faults.new"));
        fs::write(&new, words)?;
        fs::rename(&new, &file).context("failed to write the faults")
    }

    /// Waits until a host's `dyscod` has died.
    pub fn wait_dead(&mut self, at: At) -> Result<()> {
        wait::until("dyscod to die", PATIENCE, || {
            self.ctl(at, &["status"]).is_err().then_some(())
        })?;
        let place = self.place(at);
        drop(self.daemons[place].take());
        Ok(())
    }

    /// Ends a host's `dyscod` as a crash would.
    pub fn kill(&mut self, at: At) -> Result<()> {
        let place = self.place(at);
        drop(self.daemons[place].take());
        Ok(())
    }

    /// Starts a host's `dyscod` again.
    pub fn restart(&mut self, at: At) -> Result<()> {
        let daemon = self.start(at)?;
        let place = self.place(at);
        self.daemons[place] = Some(daemon);
        Ok(())
    }
}
