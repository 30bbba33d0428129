//! Policies on the client's host.

use std::fs;

use anyhow::{Context, Result};
use dysco_netns::{Family, wait};

use super::{At, PATIENCE, PORT, Steered};

/// Returns a policy that gives all sessions this chain.
pub(crate) fn rule(family: Family, chain: &[At]) -> String {
    let server = At::Server.address(family);
    let chain: Vec<_> = chain.iter().map(|at| at.address(family)).collect();
    let chain: Vec<_> = chain.iter().map(ToString::to_string).collect();
    format!("[[rule]]\ndestination = \"{server}\"\nports = [{PORT}]\nchain = {chain:?}\n")
}

impl Steered {
    /// Waits until sessions can be steered through this chain.
    pub(crate) fn wait_neighbours(&self, chain: &[At]) -> Result<()> {
        // Each host has two addresses. Hosts of the chain know the client's host, which introduces
        // each to the next; the last also has both its neighbours.
        let all = chain.len() as u64;
        let last = chain.last().map(|fw| (*fw, 2 * (all + 1).min(3)));
        let others = chain.iter().map(|fw| (*fw, 4));
        for (at, least) in others.chain(last).chain([(At::Client, 2 * all)]) {
            wait::until("neighbours to have keys", PATIENCE, || {
                let status = self.json(at, &["status"]).ok()?;
                let now = status["counters"]["chain_neighbours"].as_u64()?;
                (now >= least).then_some(())
            })
            .with_context(|| self.logs())?;
        }
        Ok(())
    }

    /// Puts a policy in force.
    pub(crate) fn apply_policy(&self, text: &str) -> Result<()> {
        let file = self.path("other.toml");
        fs::write(&file, text).context("failed to write a policy")?;
        let words = ["policy", "apply", &file.display().to_string()];
        self.ctl(At::Client, &words).map(drop)
    }

    /// Writes the policy's file while no daemon runs.
    pub(crate) fn write_policy(&self, text: &str) -> Result<()> {
        fs::write(self.policy_file(), text).context("failed to write the policy")
    }
}
