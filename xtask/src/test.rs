//! `cargo xtask test`.

use anyhow::Result;
use clap::Args;

use crate::{build, setup, shell};

/// Run all tests.
#[derive(Args)]
pub struct Test {
    /// For cargo nextest run: a filter, or options after --
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Test {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        dysco_netns::require_root()?;
        setup::ensure()?;
        // The programs themselves, which tests run beside being built with them.
        build::everything(false)?;
        let mut nextest = shell::cargo();
        nextest.args([
            "nextest",
            "run",
            "--workspace",
            "--exclude",
            "dysco-ebpf",
            "--exclude",
            "dysco-rivals",
        ]);
        shell::run(nextest.args(&self.arguments))
    }
}
