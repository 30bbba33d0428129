use super::*;
use std::net::SocketAddr;

fn pair(witness: Witness) -> Pair {
    let key = |local: &str, remote: &str| {
        let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
        FlowKey::new(at(local), at(remote))
    };
    let end = |key, cookie| End {
        key,
        cookie,
        opened_here: cookie == 2,
    };
    let way = Direction {
        endless: true,
        declared: false,
        delta: 0,
        pipe: None,
    };
    Pair {
        id: PairId {
            pid: 7,
            fd_a: 3,
            fd_b: 4,
        },
        a: end(key("10.0.2.1:8090", "10.0.1.1:40000"), 1),
        b: end(key("10.0.2.1:50000", "10.0.3.1:9000"), 2),
        forward: way,
        reverse: way,
        witness,
    }
}

/// A pair that is removed before the watch of another one ends would be refused as unknown.
#[test]
fn what_counts_have_observed_is_watched_again_before_it_is_forgotten() {
    let mut registry = Registry::new(8, broadcast::channel(8).0);
    let counted = pair(Witness::Counts);
    let client = counted.a.key;
    assert!(!registry.is_sure(&client));
    registry.observe(counted);
    assert!(registry.is_sure(&client) && !registry.is_sure(&counted.b.key));
    let before = Instant::now().checked_sub(OBSERVED_FOR * 3 / 4).unwrap();
    registry.observed.insert(counted.id, before);
    registry.expire();
    assert!(registry.find(&client).is_some() && !registry.is_sure(&client));
    registry.claim(pair(Witness::Shim), 0, false).unwrap();
    assert!(registry.is_sure(&client));
}

/// A removal with a rate may wait for hours after the counts have shown its pair.
#[test]
fn a_pair_that_a_removal_needs_is_not_forgotten() {
    let mut registry = Registry::new(8, broadcast::channel(8).0);
    let counted = pair(Witness::Counts);
    registry.observe(counted);
    let before = Instant::now().checked_sub(OBSERVED_FOR * 2).unwrap();
    registry.observed.insert(counted.id, before);
    registry.need([counted.b.key].into_iter());
    registry.expire();
    assert!(registry.find(&counted.a.key).is_some());
    assert!(
        !registry.is_sure(&counted.a.key),
        "its counts are read again"
    );
    registry.needed.insert(counted.id, before);
    registry.expire();
    assert!(registry.find(&counted.a.key).is_none() && registry.needed.is_empty());
}
