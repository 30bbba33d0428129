//! Commands to the daemons of the lab.

use anyhow::{Context, Result, ensure};
use dysco_netns::Ran;
use serde_json::{Value, json};

use super::daemons::program;
use super::{At, Steered};

impl Steered {
    pub(crate) fn ctl(&self, at: At, words: &[&str]) -> Result<String> {
        self.host(at).output(&program("dyscoctl")?, words)
    }

    pub(crate) fn try_ctl(&self, at: At, words: &[&str]) -> Result<Ran> {
        self.host(at).ran(&program("dyscoctl")?, words)
    }

    pub(crate) fn json(&self, at: At, words: &[&str]) -> Result<Value> {
        let text = self.ctl(at, &[words, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))
    }

    /// Returns the JSON of a command. A nonzero exit code is no error.
    pub(crate) fn try_json(&self, at: At, words: &[&str]) -> Result<Value> {
        let ran = self.try_ctl(at, &[words, &["-o", "json"]].concat())?;
        serde_json::from_str(&ran.stdout).with_context(|| format!("no JSON: {ran:?}"))
    }

    /// Gives one session another chain. Returns the report, for any outcome.
    pub(crate) fn reconfigure(&self, session: &str, chain: &[At], more: &[&str]) -> Result<Value> {
        self.reconfigure_on(At::Client, session, chain, more)
    }

    /// Gives one session another chain, by a request on any host.
    pub(crate) fn reconfigure_on(
        &self,
        at: At,
        session: &str,
        chain: &[At],
        more: &[&str],
    ) -> Result<Value> {
        let hosts: Vec<_> = chain.iter().map(|at| self.ip(*at)).collect();
        let hosts = hosts.join(",");
        let words = ["reconfigure", session, "--chain", &hosts, "--wait"];
        let done = self.try_json(at, &[&words[..], more].concat())?;
        Ok(done["changes"][0].clone())
    }

    /// Gives one session another chain, which must succeed.
    pub(crate) fn update_chain(&self, session: &str, chain: &[At]) -> Result<Value> {
        let done = self.reconfigure(session, chain, &[])?;
        ensure!(
            done["outcome"] == "changed",
            "{session} to {chain:?}: {done:#}\n{}",
            self.logs()
        );
        Ok(done)
    }

    /// Sessions that a host lists.
    pub(crate) fn sessions(&self, at: At) -> Result<Vec<Value>> {
        let all = self.json(at, &["sessions"])?;
        Ok(all.as_array().cloned().unwrap_or_default())
    }

    /// Replaces one firewall by another in the only session, with its state.
    pub(crate) fn replace_with_state(&self, old: At, new: At) -> Result<()> {
        self.replace_with_state_on(At::Client, old, new)
    }

    /// Replaces one firewall by another with its state, by a request on any host.
    pub(crate) fn replace_with_state_on(&self, at: At, old: At, new: At) -> Result<()> {
        let done = self.replace_on(at, old, new, "conntrack")?;
        ensure!(done["outcome"] == "changed", "{done:#}\n{}", self.logs());
        Ok(())
    }

    /// Replaces one firewall by another, with state of these kinds. Returns the report, for any
    /// outcome.
    pub(crate) fn replace_on(&self, at: At, old: At, new: At, kinds: &str) -> Result<Value> {
        let (old, new) = (self.ip(old), self.ip(new));
        let words = ["replace-middlebox", &old, "--with", &new, "--wait"];
        let done = self.try_json(at, &[&words[..], &["--state", kinds]].concat())?;
        Ok(done["changes"][0].clone())
    }

    pub(crate) fn chain_of(&self, session: &str) -> Result<Value> {
        let (local, _) = session.split_once('>').context("no session's name")?;
        let all = self.sessions(At::Client)?;
        let found = all.iter().find(|s| s["local"] == local);
        let chain = found.with_context(|| format!("no {session} in {all:#?}"))?["chain"].clone();
        Ok(if chain.is_null() { json!([]) } else { chain })
    }
}
