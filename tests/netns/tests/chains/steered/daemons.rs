//! The daemons of the hosts: their configurations, and their lives.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use dysco_netns::fleet::{Daemon, built};
use dysco_netns::{Family, wait};

use super::{At, PATIENCE, Steered, left};

pub(super) fn program(name: &str) -> Result<String> {
    Ok(built(name)?.display().to_string())
}

impl Steered {
    /// Starts the daemons of these hosts at the same time.
    pub(super) fn start_those(&mut self, those: &[At]) -> Result<()> {
        let mut launched = Vec::new();
        for at in those {
            self.configure(*at)?;
            launched.push(self.fleet.launch(self.host(*at), &self.file(*at))?);
        }
        let launched = launched.into_iter().map(|daemon| daemon.ready());
        let started: Vec<_> = launched.collect::<Result<_>>()?;
        for (at, daemon) in those.iter().zip(started) {
            let place = self.place(*at);
            self.daemons[place] = Some(daemon);
        }
        Ok(())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn policy_file(&self) -> PathBuf {
        self.path("policy.toml")
    }

    fn file(&self, at: At) -> PathBuf {
        self.host(at).dir().join("dyscod.toml")
    }

    fn configure(&self, at: At) -> Result<()> {
        let own = [Family::V4, Family::V6].map(|family| at.address(family));
        let extra = match at {
            At::Client => format!("[chain]\npolicy = \"{}\"\n", self.policy_file().display()),
            At::Proxy => left::DECLARED.to_owned(),
            _ => String::new(),
        };
        let written = self
            .fleet
            .prepare_host(self.host(at), &own, &["eth0"], &extra);
        written.map(drop)
    }

    /// Starts a host's `dyscod`, which may fail on purpose.
    pub(super) fn start(&self, at: At) -> Result<Daemon> {
        self.fleet.start_by(self.host(at), &self.file(at))
    }

    /// Sets the faults of a host's daemon and its successors.
    pub(crate) fn set_faults(&self, at: At, words: &str) -> Result<()> {
        let dir = self.host(at).dir();
        let (file, new) = (dir.join("faults"), dir.join("faults.new"));
        fs::write(&new, words)?;
        fs::rename(&new, &file).context("failed to write the faults")
    }

    /// Waits until a host's `dyscod` has died.
    pub(crate) fn wait_dead(&mut self, at: At) -> Result<()> {
        wait::until("dyscod to die", PATIENCE, || {
            self.ctl(at, &["status"]).is_err().then_some(())
        })?;
        let place = self.place(at);
        drop(self.daemons[place].take());
        Ok(())
    }

    /// Ends a host's `dyscod` as a crash would.
    pub(crate) fn kill(&mut self, at: At) -> Result<()> {
        let place = self.place(at);
        drop(self.daemons[place].take());
        Ok(())
    }

    /// Starts a host's `dyscod` again.
    pub(crate) fn restart(&mut self, at: At) -> Result<()> {
        let daemon = self.start(at)?;
        let place = self.place(at);
        self.daemons[place] = Some(daemon);
        Ok(())
    }
}
