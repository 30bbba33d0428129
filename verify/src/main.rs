//! Explores the session protocol: see the library.

use std::process::ExitCode;

use clap::Parser;
use dysco_verify::report::{self, Explored};
use dysco_verify::{config, model};
use serde::Serialize;

/// Explore the protocol machine that ships, in all configurations.
#[derive(Parser)]
struct Arguments {
    /// Only these configurations and seeded bugs
    names: Vec<String>,
    /// Print one JSON object at the end instead
    #[arg(long)]
    json: bool,
    /// Name the configurations, and explore nothing
    #[arg(long)]
    list: bool,
}

/// Everything, in numbers first.
#[derive(Serialize)]
struct Summary {
    configurations: usize,
    states: usize,
    violations: usize,
    seeded_bugs: usize,
    seeded_bugs_found: usize,
    explored: Vec<Explored>,
    seeded: Vec<Explored>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let wanted =
        |name: &str| arguments.names.is_empty() || arguments.names.iter().any(|n| n == name);
    let all = config::all().into_iter().filter(|c| wanted(c.name));
    let seeded = config::seeded().into_iter().filter(|c| wanted(c.name));
    if arguments.list {
        all.chain(seeded)
            .for_each(|c| println!("{:<18} {}", c.name, c.about));
        return ExitCode::SUCCESS;
    }
    let say = |text: &str| {
        if arguments.json {
            eprintln!("{text}");
        } else {
            println!("{text}");
        }
    };
    say("In every state:");
    for property in model::always() {
        say(&format!("  {}", property.name));
    }
    let run = |c: config::Configuration| {
        let explored = report::explore(c);
        say(report::show(&explored).trim_end());
        explored
    };
    let explored: Vec<Explored> = all.map(run).collect();
    say("Bugs put in on purpose, which must be found:");
    let seeded: Vec<Explored> = seeded.map(run).collect();
    let summary = Summary {
        configurations: explored.len(),
        states: explored.iter().map(|e| e.states).sum(),
        violations: explored.iter().map(|e| e.violations().count()).sum(),
        seeded_bugs: seeded.len(),
        seeded_bugs_found: seeded.iter().filter(|e| e.violations().count() > 0).count(),
        explored,
        seeded,
    };
    if arguments.json {
        match serde_json::to_string(&summary) {
            Ok(text) => println!("{text}"),
            Err(error) => eprintln!("failed to print the result: {error}"),
        }
    } else {
        println!(
            "{} states in {} configurations, {} violations; {} of {} seeded bugs found",
            summary.states,
            summary.configurations,
            summary.violations,
            summary.seeded_bugs_found,
            summary.seeded_bugs
        );
    }
    let sound = summary.violations == 0 && summary.seeded_bugs_found == summary.seeded_bugs;
    if sound {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
