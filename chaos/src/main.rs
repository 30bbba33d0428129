//! Finds faults: runs random networks, proxies, sessions, operators and kills, checks every byte,
//! and compares with the same run without Dysco.

mod boxes;
mod daemons;
mod driver;
mod execute;
mod judge;
mod kills;
mod leftovers;
mod operators;
mod plan;
mod proxies;
mod relay;
mod report;
mod rng;
mod seeds;
mod sessions;
mod shrink;
mod watch;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Look for faults in random networks under random sessions, changes and kills.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(flatten)]
    seeds: seeds::Seeds,
    #[command(subcommand)]
    part: Option<Part>,
}

/// Parts of a run, which it starts itself.
#[derive(Subcommand)]
enum Part {
    /// Run one plan
    #[command(hide = true)]
    Run {
        /// The plan
        input: PathBuf,
        /// File for the result
        output: PathBuf,
        /// Folder for logs
        dir: PathBuf,
        /// Number of seconds for which entries of ended sessions may remain
        patience: u64,
    },
    /// Relay connections, as a proxy does
    #[command(hide = true)]
    Relay(relay::Relay),
}

fn main() -> ExitCode {
    match Arguments::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Arguments {
    fn run(self) -> Result<ExitCode> {
        match self.part {
            None => self.seeds.run(),
            Some(Part::Relay(relay)) => relay.run().map(|()| ExitCode::SUCCESS),
            Some(Part::Run {
                input,
                output,
                dir,
                patience,
            }) => {
                let plan = driver::read(&input)?;
                let run = execute::execute(&plan, &dir, patience)?;
                driver::write(&output, &run)?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}
