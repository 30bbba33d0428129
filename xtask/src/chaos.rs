//! `cargo xtask chaos`.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::setup::Need;
use crate::{build, setup, shell};

/// Look for faults in random networks, under random changes and kills.
#[derive(Args)]
pub(crate) struct Chaos {
    /// Arguments of the runs: --seconds N, --seed S, --seeds COUNT, --jobs N, --plan FILE,
    /// --control, --shrink, --patience SECONDS, --reports, --show, --keep FOLDER, --json
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Chaos {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<()> {
        dysco_netns::require_root()?;
        setup::ensure(Need::Hosts)?;
        let quiet = self.arguments.iter().any(|a| a == "--json");
        let folder = build::programs_and("dysco-chaos", quiet)?;
        shell::run(Command::new(folder.join("dysco-chaos")).args(&self.arguments))
    }
}
