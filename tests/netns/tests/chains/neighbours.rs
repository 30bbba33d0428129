//! Hosts exchange keys although each of their messages for that is lost once: sessions are steered
//! through them.

use crate::steered::policy::rule;
use crate::steered::{At, Steered};
use anyhow::{Result, ensure};
use dysco_netns::Family;
use dysco_netns::stream::{Plan, all_intact};

use At::{Client, Fw1, Fw2, Server};

const CHAIN: [At; 2] = [Fw1, Fw2];

/// First messages of each host, with the number of losses. The first firewall tells each of the
/// others that it believes their key; none of them receives the message, so that they ask. The
/// client's message by which the firewalls learn of each other is lost too.
const LOST: [(At, &str, usize); 5] = [
    (Fw1, "Believed", 3),
    (Client, "IsBelieved", 1),
    (Fw2, "IsBelieved", 1),
    (Client, "Meet", 1),
    (Server, "Believed", 1),
];

fn words(at: At) -> String {
    let own = LOST.iter().filter(|(whose, ..)| *whose == at);
    let each =
        own.flat_map(|(_, word, times)| (1..=*times).map(move |n| format!("drop:{word}:{n}")));
    each.collect::<Vec<_>>().join(",")
}

#[test]
fn each_word_by_which_hosts_know_each_other_is_lost() -> Result<()> {
    let words = At::ALL.map(|at| (at, words(at)));
    let faults = words.each_ref().map(|(at, words)| (*at, words.as_str()));
    let world = Steered::failing(Family::V6, &rule(Family::V6, &CHAIN), &faults)?;
    world.wait_neighbours(&CHAIN)?;
    for (at, word, times) in LOST {
        let lost = world.lost(at, word)?;
        ensure!(lost == times, "{word} of {at:?} was lost {lost} times");
    }
    let group = world.open(1, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 20)?;
    world.wait_only_through(&CHAIN)?;
    all_intact(&group.finish()?)?;
    world.finish()
}
