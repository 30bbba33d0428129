//! `cargo xtask bench`.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::setup::Need;
use crate::{build, setup, shell};

/// Measure every published figure again.
#[derive(Args)]
pub(crate) struct Bench {
    /// Arguments of the benchmark: names, --quick, --list, --json; or compare BEFORE AFTER; or
    /// readme RUN
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Returns true if the arguments name a measurement. The value of an option is no name.
fn is_named(arguments: &[String]) -> bool {
    let before = std::iter::once("").chain(arguments.iter().map(String::as_str));
    let mut pairs = before.zip(arguments);
    pairs.any(|(before, a)| !a.starts_with('-') && before != "--changes")
}

impl Bench {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<()> {
        let has = |word: &str| self.arguments.iter().any(|a| a == word);
        let quiet = has("--json");
        // These commands only list, compare or show, and do not measure.
        let measures = !["--list", "compare", "readme"].into_iter().any(has);
        let folder = if measures {
            dysco_netns::require_root()?;
            setup::ensure(Need::Hosts)?;
            build::programs_and("dysco-bench", quiet)?
        } else {
            build::release(&["dysco-bench"], quiet)?
        };
        let named = is_named(&self.arguments);
        if measures && (has("code") || !named) {
            // These benches are built before any measurement.
            let mut cargo = shell::cargo();
            cargo.args([
                "bench",
                "--no-run",
                "-p",
                "dysco-common",
                "--bench",
                "decode",
            ]);
            cargo.args(["-p", "dysco-proto", "--bench", "protocol"]);
            shell::run(cargo.args(quiet.then_some("--quiet")))?;
        }
        shell::run(Command::new(folder.join("dysco-bench")).args(&self.arguments))
    }
}
