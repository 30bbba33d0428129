//! Why a goal is missed: the figures that tell what could be reached here at best,
//! or what the rest goes into. The text is made of a run's own numbers, so that it
//! stays true with the next one.

use serde_json::Value;

use crate::report::short;

/// Figures that are explained in the same way: all whose name begins so.
struct Why {
    figures: &'static str,
    /// The floor: the same, without any of our work.
    floor: Option<&'static str>,
    /// What else explains them. What follows `figures` in a name follows these, or
    /// nothing does if there is no such figure.
    by: &'static [&'static str],
    /// What these figures are.
    about: &'static str,
}

/// The first that fits a name counts.
const WHYS: &[Why] = &[
    Why {
        figures: "bypass_goodput_vs_direct",
        floor: Some("empty_programs_goodput_vs_none"),
        by: &[
            "control_goodput_vs_direct",
            "path_busy_bypass_left",
            "path_busy_bypass_right",
        ],
        about: "programs that do nothing at both ends; two equal sessions; the part of a \
                processor's time that ours run at either end, which is taken from sender and receiver",
    },
    Why {
        figures: "tracked_goodput_vs_none",
        floor: Some("empty_programs_goodput_vs_none"),
        by: &["control_goodput_vs_direct", "path_busy_tracked"],
        about: "programs that do nothing at both ends; two equal sessions; the part of a \
                processor's time that ours run at one end",
    },
    Why {
        figures: "tracked_requests_vs_none",
        floor: Some("empty_programs_requests_vs_none"),
        by: &["control_requests_vs_direct"],
        about: "programs that do nothing at both ends; two equal sessions",
    },
    Why {
        figures: "bypass_latency_p50_vs_direct",
        floor: Some("empty_programs_latency_p50_vs_none"),
        by: &["control_latency_p50_vs_direct"],
        about: "programs that do nothing at both ends; two equal sessions",
    },
    Why {
        figures: "setup_added_us_",
        floor: Some("empty_programs_setup_added_us_"),
        by: &["stopped_daemons_setup_added_us_", "control_setup_added_us_"],
        about: "programs that do nothing on all links; ours while all daemons are stopped, so \
                that the rest is the daemons'; two equal lines",
    },
    Why {
        figures: "goodput_ratio_",
        floor: Some("empty_programs_goodput_ratio_"),
        by: &[
            "control_goodput_ratio_",
            "path_busy_chain_end_",
            "path_busy_chain_middle_",
            "path_busy_chain_server_",
        ],
        about: "programs that do nothing on all links; two equal lines; the part of a processor's \
                time that ours run on each of the three hosts, with one session or with 1,000",
    },
    Why {
        figures: "requests_ratio_",
        floor: Some("empty_programs_requests_ratio_"),
        by: &["control_requests_ratio_"],
        about: "programs that do nothing on all links; two equal lines",
    },
    Why {
        figures: "reconfig_ms_p50",
        floor: Some("reconfig_floor_ms_p50"),
        by: &["control_round_trip_ms_p50", "reconfig_handshake_ms_p50"],
        about: "four round trips of messages and the new path's handshake, one after the other; \
                one such round trip between two daemons that do nothing else, under the same \
                load; the handshake",
    },
    Why {
        figures: "replace_lowest_goodput",
        floor: Some("replace_unchanged_lowest_goodput"),
        by: &[],
        about: "the lowest of as many 100 ms of the second before, while nothing is changed",
    },
    Why {
        figures: "reconfigure_replace_ms_",
        floor: None,
        by: &["reconfigure_insert_ms_", "control_round_trip_ms_p50"],
        about: "the same change without state that is moved; a round trip of messages, of which \
                each step of a change is one, under full load",
    },
    Why {
        figures: "reconfigure_insert_ms_",
        floor: None,
        by: &["control_round_trip_ms_p50"],
        about: "a round trip of messages, of which each step of a change is one, under full load",
    },
    Why {
        figures: "translate_ns",
        floor: Some("run_ns_empty"),
        by: &["run_ns_tracked", "run_ns_identity_in"],
        about: "a run of a program that does nothing; one that reads the header, finds the \
                session and keeps what is new; one that translates, with nothing that differs",
    },
];

impl Why {
    fn of(name: &str) -> Option<&'static Why> {
        WHYS.iter().find(|why| name.starts_with(why.figures))
    }

    /// The figure of a run that explains one, whose name begins so.
    fn found<'a>(&self, run: &'a Value, name: &str, by: &str) -> Option<&'a Value> {
        let rest = &name[self.figures.len()..];
        find(run, &format!("{by}{rest}")).or_else(|| find(run, by.trim_end_matches('_')))
    }
}

/// A figure of a run.
pub fn find<'a>(run: &'a Value, name: &str) -> Option<&'a Value> {
    let figures = run["figures"].as_array()?;
    figures.iter().find(|figure| figure["name"] == name)
}

/// What a figure with a goal could be at best, in its own unit, if it was measured.
pub fn floor(run: &Value, name: &str) -> Option<f64> {
    find(run, name)?["goal"].as_object()?;
    let why = Why::of(name)?;
    why.found(run, name, why.floor?)?["value"].as_f64()
}

/// A value, as a table has it.
fn told(figure: &Value) -> String {
    let value = figure["value"].as_f64().map(short).unwrap_or_default();
    let text = format!("{value} {}", figure["unit"].as_str().unwrap_or_default());
    text.trim_end().to_owned()
}

/// A goal, as a table has it.
pub fn goal(figure: &Value) -> Option<String> {
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

/// Each goal that a run missed, with the figures that explain it, as a table.
pub fn missed(run: &Value) -> String {
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
        None => "**nothing yet**".into(),
        Some(why) => {
            let all = why.floor.iter().chain(why.by);
            let found = all.filter_map(|by| why.found(run, name, by));
            let named = |by: &Value| {
                let name = by["name"].as_str().unwrap_or_default();
                format!("`{name}` {}", told(by))
            };
            let found: Vec<_> = found.map(named).collect();
            match found.is_empty() {
                true => format!("not measured in this run: {}", why.about),
                false => format!("{}: {}", found.join(", "), why.about),
            }
        }
    };
    let goal = goal(figure).unwrap_or_default();
    format!("| `{name}` | {} | {goal} | {why} |\n", told(figure))
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
            figure("path_busy_chain_end", 0.0625, Value::Null),
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
        assert!(text.contains("`path_busy_chain_end` 0.062"), "{text}");
        assert!(!text.contains("goodput_ratio_1`"), "{text}");
        assert!(
            text.contains("| `other_ms` | 3.000 | ≤ 2 | **nothing yet** |"),
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
