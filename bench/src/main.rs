//! Every published figure, measured again: `cargo xtask bench`.
//!
//! Compared things run side by side in one run, in turns. The result is a ratio: the median over
//! pairs of adjacent turns.

mod apart;
mod asks;
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
mod ends;
mod figure;
mod firewalls;
mod flood;
mod forwards;
mod handshakes;
mod instructions;
mod local;
mod lookup;
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
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};

use compare::Compare;
use figure::{Figure, Goal};
use plot::Plot;
use readme::Readme;
use record::Record;

/// Number of single changes of `pause`, unless the command line says otherwise.
const CHANGES: usize = 200;

/// Measures every published figure again.
#[derive(Parser)]
#[command(name = "cargo xtask bench", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// What to measure; everything by default
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Measure briefly: to try it out, not to publish
    #[arg(long)]
    quick: bool,
    /// Number of single changes of `pause`
    #[arg(long, value_name = "N", default_value_t = CHANGES as u32, value_parser = clap::value_parser!(u32).range(1..=3_000))]
    changes: u32,
    /// Measure the streams of `services` for this time in all, in seconds
    #[arg(long, value_name = "N", default_value_t = SECONDS)]
    seconds: u32,
    /// Say what can be measured, and end
    #[arg(long)]
    list: bool,
    /// Print only one JSON object, at the end
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Tell a regression from noise: fails if something got worse
    Compare(Compare),
    /// Measure some parts of a whole run anew, and publish it
    Again {
        /// The run's JSON
        run: PathBuf,
        /// What to measure; what had failed by default
        #[arg(value_name = "NAME")]
        names: Vec<String>,
    },
    /// Put a run's figures into the documents, as every whole run does by itself
    Readme(Readme),
    /// Make the calls that the shim stands before, and say how long each took
    #[command(hide = true)]
    Calls,
}

/// Time of the streams of `services`, in seconds, unless another one is asked for.
const SECONDS: u32 = 40;

/// Extent of the measurements, and receiver of their messages.
pub struct Effort {
    quick: bool,
    /// Time of the streams of `services`, in seconds.
    seconds: u32,
    speaks: bool,
    /// Number of single changes of `pause`.
    changes: usize,
    plots: RefCell<Vec<Plot>>,
    absent: RefCell<BTreeMap<String, String>>,
}

impl Effort {
    /// Returns the number for a whole run or for a quick one.
    fn pick<T>(&self, whole: T, quick: T) -> T {
        if self.quick { quick } else { whole }
    }

    /// Duration of a turn.
    fn turn(&self) -> Duration {
        Duration::from_millis(60)
    }

    /// Keeps a plot.
    fn plot(&self, plot: Plot) {
        self.plots.borrow_mut().push(plot);
    }

    /// Records that this machine lacks something, so that it is not measured.
    fn lacks(&self, what: &str, why: &str) {
        self.say(&format!("  not on this machine: {what}, {why}"));
        self.absent.borrow_mut().insert(what.into(), why.into());
    }

    /// Prints the progress.
    fn say(&self, text: &str) {
        if self.speaks {
            eprintln!("{text}");
        }
    }
}

/// A part of the benchmark. It may yield several figures.
struct Bench {
    name: &'static str,
    about: &'static str,
    run: fn(&Effort) -> Result<Vec<Figure>>,
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "traffic",
        about: "goodput and latency: direct, tracked, through HAProxy, and after its removal",
        run: traffic::run,
    },
    Bench {
        name: "local",
        about: "goodput, latency and CPU of a relayed session: against forwarding, HAProxy, a sockmap",
        run: local::run,
    },
    Bench {
        name: "xdp",
        about: "packets a second, small ones: relayed by XDP, by TC, and forwarded; a stream by both",
        run: xdp::run,
    },
    Bench {
        name: "rivals",
        about: "1 to 10,000 sessions: direct, forwarded, relayed, HAProxy, nginx, a sockmap, the kernel's own",
        run: rivals::run,
    },
    Bench {
        name: "removal",
        about: "600 sessions under load lose their proxy: from the request to the new path",
        run: removal::run,
    },
    Bench {
        name: "setup",
        about: "opening a session along a chain of 1 and 4 middleboxes, and past as many hosts",
        run: setup::run,
    },
    Bench {
        name: "chain",
        about: "goodput of 1 to 10,000 sessions through one middlebox",
        run: chain::run,
    },
    Bench {
        name: "requests",
        about: "requests to nginx through 1 to 4 middleboxes",
        run: requests::run,
    },
    Bench {
        name: "bundles",
        about: "4 bundles of 150 sessions lose their proxies, one bundle after the other",
        run: bundles::run,
    },
    Bench {
        name: "disruption",
        about: "one session over 1 Gbit/s leaves a proxy that is 20 ms slower, with SACK and without",
        run: disruption::run,
    },
    Bench {
        name: "replace",
        about: "a firewall comes in, is replaced with its state, leaves: 3 bundles of 100 sessions",
        run: replace::run,
    },
    Bench {
        name: "reconfigure",
        about: "1,000 live sessions get a firewall, another in its place, and none",
        run: reconfigure::run,
    },
    Bench {
        name: "drain",
        about: "10,000 silent sessions leave HAProxy by dyscoctl drain; as many are adopted",
        run: drain::run,
    },
    Bench {
        name: "pause",
        about: "the longest gap of a busy session when its proxy leaves, alone and in batches of 150 and 1,000",
        run: pause::run,
    },
    Bench {
        name: "many",
        about: "100,000 relayed sessions at once: memory, their removal, one among them",
        run: many::run,
    },
    Bench {
        name: "services",
        about: "a session with services at one end or both: goodput, volleys, silence at a change",
        run: services::run,
    },
    Bench {
        name: "lookup",
        about: "1 to 1,000,000 sessions in the data plane: the cost of finding one, and memory",
        run: lookup::run,
    },
    Bench {
        name: "shim",
        about: "requests through HAProxy under the shim, and without it; single calls",
        run: shim::run,
    },
    Bench {
        name: "paths",
        about: "what the programs take of a packet on each path, by the kernel's statistics",
        run: paths::run,
    },
    Bench {
        name: "packet",
        about: "a packet in the programs themselves",
        run: packets,
    },
    Bench {
        name: "code",
        about: "the state machine, and what reads packets and messages: criterion's benches",
        run: code::run,
    },
    Bench {
        name: "memory",
        about: "map memory of a session",
        run: memory::run,
    },
];

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
    ensure!(!record.quick, "{} is but a brief look", run.display());
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

/// Times of the programs for a packet that they translate, compared with other packets in the same
/// direction, and for each path separately.
fn packets(effort: &Effort) -> Result<Vec<Figure>> {
    if let Err(error) = instructions::Instructions::begin() {
        effort.lacks("a processor that counts instructions", &error.to_string());
    }
    let cases = packet::measure(effort.pick(20, 2))?;
    let translated = |name: &str, what: &str, way: packet::Way| {
        let case = cases.iter().find(|case| case.name == what);
        let figure = case.context("no packet was translated")?.figure(name);
        let beside = cases.iter();
        let beside = beside.filter(|case| case.way == Some(way) || case.name == packet::EMPTY);
        Ok::<_, anyhow::Error>(beside.fold(figure, |figure, case| figure.aside(case.name, case.ns)))
    };
    let (inward, outward) = (packet::Way::In, packet::Way::Out);
    let mut figures = vec![
        translated("translate_ns", "translated_in", inward)?.goal(Goal::AtMost(80.0)),
        translated("translate_out_ns", "translated_out", outward)?,
    ];
    for case in &cases {
        figures.push(case.figure(format!("run_ns_{}", case.name)));
        if let Some(count) = case.instructions {
            let name = format!("instructions_{}", case.name);
            figures.push(Figure::new(name, "instructions", count));
        }
    }
    Ok(figures)
}

fn choose(names: &[String]) -> Result<Vec<&'static Bench>> {
    let known: Vec<_> = BENCHES.iter().map(|b| b.name).collect();
    let unknown = names.iter().filter(|name| !known.contains(&name.as_str()));
    let unknown: Vec<_> = unknown.map(String::as_str).collect();
    ensure!(
        unknown.is_empty(),
        "there is no benchmark {}: there are {}",
        unknown.join(", "),
        known.join(", ")
    );
    let wanted = |b: &&Bench| names.is_empty() || names.iter().any(|n| n == b.name);
    Ok(BENCHES.iter().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str]) -> Result<Vec<&'static str>, String> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let chosen = choose(&names).map_err(|e| e.to_string())?;
        Ok(chosen.iter().map(|b| b.name).collect())
    }

    #[test]
    fn what_is_named_is_measured_once_and_all_by_default() {
        assert_eq!(
            chosen(&["chain", "setup", "chain"]),
            Ok(vec!["setup", "chain"])
        );
        assert_eq!(chosen(&[]).map(|all| all.len()), Ok(BENCHES.len()));
        let mut names: Vec<_> = BENCHES.iter().map(|b| b.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }

    #[test]
    fn one_error_names_all_that_is_unknown_and_what_there_is() {
        let error = chosen(&["chian", "setup", "al"]).err().unwrap_or_default();
        let begin = "there is no benchmark chian, al: there are traffic, local, ";
        assert!(error.starts_with(begin), "{error}");
        assert!(error.ends_with(", memory"), "{error}");
    }
}
