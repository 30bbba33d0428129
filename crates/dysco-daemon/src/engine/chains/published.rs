//! Policy and peers that the store of the fleet has. They come in here, and reach the data plane by
//! the same way as those of files.

use std::net::IpAddr;
use std::path::PathBuf;

use dysco_config::policy::{Policy, PolicyError};
use dysco_explain::{Cause, Explain, Explanation};
use dysco_fleet::{OwnState, Published, Refused};

use crate::engine::{Chains, Plane, services};

/// Policy of the store, as far as it was read.
pub(super) struct OfStore {
    /// Name of the policy's key, in listings and errors.
    place: PathBuf,
    /// Policy that was read last. While there is none, the file's applies.
    pub(super) known: Option<Published>,
    /// Policy of the store that is in force.
    in_force: Option<Published>,
    /// True if the key was deleted.
    is_gone: bool,
    peers: Vec<IpAddr>,
}

impl Chains {
    /// Prepares for a store. `kept` is what a former process had in force of it. Call it before the
    /// policy is started.
    pub(in crate::engine) fn expect_store(&mut self, place: PathBuf, kept: Option<Published>) {
        self.store = Some(OfStore {
            place,
            known: kept,
            in_force: None,
            is_gone: false,
            peers: Vec::new(),
        });
    }

    /// Returns true if the store has had a policy. The file is not read then.
    pub(super) fn follows_store(&self) -> bool {
        self.store.as_ref().is_some_and(|s| s.known.is_some())
    }

    /// Returns the policy that was read from the file, or why it could not be read. Where the store
    /// has the policy, neither matters.
    pub(in crate::engine) fn of_file(
        &self,
        read: Result<Option<Policy>, Explanation>,
    ) -> Result<Option<Policy>, Explanation> {
        match self.follows_store() {
            true => Ok(None),
            false => read,
        }
    }

    /// Returns the place of the policy: its file, or its key.
    pub(super) fn place(&self, plane: &Plane) -> PathBuf {
        let of_store = self.store.as_ref().filter(|s| s.known.is_some());
        of_store.map_or_else(|| plane.config.chain.policy.clone(), |s| s.place.clone())
    }

    /// Returns the policy of the store that is in force.
    pub(in crate::engine) fn published(&self) -> Option<&Published> {
        self.store.as_ref()?.in_force.as_ref()
    }

    /// Returns the reason why the policy of the store is not in force.
    pub(in crate::engine) fn refused_of_store(&self) -> Option<&Cause> {
        self.error.as_ref().filter(|_| self.follows_store())
    }

    /// Returns what other hosts are told about the policy here.
    pub(in crate::engine) fn own_state(&self) -> OwnState {
        let known = self.store.as_ref().and_then(|s| s.known.as_ref());
        let refused = known
            .zip(self.refused_of_store())
            .map(|(known, why)| Refused {
                revision: known.revision,
                why: why.to_string(),
            });
        OwnState {
            policy: self.published().map(|p| p.revision),
            refused,
        }
    }

    /// Takes the policy that the store has; none if it has none.
    pub(in crate::engine) fn take_published(
        &mut self,
        plane: &mut Plane,
        published: Option<&Published>,
    ) {
        let Some(store) = &mut self.store else {
            return;
        };
        match (published, &store.known) {
            (None, None) => {}
            (None, Some(_)) if store.is_gone => {}
            (None, Some(_)) => {
                store.is_gone = true;
                let why = format!("the key {} is gone", store.place.display());
                let hint = "publish it again, or an empty file for a policy without rules";
                self.refuse(plane, Cause::new(why).hint(hint));
            }
            (Some(new), Some(known)) if new == known && !store.is_gone => {}
            (Some(new), _) => {
                let new = new.clone();
                self.put_published(plane, new);
            }
        }
    }

    /// Puts a policy of the store in force. If it cannot be used, the previous policy stays.
    pub(super) fn put_published(&mut self, plane: &mut Plane, published: Published) {
        let Some(store) = &mut self.store else {
            return;
        };
        store.is_gone = false;
        store.known = Some(published.clone());
        let own = &plane.config.host.addresses;
        let read = Policy::of_fleet(&store.place, &published.text, own);
        let read = read.map_err(|e| e.explain().into());
        match read.and_then(|policy| self.put_in_force(plane, policy)) {
            Ok(()) => {
                self.error = None;
                if let Some(store) = &mut self.store {
                    store.in_force = Some(published);
                }
            }
            Err(why) => self.refuse(plane, why),
        }
    }

    /// Puts the policy that was read last in force once more, unless its key is gone.
    pub(super) fn put_published_again(&mut self, plane: &mut Plane) {
        let there = self.store.as_ref().filter(|store| !store.is_gone);
        if let Some(known) = there.and_then(|store| store.known.clone()) {
            self.put_published(plane, known);
        }
    }

    /// Checks a text that is to be published.
    pub(in crate::engine) fn check_published(&self, text: &str) -> Result<(), Cause> {
        let place = self.store.as_ref().map(|s| s.place.clone());
        let policy = Policy::parse(&place.unwrap_or_default(), text);
        let policy = policy.map_err(|e: PolicyError| Cause::from(e.explain()))?;
        services::check_policy(&policy)
    }

    /// Takes the hosts that the store has, each by one address, and connects to new ones.
    pub(in crate::engine) fn take_store_peers(&mut self, plane: &Plane, peers: Vec<IpAddr>) {
        let Some(store) = &mut self.store else {
            return;
        };
        let before = std::mem::replace(&mut store.peers, peers.clone());
        for peer in peers.into_iter().filter(|peer| !before.contains(peer)) {
            if self.key_for(peer).is_none() {
                plane.control.reach(peer);
            }
        }
    }

    pub(super) fn store_peers(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.store
            .iter()
            .flat_map(|store| store.peers.iter().copied())
    }
}
