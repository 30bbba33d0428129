//! Measures every published figure: `cargo xtask bench`.
//!
//! The compared kinds take turns within one run. A figure is a ratio: the median over adjacent
//! turns.

mod apart;
mod asks;
mod benches;
mod bulk;
mod bundles;
mod calls;
mod chain;
mod code;
mod compare;
mod contest;
mod crowd;
mod disruption;
mod drain;
mod effort;
mod ends;
mod figure;
mod firewalls;
mod flood;
mod forwards;
mod handshakes;
mod instructions;
mod local;
mod lookup;
mod lossy;
mod machine;
mod many;
mod memory;
mod packet;
mod pair;
mod paths;
mod pause;
mod ping;
mod plot;
mod publish;
mod ranks;
mod readme;
mod reconfigure;
mod record;
mod removal;
mod replace;
mod report;
mod requests;
mod rivals;
mod roundtrip;
mod services;
mod setup;
mod shim;
mod silence;
mod sockmap;
mod stage;
mod steps;
mod stretch;
mod talk;
mod traffic;
mod turns;
mod ways;
mod why;
mod wrk;
mod xdp;

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};

use benches::{BENCHES, Bench, choose};
use compare::Compare;
use effort::{CHANGES, Effort, SECONDS};
use readme::Readme;
use record::Record;

/// Measures every published figure again.
#[derive(Parser)]
#[command(name = "cargo xtask bench", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Parts to measure; all parts by default
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Measure briefly, to try the benchmark; publishes nothing
    #[arg(long)]
    quick: bool,
    /// Number of single changes of `pause`
    #[arg(long, value_name = "N", default_value_t = CHANGES as u32, value_parser = clap::value_parser!(u32).range(1..=3_000))]
    changes: u32,
    /// Total duration of the streams of `services`, in seconds
    #[arg(long, value_name = "N", default_value_t = SECONDS)]
    seconds: u32,
    /// List the parts, and exit
    #[arg(long)]
    list: bool,
    /// Print only one JSON object, at the end
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Compare two runs: fails if a figure became worse
    Compare(Compare),
    /// Measure parts of a whole run again, and publish the run
    Again {
        /// JSON file of the run
        run: PathBuf,
        /// Parts to measure; the failed parts by default
        #[arg(value_name = "NAME")]
        names: Vec<String>,
    },
    /// Write a run's figures into the documents, as each whole run does
    Readme(Readme),
    /// Make the calls that the shim intercepts, and print the time of each
    #[command(hide = true)]
    Calls,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match &arguments.command {
        Some(Command::Compare(compare)) => return compare.run(),
        Some(Command::Readme(readme)) => return readme.run(),
        Some(Command::Calls) => return calls::make(),
        Some(Command::Again { run, names }) => return again(run, names),
        None => {}
    }
    if arguments.list {
        BENCHES
            .iter()
            .for_each(|b| println!("{:10} {}", b.name, b.about));
        return Ok(());
    }
    dysco_netns::require_root()?;
    let chosen = choose(&arguments.names)?;
    let effort = Effort {
        quick: arguments.quick,
        seconds: arguments.seconds,
        speaks: !arguments.json,
        changes: arguments.changes as usize,
        plots: RefCell::default(),
        absent: RefCell::default(),
    };
    machine::sockets()?;
    let mut record = Record::begin(arguments.quick)?;
    measure(&chosen, &effort, &mut record)?;
    record.end()?;
    // A part or a quick run must not be stored as a whole run.
    let whole = !arguments.quick && chosen.len() == BENCHES.len();
    let file = publish::save(&record, whole)?;
    if arguments.json {
        println!("{}", serde_json::to_string(&record)?);
    } else {
        println!("{}", report::markdown(&record, &record.run()?));
        println!("raw results: {}", file.display());
    }
    match whole {
        true => publish::publish(&record),
        false => record.complete(),
    }
}

/// Measures parts of a run, one after the other.
fn measure(chosen: &[&'static Bench], effort: &Effort, record: &mut Record) -> Result<()> {
    for (at, bench) in chosen.iter().enumerate() {
        let (number, of, begun) = (at + 1, chosen.len(), record.seconds());
        let (minutes, seconds) = (begun as u64 / 60, begun as u64 % 60);
        effort.say(&format!(
            "[{number} of {of}, {minutes}:{seconds:02}] {}: {}",
            bench.name, bench.about
        ));
        if !effort.quick {
            machine::settle()?;
        }
        match (bench.run)(effort) {
            Ok(figures) => record.take(bench.name, figures, effort),
            // The results of the other parts are kept nevertheless.
            Err(error) => record.fail(bench.name, &error),
        }
        record.took(bench.name, begun);
    }
    record.plots.extend(effort.plots.take());
    record.absent.extend(effort.absent.take());
    Ok(())
}

/// Repeats parts of a whole run: the parts with these names, or all that have failed.
fn again(run: &Path, names: &[String]) -> Result<()> {
    dysco_netns::require_root()?;
    let mut record = Record::read(run)?;
    ensure!(!record.quick, "{} is a quick run", run.display());
    let names: Vec<String> = match names {
        [] => record.failed.keys().cloned().collect(),
        names => names.to_vec(),
    };
    ensure!(!names.is_empty(), "no part of {} failed", run.display());
    let chosen = choose(&names)?;
    let effort = Effort {
        quick: false,
        seconds: SECONDS,
        speaks: true,
        changes: CHANGES,
        plots: RefCell::default(),
        absent: RefCell::default(),
    };
    machine::sockets()?;
    chosen
        .iter()
        .try_for_each(|bench| record.begin_again(bench.name))?;
    measure(&chosen, &effort, &mut record)?;
    record.order(BENCHES.iter().map(|bench| bench.name));
    publish::save(&record, true)?;
    publish::publish(&record)
}
