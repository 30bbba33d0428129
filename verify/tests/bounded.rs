//! The smaller explorations, whole, and every seeded bug.

use std::time::Duration;

use dysco_verify::chain::config as chain;
use dysco_verify::config::{self, Configuration};
use dysco_verify::report::{Explored, explore, explore_chain, show};
use dysco_verify::world::Faults;

fn named(name: &str) -> Configuration {
    let found = config::all().into_iter().find(|c| c.name == name);
    found.unwrap_or_else(|| panic!("there is no configuration {name}"))
}

fn holds(config: Configuration) {
    sound(&explore(config, None), 500);
}

fn sound(explored: &Explored, states: usize) {
    assert_eq!(explored.violations().count(), 0, "{}", show(explored));
    assert!(explored.states > states, "{}", show(explored));
}

fn found(explored: &Explored) {
    let found = explored.violations().next();
    let found = found.unwrap_or_else(|| panic!("not found: {}", show(explored)));
    assert!(!found.steps.is_empty(), "it is not told how");
}

/// With fewer daemons that die.
fn chain_holds(name: &str, crashes: u8) {
    let config = chain::all().into_iter().find(|c| c.name == name);
    let config = config.unwrap_or_else(|| panic!("there is no configuration {name}"));
    let faults = chain::Faults {
        crashes,
        ..config.faults
    };
    sound(
        &explore_chain(chain::Configuration { faults, ..config }, None),
        200,
    );
}

#[test]
fn a_removal() {
    holds(named("removal"));
}

#[test]
fn messages_are_lost() {
    holds(named("losses"));
}

#[test]
fn a_daemon_dies() {
    let faults = Faults {
        crashes: 1,
        ..named("crashes").faults
    };
    holds(Configuration {
        faults,
        ..named("crashes")
    });
}

#[test]
fn hosts_fail_and_are_asked_again() {
    holds(named("refusals"));
}

#[test]
fn neighbours_contend() {
    let faults = Faults {
        late: 0,
        ..named("neighbours").faults
    };
    holds(Configuration {
        faults,
        ..named("neighbours")
    });
}

#[test]
fn bytes_on_two_paths() {
    let faults = Faults {
        again: 0,
        ..named("streams").faults
    };
    holds(Configuration {
        bytes: [1, 1],
        faults,
        ..named("streams")
    });
}

/// A check that finds nothing where something is wrong is none.
#[test]
fn every_seeded_bug_is_found() {
    let seeded = config::seeded();
    assert!(seeded.len() >= 5);
    for config in seeded {
        let sound = Configuration {
            seed: None,
            ..config.clone()
        };
        holds(sound);
        found(&explore(config, None));
    }
}

#[test]
fn a_host_takes_the_place_of_another() {
    chain_holds("chain-replace", 0);
    chain_holds("chain-losses", 0);
    chain_holds("chain-late", 0);
}

#[test]
fn daemons_die_while_chains_change() {
    chain_holds("chain-crashes", 1);
}

#[test]
fn chains_overlap_and_follow_each_other() {
    chain_holds("chain-overlapping", 0);
    chain_holds("chain-and-back", 1);
}

#[test]
fn every_seeded_bug_of_chains_is_found() {
    let seeded = chain::seeded();
    assert!(seeded.len() >= 4);
    for config in seeded {
        let whole = chain::Configuration {
            seed: None,
            ..config.clone()
        };
        sound(&explore_chain(whole, None), 50);
        found(&explore_chain(config, None));
    }
}

/// What was not reached in time is no fault, and is said.
#[test]
fn what_is_broken_off_does_not_pass_for_the_whole() {
    let explored = explore(named("mixed"), Some(Duration::from_millis(1)));
    assert_eq!(explored.violations().count(), 0, "{}", show(&explored));
    assert!(!explored.whole);
    assert!(show(&explored).contains("not all of it"));
    assert!(explore(named("removal"), None).whole);
}
