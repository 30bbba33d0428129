//! Explores the session protocol. See the library.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use dysco_verify::explore;
use dysco_verify::report::{self, Explored};
use dysco_verify::{chain, config, model, service};
use serde::Serialize;

/// Explore the protocol machine that ships, in all configurations.
#[derive(Parser)]
struct Arguments {
    /// Only these configurations and seeded bugs
    names: Vec<String>,
    /// Maximum number of seconds for each configuration; incomplete explorations are listed
    #[arg(long, value_name = "SECONDS")]
    within: Option<u64>,
    /// Print only one JSON object, at the end
    #[arg(long)]
    json: bool,
    /// List the configurations and explore nothing
    #[arg(long)]
    list: bool,
}

/// Results, with the numbers first.
#[derive(Serialize)]
struct Summary {
    configurations: usize,
    states: usize,
    violations: usize,
    seeded_bugs: usize,
    seeded_bugs_found: usize,
    /// True if every configuration was explored to its end.
    whole: bool,
    /// Number of configurations that were explored to their end.
    explored_whole: usize,
    /// Events that must occur and did not, in explorations that were broken off. In an exploration
    /// that was completed a missing event is a violation.
    not_seen: Vec<Unseen>,
    explored: Vec<Explored>,
    seeded: Vec<Explored>,
}

/// An event that a configuration has not shown so far.
#[derive(Serialize)]
struct Unseen {
    configuration: &'static str,
    property: &'static str,
}

impl Summary {
    fn of(explored: Vec<Explored>, seeded: Vec<Explored>) -> Summary {
        let broken_off = explored.iter().filter(|e| !e.whole);
        let unseen = |e: &Explored| {
            let configuration = e.name;
            let unseen = e.unseen.clone().into_iter();
            unseen.map(move |property| Unseen {
                configuration,
                property,
            })
        };
        Summary {
            configurations: explored.len(),
            states: explored.iter().map(|e| e.states).sum(),
            violations: explored.iter().map(|e| e.violations().count()).sum(),
            seeded_bugs: seeded.len(),
            // A bug does not count as found because an event never occurred.
            seeded_bugs_found: seeded.iter().filter(|e| e.wrongs().count() > 0).count(),
            whole: explored.iter().all(|e| e.whole),
            explored_whole: explored.iter().filter(|e| e.whole).count(),
            not_seen: broken_off.flat_map(unseen).collect(),
            explored,
            seeded,
        }
    }

    fn show(&self) {
        let whole = match self.whole {
            true => "all of them to the end".to_owned(),
            false => format!("{} of them to the end", self.explored_whole),
        };
        println!(
            "{} states in {} configurations, {whole}; {} violations; {} of {} seeded bugs found",
            self.states,
            self.configurations,
            self.violations,
            self.seeded_bugs_found,
            self.seeded_bugs
        );
        if !self.not_seen.is_empty() {
            println!("Not seen in the time given:");
        }
        for unseen in &self.not_seen {
            println!("  {}: {}", unseen.configuration, unseen.property);
        }
    }
}

/// A configuration of either kind.
enum Configuration {
    /// A middlebox leaves.
    Removal(config::Configuration),
    /// A session gets another chain.
    Chain(chain::config::Configuration),
    /// Services come into a session and leave it.
    Service(service::config::Configuration),
}

impl Configuration {
    fn name(&self) -> [&'static str; 2] {
        match self {
            Configuration::Removal(c) => [c.name, c.about],
            Configuration::Chain(c) => [c.name, c.about],
            Configuration::Service(c) => [c.name, c.about],
        }
    }

    fn explore(self, within: Option<Duration>) -> Explored {
        match self {
            Configuration::Removal(c) => explore::explore(c, within),
            Configuration::Chain(c) => explore::explore_chain(c, within),
            Configuration::Service(c) => explore::explore_service(c, within),
        }
    }
}

fn of(
    removals: Vec<config::Configuration>,
    chains: Vec<chain::config::Configuration>,
    services: Vec<service::config::Configuration>,
) -> Vec<Configuration> {
    let removals = removals.into_iter().map(Configuration::Removal);
    let chains = chains.into_iter().map(Configuration::Chain);
    let services = services.into_iter().map(Configuration::Service);
    removals.chain(chains).chain(services).collect()
}

/// Wanted names that nothing has. To explore nothing would look like success.
fn unknown<'a>(wanted: &'a [String], known: &[&str]) -> Vec<&'a str> {
    let names = wanted.iter().map(String::as_str);
    names.filter(|name| !known.contains(name)).collect()
}

/// Prints why the command is refused, if it is.
fn refuses(wanted: &[String], known: &[&str]) -> bool {
    let unknown = unknown(wanted, known).join(", ");
    if !unknown.is_empty() {
        eprintln!("no configuration or seeded bug has the name {unknown}; --list lists them");
    }
    !unknown.is_empty()
}

fn list<'a>(all: impl Iterator<Item = &'a Configuration>) {
    for [name, about] in all.map(Configuration::name) {
        println!("{name:<20} {about}");
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let wanted =
        |name: &str| arguments.names.is_empty() || arguments.names.iter().any(|n| n == name);
    let [all, seeded] = [
        of(config::all(), chain::config::all(), service::config::all()),
        of(
            config::seeded(),
            chain::seeded::seeded(),
            service::config::seeded(),
        ),
    ];
    let known = all.iter().chain(&seeded).map(|c| c.name()[0]);
    if refuses(&arguments.names, &known.collect::<Vec<_>>()) {
        return ExitCode::from(2);
    }
    let [all, seeded] = [all, seeded].map(|configs| {
        let wanted = configs.into_iter().filter(|c| wanted(c.name()[0]));
        wanted.collect::<Vec<_>>()
    });
    if arguments.list {
        list(all.iter().chain(&seeded));
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
    let removals = model::always().into_iter().map(|p| p.name);
    let chains = chain::model::always().into_iter().map(|p| p.name);
    let services = service::model::always().into_iter().map(|p| p.name);
    for property in removals.chain(chains).chain(services) {
        say(&format!("  {property}"));
    }
    let within = arguments.within.map(Duration::from_secs);
    let run = |c: Configuration, within| {
        let explored = c.explore(within);
        say(report::show(&explored).trim_end());
        explored
    };
    let explored: Vec<Explored> = all.into_iter().map(|c| run(c, within)).collect();
    say("Bugs put in on purpose, which must be found:");
    // The time is not limited: a bug that was not found in time would look like a failure.
    let seeded: Vec<Explored> = seeded.into_iter().map(|c| run(c, None)).collect();
    let summary = Summary::of(explored, seeded);
    if arguments.json {
        match serde_json::to_string(&summary) {
            Ok(text) => println!("{text}"),
            Err(error) => eprintln!("failed to print the result: {error}"),
        }
    } else {
        summary.show();
    }
    match summary.violations == 0 && summary.seeded_bugs_found == summary.seeded_bugs {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_nothing_has_is_refused() {
        let wanted = ["mixed", "mixd"].map(str::to_owned);
        assert_eq!(unknown(&wanted, &["mixed", "streams"]), ["mixd"]);
        assert!(unknown(&[], &["mixed"]).is_empty());
    }
}
