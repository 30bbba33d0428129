//! Proxies that have left, on a link of this host. The stack resolves the address that it knows
//! before a packet reaches the programs, which send it elsewhere. With the proxy's host off, its
//! neighbour entry would fail, and the session with it. Where no host answers for the address any
//! more, this module therefore confirms the last known neighbour entry to the kernel, as long as a
//! session needs it.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use dysco_agent::{AgentError, Neighbour, NeighbourState, Routes};
use dysco_common::Session;
use dysco_common::view::ChainState;

use super::Plane;

/// Places of the neighbours that sessions need, by address and interface.
type Known = HashMap<(IpAddr, u32), Place>;

/// Last known place of a neighbour.
struct Place {
    at: Neighbour,
    /// Number of looks for which the kernel has asked the whole link without an answer.
    asked: u32,
}

/// Number of looks, a second apart, after which no host is believed to have the address: the kernel
/// asks three times.
const MAX_UNANSWERED: u32 = 4;

#[derive(Default)]
pub(super) struct OnLink {
    /// Proxies that sessions were seen to need in this pass over the table.
    needed: HashSet<IpAddr>,
    known: Arc<Mutex<Known>>,
}

impl OnLink {
    /// Records the proxy that a session of the table needs.
    pub(super) fn see(&mut self, s: &Session) {
        let Some(route) = s.view().taken_route() else {
            return;
        };
        let left = route.chain == ChainState::None || route.bypassed;
        if left && route.joined.is_none() {
            self.needed.insert(s.key.remote.ip());
        }
    }
}

/// Returns the neighbours that have to be confirmed, and records where all are. The kernel is left
/// alone as long as a broadcast may find the address, also elsewhere.
fn to_confirm(known: &mut Known, needed: &HashSet<IpAddr>, all: Vec<Neighbour>) -> Vec<Neighbour> {
    known.retain(|(address, _), _| needed.contains(address));
    let mut unconfirmed = Vec::new();
    for now in all.into_iter().filter(|n| needed.contains(&n.address)) {
        let name = (now.address, now.ifindex);
        let stays = |place: &Place| now.link.is_none() || now.link == place.at.link;
        if !known.get(&name).is_some_and(stays) {
            if now.link.is_some() {
                known.insert(name, Place { at: now, asked: 0 });
            }
            continue;
        }
        let Some(place) = known.get_mut(&name) else {
            continue;
        };
        let there = [NeighbourState::Reachable, NeighbourState::Stale].contains(&now.state);
        if now.link.is_none() && place.asked < MAX_UNANSWERED {
            place.asked += 1;
        } else if there && place.asked < MAX_UNANSWERED {
            place.asked = 0;
        }
        if place.asked == MAX_UNANSWERED && !there {
            unconfirmed.push(place.at.clone());
        }
    }
    unconfirmed
}

async fn keep(routes: Routes, known: Arc<Mutex<Known>>, needed: HashSet<IpAddr>) {
    let unconfirmed = match routes.neighbours().await {
        Ok(all) => {
            let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
            to_confirm(&mut known, &needed, all)
        }
        Err(error) => return warn(&error),
    };
    for neighbour in unconfirmed {
        if let Err(error) = routes.confirm(&neighbour).await {
            // Its interface may be gone, and made again.
            let name = (neighbour.address, neighbour.ifindex);
            let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
            known.remove(&name);
            warn(&error);
        }
    }
}

fn warn(error: &AgentError) {
    tracing::warn!(%error, "sessions that their proxy has left may stop once its host is off");
}

impl OnLink {
    /// Keeps the neighbours that sessions were seen to need. Runs once in each pass over the table,
    /// which is sooner than the kernel gives up asking.
    pub(super) fn keep_neighbours(&mut self, plane: &Plane) {
        let needed = std::mem::take(&mut self.needed);
        if needed.is_empty() {
            return;
        }
        let (routes, known) = (plane.routes.clone(), Arc::clone(&self.known));
        tokio::spawn(keep(routes, known, needed));
    }
}

#[cfg(test)]
mod tests {
    use dysco_agent::NeighbourFlags;

    use super::*;

    #[test]
    fn what_nobody_answers_for_is_kept_where_it_was() {
        use NeighbourState::{Delay, Failed, Incomplete, Probe, Reachable, Stale};
        let at = |last, link: u8, state| {
            let there = ![Incomplete, Failed].contains(&state);
            Neighbour {
                address: IpAddr::from([10, 0, 0, last]),
                ifindex: 3,
                link: there.then(|| vec![2, 0, 0, 0, 0, link]),
                state,
                flags: NeighbourFlags::empty(),
            }
        };
        let needed = HashSet::from([at(1, 0, Failed).address]);
        let mut known = Known::new();
        let mut looked = |now: Neighbour| {
            let all = vec![at(2, 9, Failed), now];
            let confirmed = to_confirm(&mut known, &needed, all);
            confirmed
                .iter()
                .filter_map(|n| Some(n.link.as_ref()?[5]))
                .collect::<Vec<_>>()
        };
        // Never seen; there; probed by unicast, and then on the whole link.
        let states = [
            (0, Failed),
            (1, Reachable),
            (1, Delay),
            (1, Probe),
            (0, Failed),
        ];
        for (link, state) in states {
            assert!(looked(at(1, link, state)).is_empty(), "{state:?}");
        }
        for _ in 2..MAX_UNANSWERED {
            assert!(looked(at(1, 0, Incomplete)).is_empty());
        }
        assert_eq!(looked(at(1, 0, Incomplete)), [1]);
        // From then on the kernel does not ask again.
        assert!(looked(at(1, 1, Reachable)).is_empty() && looked(at(1, 1, Stale)).is_empty());
        assert_eq!(looked(at(1, 1, Delay)), [1]);
        // Until another host has the address.
        assert!(looked(at(1, 7, Stale)).is_empty() && looked(at(1, 7, Probe)).is_empty());
        for _ in 1..MAX_UNANSWERED {
            assert!(looked(at(1, 0, Incomplete)).is_empty());
        }
        // It was lost, and answers.
        assert!(looked(at(1, 7, Reachable)).is_empty());
        for _ in 1..MAX_UNANSWERED {
            assert!(looked(at(1, 0, Incomplete)).is_empty());
        }
        assert_eq!(looked(at(1, 0, Failed)), [7]);
        to_confirm(&mut known, &HashSet::new(), vec![]);
        assert!(known.is_empty());
    }
}
