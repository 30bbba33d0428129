//! Proxies that have left, on a link of this host. The stack resolves the address that it knows
//! before a packet gets to the programs, which send it elsewhere: with the proxy's host off its
//! neighbour would fail, and the session with it. So the kernel is told, as long as a session
//! needs it, that the proxy is there, under the link-layer address that it has or had.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use dysco_agent::{AgentError, Neighbour, Routes};
use dysco_common::{Session, State};

use super::Engine;

/// Where those are that sessions need, by address.
type Known = HashMap<IpAddr, Neighbour>;

#[derive(Default)]
pub(super) struct OnLink {
    /// The proxies that sessions have been seen to need, in this pass over the table.
    needed: HashSet<IpAddr>,
    known: Arc<Mutex<Known>>,
}

impl OnLink {
    /// Takes in a session of the table.
    pub fn see(&mut self, s: &Session) {
        let elsewhere = s.state == State::NewPath as u32;
        if elsewhere && s.two.chained == 0 && s.joined_to().is_none() {
            self.needed.insert(s.key.remote.ip());
        }
    }
}

/// Which of all neighbours are to be confirmed. Keeps in mind where they are.
fn to_confirm(known: &mut Known, needed: &HashSet<IpAddr>, all: Vec<Neighbour>) -> Vec<Neighbour> {
    known.retain(|address, _| needed.contains(address));
    let mut doubted = Vec::new();
    for now in all.into_iter().filter(|n| needed.contains(&n.address)) {
        let is_doubted = now.doubted;
        if now.link.is_some() {
            known.insert(now.address, now.clone());
        }
        let at = known.get(&now.address).filter(|_| is_doubted);
        doubted.extend(at.cloned());
    }
    doubted
}

async fn keep(routes: Routes, known: Arc<Mutex<Known>>, needed: HashSet<IpAddr>) {
    let done: Result<(), AgentError> = async {
        let all = routes.neighbours().await?;
        let doubted = {
            let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
            to_confirm(&mut known, &needed, all)
        };
        for neighbour in doubted {
            routes.confirm(&neighbour).await?;
        }
        Ok(())
    }
    .await;
    if let Err(error) = done {
        tracing::warn!(%error, "sessions that their proxy has left may stop once its host is off");
    }
}

impl Engine {
    /// Keeps the neighbours that sessions were seen to need. Once in each pass over the table,
    /// which is sooner than the kernel has asked in vain for one that it doubts.
    pub(super) fn keep_neighbours(&mut self) {
        let needed = std::mem::take(&mut self.on_link.needed);
        if needed.is_empty() {
            return;
        }
        let (routes, known) = (self.routes.clone(), Arc::clone(&self.on_link.known));
        tokio::spawn(keep(routes, known, needed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_needed_and_doubted_are_confirmed_where_they_were() {
        let at = |last, link: Option<u8>, doubted| Neighbour {
            address: IpAddr::from([10, 0, 0, last]),
            ifindex: 3,
            link: link.map(|b| vec![2, 0, 0, 0, 0, b]),
            doubted,
        };
        let needed = HashSet::from([at(1, None, false).address]);
        let mut known = Known::new();
        let mut confirm = |now: Neighbour| {
            let others = at(2, Some(9), true);
            to_confirm(&mut known, &needed, vec![others, now])
        };
        // Never seen, there, asked for, moved elsewhere, and gone.
        assert_eq!(confirm(at(1, None, true)), []);
        assert_eq!(confirm(at(1, Some(1), false)), []);
        assert_eq!(confirm(at(1, Some(1), true)), [at(1, Some(1), true)]);
        assert_eq!(confirm(at(1, Some(7), false)), []);
        assert_eq!(confirm(at(1, None, true)), [at(1, Some(7), false)]);
        to_confirm(&mut known, &HashSet::new(), vec![]);
        assert!(known.is_empty());
    }
}
