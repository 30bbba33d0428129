//! `cargo xtask bench`.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::{build, setup, shell};

/// Measure every published figure again.
#[derive(Args)]
pub struct Bench {
    /// For the benchmark: names, --quick, --list, --json; or compare BEFORE AFTER
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Bench {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let has = |word: &str| self.arguments.iter().any(|a| a == word);
        let quiet = has("--json");
        // To list or compare is not to measure.
        if !has("--list") && !has("compare") {
            dysco_netns::require_root()?;
            setup::ensure()?;
            build::programs(quiet)?;
        }
        let mut cargo = shell::cargo();
        cargo.args(["build", "--release", "-p", "dysco-bench"]);
        shell::run(cargo.args(quiet.then_some("--quiet")))?;
        let program = shell::target()?.join("release/dysco-bench");
        shell::run(Command::new(program).args(&self.arguments))
    }
}
