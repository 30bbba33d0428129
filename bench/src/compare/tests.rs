//! Constructed runs, and their comparison.

use super::*;

fn figure(better: Better, centre: f64, count: usize) -> PastFigure {
    let samples = (0..count).map(|i| centre * (1.0 + (i % 7) as f64 * 0.01));
    PastFigure {
        name: "x".into(),
        part: "a".into(),
        unit: String::new(),
        value: Some(centre),
        better: Some(better),
        samples: samples.collect(),
        rounds: Vec::new(),
    }
}

fn verdict(better: Better, to: f64, count: usize, noise: f64) -> Verdict {
    let (old, new) = (figure(better, 1.0, count), figure(better, to, count));
    judge(&old, &new, to - 1.0, noise)
}

#[test]
fn a_clear_change_is_known_by_its_direction() {
    assert_eq!(verdict(Better::More, 0.9, 40, 0.01), Verdict::Regressed);
    assert_eq!(verdict(Better::Less, 0.9, 40, 0.01), Verdict::Improved);
}

#[test]
fn chance_and_noise_are_no_change() {
    assert_eq!(verdict(Better::More, 0.999, 40, 0.0), Verdict::Same);
    assert_eq!(verdict(Better::More, 0.95, 40, 0.1), Verdict::Same);
    assert_eq!(verdict(Better::More, 0.9, 40, 0.2), Verdict::TooNoisy);
    assert_eq!(verdict(Better::More, 0.7, 40, 0.2), Verdict::Regressed);
}

/// Ten samples cannot distinguish half the value from chance at the odds that this many figures
/// require.
#[test]
fn what_cannot_be_distinguished_is_not_called_the_same() {
    for count in [0, 3, 10] {
        assert_eq!(verdict(Better::More, 0.5, count, 0.0), Verdict::CannotTell);
    }
    assert_eq!(verdict(Better::More, 0.5, 14, 0.0), Verdict::Regressed);
}

/// Samples of few rounds differ less than rounds do.
#[test]
fn samples_of_a_round_are_one_sample() {
    let of_rounds = |centre, rounds: usize| PastFigure {
        rounds: vec![120 / rounds; rounds],
        ..figure(Better::More, centre, 120)
    };
    let verdict = |rounds| judge(&of_rounds(1.0, rounds), &of_rounds(0.5, rounds), -0.5, 0.0);
    assert_eq!(verdict(3), Verdict::CannotTell);
    assert_eq!(verdict(12), Verdict::Regressed);
    let stored = serde_json::json!({"name": "x", "unit": "", "value": 1.0, "samples": [1.0]});
    let stored: PastFigure = serde_json::from_value(stored).expect("an earlier figure");
    assert!(stored.rounds.is_empty());
}

#[test]
fn what_is_none_of_ours_gets_no_worse() {
    let mut rival = figure(Better::More, 1.0, 40);
    rival.name = "rival_nginx_requests".into();
    let slower = figure(Better::More, 0.5, 40);
    let slower = PastFigure {
        name: rival.name.clone(),
        ..slower
    };
    assert_eq!(judge(&rival, &slower, -0.5, 0.0), Verdict::Foreign);
}

fn run_of(quick: bool, figures: &[(&str, &str, f64)]) -> Past {
    let of = |&(name, part, value): &(&str, &str, f64)| PastFigure {
        name: name.into(),
        part: part.into(),
        unit: if name.contains("_ns") { "ns" } else { "" }.into(),
        value: Some(value),
        ..figure(Better::More, 1.0, 0)
    };
    Past {
        date: String::new(),
        commit: String::new(),
        quick,
        figures: figures.iter().map(of).collect(),
    }
}

/// A slower machine makes all figures of a part worse.
#[test]
fn runs_differ_by_as_much_as_what_is_none_of_ours_does() {
    let before = run_of(
        false,
        &[
            ("spliced_goodput", "local", 1.0),
            ("sockmap_goodput", "local", 1.0),
            ("local_goodput", "local", 1.0),
            ("lookup_ns", "lookup", 1.0),
            ("shim_ratio", "shim", 1.0),
            ("run_ns_empty", "packet", 30.0),
        ],
    );
    let after = run_of(
        false,
        &[
            ("spliced_goodput", "local", 1.3),
            ("sockmap_goodput", "local", 0.9),
            ("local_goodput", "local", 9.0),
            ("lookup_ns", "lookup", 9.0),
            ("shim_ratio", "shim", 9.0),
            ("run_ns_empty", "packet", 45.0),
        ],
    );
    for (at, wanted) in [(2, 0.3), (3, 0.5), (4, 0.0)] {
        let of = &after.figures[at];
        let noise = between(&before, &after, of);
        assert!((noise - wanted).abs() < 1e-9, "{}: {noise}", of.name);
    }
}

#[test]
fn what_is_not_measured_any_more_is_reported() {
    let before = run_of(false, &[("a", "x", 1.0), ("b", "x", 1.0)]);
    let after = |quick| run_of(quick, &[("b", "x", 1.0)]);
    assert_eq!(before.gone_from(&after(false)), ["a"]);
    assert!(before.gone_from(&after(true)).is_empty());
}

#[test]
fn noise_is_that_of_the_same_part() {
    let of = |name: &str, part: &str, unit: &str, value| PastFigure {
        name: name.into(),
        part: part.into(),
        unit: unit.into(),
        value: Some(value),
        ..figure(Better::More, 1.0, 0)
    };
    let run = Past {
        date: String::new(),
        commit: String::new(),
        quick: false,
        figures: vec![
            of("control_goodput_a", "calm", "", 0.99),
            of("a", "calm", "", 0.9),
            of("control_goodput_b", "rough", "", 1.2),
            of("setup_added", "opening", "µs", 100.0),
            of("control_setup_added", "opening", "µs", -3.0),
            of("c", "without", "", 1.0),
        ],
    };
    let noise = [1, 3, 5].map(|at| run.noise(&run.figures[at]));
    for (noise, wanted) in noise.into_iter().zip([0.01, 0.03, 0.2]) {
        assert!((noise - wanted).abs() < 1e-9, "{noise} is not {wanted}");
    }
}

/// The memory of a rival and the round trip of a control message vary much, and hide nothing else.
#[test]
fn the_noise_of_another_quantity_counts_for_nothing() {
    let of = |name: &str, unit: &str, value| PastFigure {
        name: name.into(),
        part: "rivals".into(),
        unit: unit.into(),
        value: Some(value),
        ..figure(Better::Less, 1.0, 0)
    };
    let run = |jump: f64| Past {
        date: String::new(),
        commit: String::new(),
        quick: false,
        figures: vec![
            of("rival_nat_bytes_per_session_10000", "bytes", 3000.0 * jump),
            of("control_round_trip_ms_p50", "ms", jump),
            of("rival_nginx_latency_p99_vs_forwarding_1", "", jump),
            of("run_ns_empty", "ns", 30.0),
            of("translate_ns", "ns", 90.0),
            of("bytes_per_session", "bytes", 500.0),
            of("reconfig_ms_p50", "ms", 40.0),
            of("rival_relayed_goodput_vs_forwarding_1", "", 0.9),
        ],
    };
    let (before, after) = (run(1.0), run(2.5));
    for of in &after.figures[4..] {
        let noise = between(&before, &after, of).max(after.noise(of));
        assert_eq!(noise, 0.0, "{}", of.name);
    }
}

#[test]
fn only_controls_are_controls() {
    let named = |name: &str| PastFigure {
        name: name.into(),
        ..figure(Better::More, 1.0, 0)
    };
    assert!(!named("control_round_trip_ms_p50").is_foreign());
    for name in [
        "control_setup_added_us_1mb",
        "linked_control_goodput_ratio_1",
        "services_control_volleys",
    ] {
        assert!(named(name).is_control(), "{name}");
    }
}
