//! `cargo xtask verify`.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::{setup, shell};

/// Explore the session protocol with a model checker.
#[derive(Args)]
pub struct Verify {
    /// For the check: names of configurations, --within SECONDS, --list, --json
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Verify {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        setup::ensure()?;
        let quiet = self.arguments.iter().any(|a| a == "--json");
        let mut cargo = shell::cargo();
        cargo.args(["build", "--release", "-p", "dysco-verify"]);
        shell::run(cargo.args(quiet.then_some("--quiet")))?;
        let program = shell::target()?.join("release/dysco-verify");
        shell::run(Command::new(program).args(&self.arguments))
    }
}
