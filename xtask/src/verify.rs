//! `cargo xtask verify`.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::setup::Need;
use crate::{build, setup, shell};

/// Explore the session protocol with a model checker.
#[derive(Args)]
pub(crate) struct Verify {
    /// Arguments of the check: names of configurations, --within SECONDS, --list, --json
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Verify {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<()> {
        setup::ensure(Need::Build)?;
        let quiet = self.arguments.iter().any(|a| a == "--json");
        let folder = build::release(&["dysco-verify"], quiet)?;
        shell::run(Command::new(folder.join("dysco-verify")).args(&self.arguments))
    }
}
