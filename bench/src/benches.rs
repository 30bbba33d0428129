//! The parts of the benchmark.

use anyhow::{Context, Result, ensure};

use crate::effort::Effort;
use crate::figure::{Figure, Goal};
use crate::{
    bundles, chain, code, disruption, drain, instructions, local, lookup, lossy, many, memory,
    packet, paths, pause, reconfigure, removal, replace, requests, rivals, services, setup, shim,
    traffic, xdp,
};

/// A part of the benchmark. It may yield several figures.
pub(crate) struct Bench {
    pub name: &'static str,
    pub about: &'static str,
    pub run: fn(&Effort) -> Result<Vec<Figure>>,
}

/// All parts, in the order in which they are measured.
pub(crate) const BENCHES: &[Bench] = &[
    Bench {
        name: "traffic",
        about: "goodput and latency: direct, tracked, through HAProxy, after its removal",
        run: traffic::run,
    },
    Bench {
        name: "local",
        about: "goodput, latency and CPU time of a session in mode local, and of alternatives",
        run: local::run,
    },
    Bench {
        name: "xdp",
        about: "small packets per second by XDP, TC and forwarding; a stream by XDP and TC",
        run: xdp::run,
    },
    Bench {
        name: "rivals",
        about: "1 to 10,000 sessions: mode local, forwarding, HAProxy, nginx, sockmap, NAT, IPVS",
        run: rivals::run,
    },
    Bench {
        name: "removal",
        about: "time to remove a proxy from 600 sessions by one request",
        run: removal::run,
    },
    Bench {
        name: "setup",
        about: "connection setup time through 1 and 4 middleboxes",
        run: setup::run,
    },
    Bench {
        name: "chain",
        about: "goodput of 1 to 10,000 sessions through one middlebox",
        run: chain::run,
    },
    Bench {
        name: "requests",
        about: "requests per second to nginx through 1 to 4 middleboxes",
        run: requests::run,
    },
    Bench {
        name: "bundles",
        about: "removal under full load: 4 bundles of 150 sessions lose their proxies",
        run: bundles::run,
    },
    Bench {
        name: "disruption",
        about: "goodput of one session while it leaves a proxy with 20 ms more round-trip time",
        run: disruption::run,
    },
    Bench {
        name: "replace",
        about: "goodput and drops while a firewall is inserted, replaced and removed",
        run: replace::run,
    },
    Bench {
        name: "reconfigure",
        about: "time to insert, replace and remove a firewall among 1,000 live sessions",
        run: reconfigure::run,
    },
    Bench {
        name: "drain",
        about: "dyscoctl drain with 10,000 idle sessions; adoption of 10,000 sessions",
        run: drain::run,
    },
    Bench {
        name: "pause",
        about: "longest gap of a busy session during its removal, alone and in batches",
        run: pause::run,
    },
    Bench {
        name: "many",
        about: "100,000 relayed sessions: memory, removal time, latency, goodput among them",
        run: many::run,
    },
    Bench {
        name: "services",
        about: "sessions with services: goodput, one-byte round trips, silence during a change",
        run: services::run,
    },
    Bench {
        name: "lossy",
        about: "a lossy link of 100 ms: goodput with cubic, with bbr by tune, and with split",
        run: lossy::run,
    },
    Bench {
        name: "lookup",
        about: "1 to 1,000,000 sessions in the data plane: time per packet, and memory",
        run: lookup::run,
    },
    Bench {
        name: "shim",
        about: "requests through HAProxy with the shim and without; time of single calls",
        run: shim::run,
    },
    Bench {
        name: "paths",
        about: "time of the programs on each path in traffic, by the kernel's statistics",
        run: paths::run,
    },
    Bench {
        name: "packet",
        about: "time of the programs per packet, by BPF_PROG_TEST_RUN",
        run: packets,
    },
    Bench {
        name: "code",
        about: "criterion benches of the state machine and of the parsers",
        run: code::run,
    },
    Bench {
        name: "memory",
        about: "map memory per entry of the data plane",
        run: memory::run,
    },
];

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

/// Returns the parts with these names; all parts if there are no names.
///
/// # Errors
/// If there is no part with one of the names.
pub(crate) fn choose(names: &[String]) -> Result<Vec<&'static Bench>> {
    let known: Vec<_> = BENCHES.iter().map(|b| b.name).collect();
    let unknown = names.iter().filter(|name| !known.contains(&name.as_str()));
    let unknown: Vec<_> = unknown.map(String::as_str).collect();
    ensure!(
        unknown.is_empty(),
        "there is no part {}; the parts are {}",
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
        let begin = "there is no part chian, al; the parts are traffic, local, ";
        assert!(error.starts_with(begin), "{error}");
        assert!(error.ends_with(", memory"), "{error}");
    }
}
