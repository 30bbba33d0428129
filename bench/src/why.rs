//! Explanations of missed goals: figures that show the floor on this machine, and figures that show
//! the remaining cost. The text uses a run's own numbers, so that it stays true with the next run.

use serde_json::Value;

use crate::figure::short;

/// A figure that explains others, and its description. The name may be a prefix, which the suffix
/// of the explained figure completes.
type By = (&'static str, &'static str);

/// Figures with the same explanation: all whose names begin with this prefix.
struct Why {
    figures: &'static str,
    /// The same figure without any work of Dysco.
    floor: Option<By>,
    /// Further figures that explain them.
    by: &'static [By],
}

const ENDS: &str = "empty programs at both ends";
const LINKS: &str = "empty programs on all links";
const EQUAL: &str = "control: two equal sessions";
const LINES: &str = "control: two equal lines";
const BUSY: &str = "load of Dysco's programs on that host";
const REQUEST: &str = "all runs of Dysco's programs at both ends, per request";
const LINKED: &str = "the same figure where the links are the limit";
const UNCHANGED: &str = "the second before the change";
const LEFT: &str = "share of all processors that Dysco's programs leave";
const TRIP: &str =
    "round trip of a control message under full load, between two threads without other work";

/// The first entry that fits a name counts.
const WHYS: &[Why] = &[
    Why {
        figures: "bypass_goodput_vs_direct",
        floor: Some(("empty_programs_goodput_vs_none", ENDS)),
        by: &[
            ("control_goodput_vs_direct", EQUAL),
            ("path_busy_bypass_left", BUSY),
            ("path_busy_bypass_right", BUSY),
        ],
    },
    Why {
        figures: "tracked_goodput_vs_none",
        floor: Some(("empty_programs_goodput_vs_none", ENDS)),
        by: &[
            ("control_goodput_vs_direct", EQUAL),
            ("path_busy_tracked", BUSY),
        ],
    },
    Why {
        figures: "tracked_requests_vs_none",
        floor: Some(("empty_programs_requests_vs_none", ENDS)),
        by: &[
            ("control_requests_vs_direct", EQUAL),
            ("path_us_request_tracked", REQUEST),
        ],
    },
    Why {
        figures: "bypass_latency_p50_vs_direct",
        floor: Some(("empty_programs_latency_p50_vs_none", ENDS)),
        by: &[
            ("control_latency_p50_vs_direct", EQUAL),
            ("path_us_request_bypass", REQUEST),
        ],
    },
    Why {
        figures: "services_left_goodput",
        floor: Some(("services_control_goodput", EQUAL)),
        by: &[],
    },
    Why {
        figures: "services_left_volleys",
        floor: Some(("services_control_volleys", EQUAL)),
        by: &[],
    },
    Why {
        figures: "setup_added_us_",
        floor: Some(("empty_programs_setup_added_us_", LINKS)),
        by: &[
            (
                "stopped_daemons_setup_added_us_",
                "Dysco's programs while all daemons are stopped",
            ),
            ("control_setup_added_us_", LINES),
        ],
    },
    Why {
        figures: "goodput_ratio_",
        floor: Some(("empty_programs_goodput_ratio_", LINKS)),
        by: &[
            ("control_goodput_ratio_", LINES),
            ("linked_goodput_ratio_", LINKED),
            ("path_left_chain_", LEFT),
            (
                "path_ns_chain_middle_",
                "one run of Dysco's programs on the middlebox's host",
            ),
            (
                "path_ns_empty",
                "one run of an empty program, by the same statistics",
            ),
        ],
    },
    Why {
        figures: "linked_goodput_ratio_",
        floor: Some(("linked_empty_programs_goodput_ratio_", LINKS)),
        by: &[
            ("linked_control_goodput_ratio_", LINES),
            (
                "linked_cpu_ratio_",
                "CPU time per gigabyte, relative to forwarding",
            ),
        ],
    },
    Why {
        figures: "linked_requests_ratio_",
        floor: Some(("linked_empty_programs_requests_ratio_", LINKS)),
        by: &[("linked_control_requests_ratio_", LINES)],
    },
    Why {
        figures: "requests_ratio_",
        floor: Some(("empty_programs_requests_ratio_", LINKS)),
        by: &[
            ("control_requests_ratio_", LINES),
            ("linked_requests_ratio_", LINKED),
            ("path_left_requests_", LEFT),
            (
                "path_us_requests_",
                "all runs of Dysco's programs per request",
            ),
        ],
    },
    Why {
        figures: "reconfig_ms_",
        floor: Some((
            "reconfig_floor_ms_p50",
            "two control round trips and the handshake of the new path, in sequence",
        )),
        by: &[
            ("control_round_trip_ms_p50", TRIP),
            ("reconfig_handshake_ms_p50", "handshake of the new path"),
            (
                "removal_step_ask_ms_p50",
                "one of five steps: a message and a journal record",
            ),
        ],
    },
    Why {
        figures: "lookup_1m_vs_1k",
        floor: None,
        by: &[
            (
                "lookup_ns_1000000",
                "a packet of one of 1,000,000 sessions, whose entries are in no cache",
            ),
            (
                "lookup_ns_1000",
                "a packet of one of 1,000 sessions, whose entries are cached: a faster baseline \
                 raises the ratio",
            ),
        ],
    },
    Why {
        figures: "removal_ms_p99_light",
        floor: None,
        by: &[
            (
                "removal_ms_p99",
                "the same number of removals, with 32 times the traffic per session",
            ),
            (
                "removal_ms_p50_light",
                "the median of the same removals: other work of the machine causes outliers",
            ),
        ],
    },
    Why {
        figures: "insert_lowest_goodput",
        floor: Some(("insert_unchanged_lowest_goodput", UNCHANGED)),
        by: &[],
    },
    Why {
        figures: "replace_lowest_goodput",
        floor: Some(("replace_unchanged_lowest_goodput", UNCHANGED)),
        by: &[],
    },
    Why {
        figures: "remove_lowest_goodput",
        floor: Some(("remove_unchanged_lowest_goodput", UNCHANGED)),
        by: &[],
    },
    Why {
        figures: "reconfigure_replace_ms_",
        floor: None,
        by: &[
            (
                "reconfigure_insert_ms_",
                "the same change without state to move",
            ),
            ("control_round_trip_ms_p50", TRIP),
        ],
    },
    Why {
        figures: "reconfigure_insert_ms_",
        floor: None,
        by: &[("control_round_trip_ms_p50", TRIP)],
    },
    Why {
        figures: "translate_ns",
        floor: Some(("run_ns_empty", "one run of an empty program")),
        by: &[
            (
                "run_ns_tracked",
                "reads the header, finds the session and records its numbers",
            ),
            ("run_ns_identity_in", "a translation that changes no field"),
        ],
    },
];

impl Why {
    fn of(name: &str) -> Option<&'static Why> {
        WHYS.iter().find(|why| name.starts_with(why.figures))
    }

    /// Figure of a run that explains the figure with this name.
    fn found<'a>(&self, run: &'a Value, name: &str, (by, _): By) -> Option<&'a Value> {
        let rest = &name[self.figures.len()..];
        find(run, &format!("{by}{rest}")).or_else(|| find(run, by.trim_end_matches('_')))
    }
}

/// Figure of a run.
pub(crate) fn find<'a>(run: &'a Value, name: &str) -> Option<&'a Value> {
    let figures = run["figures"].as_array()?;
    figures.iter().find(|figure| figure["name"] == name)
}

/// Best possible value of a figure with a goal, in its own unit, if it was measured.
pub(crate) fn floor(run: &Value, name: &str) -> Option<f64> {
    find(run, name)?["goal"].as_object()?;
    let why = Why::of(name)?;
    why.found(run, name, why.floor?)?["value"].as_f64()
}

/// Formats a value for a table.
fn reported(figure: &Value) -> String {
    let value = figure["value"].as_f64().map(short).unwrap_or_default();
    let text = format!("{value} {}", figure["unit"].as_str().unwrap_or_default());
    text.trim_end().to_owned()
}

/// Formats a goal for a table.
pub(crate) fn goal(figure: &Value) -> Option<String> {
    let bound = |way: &str| figure["goal"][way].as_f64();
    let least = bound("at_least").map(|bound| format!("≥ {bound}"));
    least.or_else(|| bound("at_most").map(|bound| format!("≤ {bound}")))
}

fn is_missed(figure: &Value) -> bool {
    let bound = |way: &str| figure["goal"][way].as_f64();
    let Some(value) = figure["value"].as_f64() else {
        return false;
    };
    bound("at_least").is_some_and(|least| value < least)
        || bound("at_most").is_some_and(|most| value > most)
}

/// Table of the goals that a run missed, with the figures that explain them.
pub(crate) fn missed(run: &Value) -> String {
    let figures = run["figures"].as_array().into_iter().flatten();
    let rows: String = figures
        .filter(|f| is_missed(f))
        .map(|f| row(run, f))
        .collect();
    if rows.is_empty() {
        return "No goal was missed.\n".into();
    }
    format!("| figure | value | goal | explained by |\n|---|---:|---:|---|\n{rows}")
}

fn row(run: &Value, figure: &Value) -> String {
    let name = figure["name"].as_str().unwrap_or_default();
    let why = match Why::of(name) {
        None => "**no explanation yet**".into(),
        Some(why) => {
            let named = |by: &By| {
                let found = why.found(run, name, *by)?;
                let (name, about) = (found["name"].as_str()?, by.1);
                Some(format!("`{name}` {} ({about})", reported(found)))
            };
            let all: Vec<_> = why.floor.iter().chain(why.by).filter_map(named).collect();
            match all.is_empty() {
                true => "this run lacks the explaining figures".into(),
                false => all.join("; "),
            }
        }
    };
    let goal = goal(figure).unwrap_or_default();
    format!("| `{name}` | {} | {goal} | {why} |\n", reported(figure))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run() -> Value {
        let figure = |name: &str, value: f64, goal: Value| json!({"name": name, "unit": "", "value": value, "goal": goal});
        json!({"figures": [
            figure("goodput_ratio_4", 0.5, json!({"at_least": 0.99})),
            figure("goodput_ratio_1", 0.995, json!({"at_least": 0.99})),
            figure("empty_programs_goodput_ratio_4", 0.75, Value::Null),
            figure("path_left_chain_4", 0.0625, Value::Null),
            figure("other_ms", 3.0, json!({"at_most": 2.0})),
        ]})
    }

    #[test]
    fn what_is_missed_is_explained_by_figures_of_the_run() {
        let text = missed(&run());
        assert!(
            text.contains("| `goodput_ratio_4` | 0.500 | ≥ 0.99 |"),
            "{text}"
        );
        assert!(
            text.contains("`empty_programs_goodput_ratio_4` 0.750"),
            "{text}"
        );
        assert!(text.contains("`path_left_chain_4` 0.062"), "{text}");
        assert!(!text.contains("goodput_ratio_1`"), "{text}");
        assert!(
            text.contains("| `other_ms` | 3.000 | ≤ 2 | **no explanation yet** |"),
            "{text}"
        );
    }

    #[test]
    fn a_floor_is_of_the_same_kind() {
        assert_eq!(floor(&run(), "goodput_ratio_4"), Some(0.75));
        assert_eq!(floor(&run(), "goodput_ratio_1"), None);
        assert_eq!(floor(&run(), "empty_programs_goodput_ratio_4"), None);
    }

    #[test]
    fn no_goal_missed_is_said_as_well() {
        assert_eq!(missed(&json!({"figures": []})), "No goal was missed.\n");
    }
}
