//! Every published figure, measured again: `cargo xtask bench`.
//!
//! What is compared runs side by side in one run, in turns, and is told as a
//! ratio: the median over pairs of turns that were next to each other.

mod bulk;
mod crowd;
mod drain;
mod figure;
mod local;
mod machine;
mod memory;
mod packet;
mod pair;
mod ping;
mod record;
mod removal;
mod report;
mod sockmap;
mod stage;
mod traffic;
mod turns;
mod xdp;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use figure::{Figure, Goal};
use record::Record;

/// Measures every published figure again.
#[derive(Parser)]
#[command(name = "cargo xtask bench")]
struct Arguments {
    /// What to measure; everything by default
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Measure briefly: to try it out, not to publish
    #[arg(long)]
    quick: bool,
    /// Say what can be measured, and end
    #[arg(long)]
    list: bool,
    /// Print only one JSON object, at the end
    #[arg(long)]
    json: bool,
}

/// How much is measured, and who hears of it.
pub struct Effort {
    quick: bool,
    speaks: bool,
}

impl Effort {
    /// The one or the other number.
    fn pick<T>(&self, whole: T, quick: T) -> T {
        if self.quick { quick } else { whole }
    }

    /// How long a turn is.
    fn turn(&self) -> Duration {
        Duration::from_millis(self.pick(150, 75))
    }

    /// Tells how far it has got.
    fn say(&self, text: &str) {
        if self.speaks {
            eprintln!("{text}");
        }
    }
}

/// Something to measure; it may yield several figures.
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
        name: "removal",
        about: "600 sessions under load lose their proxy: from the request to the new path",
        run: removal::run,
    },
    Bench {
        name: "drain",
        about: "10,000 silent sessions leave HAProxy by dyscoctl drain",
        run: drain::run,
    },
    Bench {
        name: "crowd",
        about: "100,000 relayed sessions in the data plane: memory, and the cost of finding one",
        run: crowd::run,
    },
    Bench {
        name: "xdp",
        about: "the most that relaying in XDP could win over plain forwarding",
        run: xdp::run,
    },
    Bench {
        name: "packet",
        about: "a packet in the programs themselves",
        run: packets,
    },
    Bench {
        name: "memory",
        about: "map memory of a session",
        run: memory::run,
    },
];

fn main() -> Result<()> {
    let arguments = Arguments::parse();
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
        speaks: !arguments.json,
    };
    let mut record = Record::begin(arguments.quick)?;
    for bench in &chosen {
        effort.say(&format!("{}: {}", bench.name, bench.about));
        let figures = (bench.run)(&effort);
        let figures = figures.with_context(|| format!("failed to measure {}", bench.name))?;
        record.figures.extend(figures);
    }
    record.end()?;
    // A part, or a brief look, must not pass for a whole run.
    let whole = !arguments.quick && chosen.len() == BENCHES.len();
    let file = record.save(whole)?;
    if arguments.json {
        println!("{}", serde_json::to_string(&record)?);
    } else {
        println!("{}", report::markdown(&record));
        println!("raw results: {}", file.display());
    }
    Ok(())
}

/// The whole program's run on a packet that it translates, beside others.
fn packets(_: &Effort) -> Result<Vec<Figure>> {
    let cases = packet::measure()?;
    let translated = cases.iter().find(|case| case.name == "translated_in");
    let ns = translated.context("no packet was translated")?.ns;
    let figure = Figure::new("translate_ns", "ns", ns).goal(Goal::AtMost(100.0));
    let aside = |figure: Figure, case: &packet::Case| figure.aside(case.name, case.ns);
    Ok(vec![cases.iter().fold(figure, aside)])
}

fn choose(names: &[String]) -> Result<Vec<&'static Bench>> {
    let known: Vec<_> = BENCHES.iter().map(|b| b.name).collect();
    for name in names {
        ensure!(
            known.contains(&name.as_str()),
            "there is no benchmark {name:?}: there are {}",
            known.join(", ")
        );
    }
    let wanted = |b: &&Bench| names.is_empty() || names.iter().any(|n| n == b.name);
    Ok(BENCHES.iter().filter(wanted).collect())
}
