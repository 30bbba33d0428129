//! Hosts of chains: those that first have to know their neighbour, and those that are to forget a
//! session.

use std::fs;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use dysco_common::chain::Token;
use dysco_common::transit::Keep;
use dysco_common::view::{Change, View};
use dysco_common::{Element, FlowKey};
use dysco_config::is_host;
use dysco_explain::Cause;
use dysco_proto::{ChangeId, HostEvent, HostId, Reason, Scope, Subsession};

use crate::engine::chains::message::MANY;
use crate::engine::firewall::as_opened;
use crate::engine::{Answer, ChainUpdates, Plane, ThisHost};

/// Time for which a neighbour is awaited.
const CONNECT: Duration = Duration::from_secs(4);

/// Step that waits for a neighbour.
pub(super) struct Waiting {
    change: ChangeId,
    next: IpAddr,
    until: Instant,
    what: What,
}

/// Order that a session is to pass here by a change.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Enlisting {
    pub change: ChangeId,
    /// Host that sent the order.
    pub from: HostId,
    pub session: Subsession,
    /// Host to which the session goes on.
    pub next: HostId,
    /// Number of the path to come.
    pub number: u32,
}

enum What {
    /// Report to that host that sessions may be passed on.
    Enlist(HostId),
    /// Open a path that leads through the neighbour.
    Open(Vec<Element>, bool, Token),
}

impl Waiting {
    pub(crate) fn to_open(
        change: ChangeId,
        next: IpAddr,
        (chain, inner): (Vec<Element>, bool),
        token: Token,
    ) -> Waiting {
        Waiting {
            change,
            next,
            until: Instant::now() + CONNECT,
            what: What::Open(chain, inner, token),
        }
    }

    pub(super) fn is_of(&self, change: ChangeId) -> bool {
        self.change == change && matches!(self.what, What::Open(..))
    }
}

impl ThisHost {
    pub(super) fn wait_for(&mut self, waiting: Waiting) {
        self.chains.meet(&self.plane, waiting.next);
        self.chains.ask_about_keys(&self.plane, waiting.next);
        self.chain_updates.waiting.push(waiting);
    }

    /// Gets ready for a session that is to pass here. Earlier changes have ended when a change
    /// begins: if this host was away then, it has more of the session than it should. `paths` are
    /// the numbers of the paths by which the session passes now.
    pub(in crate::engine) fn get_ready(
        &mut self,
        enlisting: &Enlisting,
        stays: bool,
        paths: &[u32],
    ) {
        let Enlisting {
            change,
            from,
            session,
            number,
            ..
        } = *enlisting;
        if self.chain_updates.forgetting.contains(&change) {
            // The order was repeated.
            return;
        }
        // As the anchor of a segment, this host may still receive late packets of a previous path.
        self.chain_updates.settle_late(&mut self.plane, &session);
        let keys = keys_of(&session);
        let has = self
            .plane
            .numbers_of(&self.plane.agent.passing_entries(&keys));
        let passing = &self.chain_updates.passing;
        let later = has.iter().any(|has| *has > number);
        if later || passing.is_late(change, &session, Instant::now()) {
            // A later change has brought this entry here, so it stays; or it is of a former session
            // with the same name.
            self.chain_updates.ask_in_use(&self.plane, session);
            let result = Err(Reason::UnknownChange);
            return self.plane.tell_machine(HostEvent::Enlisted {
                change,
                from,
                result,
            });
        }
        // A former process may have received the order already, and the path may be here since.
        let reported = passing.by(&session) == Some(change) || passing.is_done(change);
        self.chain_updates.expect_passing(change, session);
        if reported || has.contains(&number) {
            return self.enlist(*enlisting);
        }
        let keep = Keep::InUse {
            paths,
            until: number,
        };
        if stays {
            return self.enlist_staying(enlisting, &keys, keep);
        }
        let known = self.plane.known_to_firewall(&as_opened(&session));
        if self
            .chain_updates
            .tombstone_transit(&mut self.plane, &session)
        {
            self.chain_updates.forgetting.insert(change);
            return self
                .plane
                .remove_all_state(known, Answer::Cleared(*enlisting));
        }
        self.enlist(*enlisting);
    }

    /// Keeps one of the paths that this host has of a session, which passes it before and after the
    /// change.
    fn enlist_staying(&mut self, enlisting: &Enlisting, keys: &[FlowKey; 2], keep: Keep) {
        for slot in self.plane.agent.keep_one_path(keys, keep) {
            self.chain_updates
                .tombstone_path(&mut self.plane, Some(slot));
        }
        if !self.plane.has_two_paths(&enlisting.session) {
            return self.enlist(*enlisting);
        }
        let cause = Cause::new(
            "a host that stays has two paths of the session, and the session takes neither",
        )
        .hint("take the host out, and insert it again");
        self.plane.tell_machine(HostEvent::Enlisted {
            change: enlisting.change,
            from: enlisting.from,
            result: Err(Reason::ChainUnusable(cause)),
        });
    }

    pub(in crate::engine) fn cleared(&mut self, enlisting: Enlisting) {
        self.chain_updates.forgetting.remove(&enlisting.change);
        self.enlist(enlisting);
    }

    fn enlist(&mut self, enlisting: Enlisting) {
        let Enlisting {
            change, from, next, ..
        } = enlisting;
        let many = self.chain_updates.waiting.len() >= MANY
            && self.chains.known_hop(&self.plane, next).is_none();
        let may_pass = forwards(next).and_then(|()| self.plane.filters_nothing());
        let result = match may_pass {
            Err(reason) => Err(reason),
            Ok(()) if many => Err(Reason::Busy(next)),
            Ok(()) if !is_host(next) => Err(Reason::NoAgent(next)),
            Ok(()) if self.chains.known_hop(&self.plane, next).is_some() => {
                // The neighbour is needed from now on.
                self.chains.meet(&self.plane, next);
                Ok(())
            }
            Ok(()) => {
                let waits = |w: &Waiting| w.change == change && matches!(w.what, What::Enlist(_));
                if !self.chain_updates.waiting.iter().any(waits) {
                    self.wait_for(Waiting {
                        change,
                        next,
                        until: Instant::now() + CONNECT,
                        what: What::Enlist(from),
                    });
                }
                return;
            }
        };
        self.plane.tell_machine(HostEvent::Enlisted {
            change,
            from,
            result,
        });
    }

    /// Continues the steps that waited for this neighbour: sessions may be steered to it from now
    /// on.
    pub(in crate::engine) fn neighbour_ready(&mut self, neighbour: IpAddr) {
        let ready = |w: &mut Waiting| w.next == neighbour;
        let ready: Vec<Waiting> = self.chain_updates.waiting.extract_if(.., ready).collect();
        for waiting in ready {
            let change = waiting.change;
            match waiting.what {
                What::Enlist(from) => self.plane.tell_machine(HostEvent::Enlisted {
                    change,
                    from,
                    result: Ok(()),
                }),
                What::Open(chain, inner, token) => self.open_path(change, chain, inner, token),
            }
        }
    }

    /// Forgets a session that this host has passed on, or its paths with these numbers.
    pub(in crate::engine) fn forget_passed(
        &mut self,
        (change, from): (ChangeId, HostId),
        session: &Subsession,
        scope: Scope,
        paths: &[u32],
    ) {
        if self.chain_updates.passing.is_done(change) {
            return self
                .plane
                .tell_machine(HostEvent::Forgotten { change, from });
        }
        // Late: the session may pass here by another change now.
        let by = self.chain_updates.passing.by(session);
        let is_late = match scope {
            // A host that leaves was enlisted by an earlier change.
            Scope::Session => self
                .chain_updates
                .passing
                .is_late(change, session, Instant::now()),
            _ => by.is_some_and(|by| by != change),
        };
        if is_late || scope == Scope::Unopened {
            return self.chain_updates.forgotten(&mut self.plane, change, from);
        }
        self.chain_updates.settle_late(&mut self.plane, session);
        let keys = keys_of(session);
        for slot in self.plane.agent.keep_one_path(&keys, Keep::Without(paths)) {
            self.chain_updates
                .tombstone_path(&mut self.plane, Some(slot));
        }
        // The session still passes here by a path that was not given up. This is independent of
        // the orders to a former process, and of the addresses that the requesting host knows.
        let has = self
            .plane
            .numbers_of(&self.plane.agent.passing_entries(&keys));
        let stays = has.iter().any(|number| !paths.contains(number));
        if stays || matches!(scope, Scope::PathBefore | Scope::NewPath) {
            return self.chain_updates.forgotten(&mut self.plane, change, from);
        }
        if !self.chain_updates.forgetting.insert(change) {
            return;
        }
        self.chain_updates.passing.left(session);
        let opened = as_opened(session);
        let known = self.plane.known_to_firewall(&opened);
        self.chain_updates
            .tombstone_transit(&mut self.plane, session);
        self.moves.expect_no_state(&opened);
        // Only then may the session pass here again.
        self.plane
            .remove_all_state(known, Answer::Forgotten(change, from));
    }
}

impl ChainUpdates {
    /// Records that a session is to pass here by this change's path.
    pub(in crate::engine) fn expect_passing(&mut self, change: ChangeId, session: Subsession) {
        let passing = &mut self.passing;
        passing.expect(change, session, Instant::now());
    }

    /// Gives up the steps that have waited too long.
    pub(super) fn sweep_waiting(&mut self, plane: &mut Plane) {
        let now = Instant::now();
        let late = |w: &mut Waiting| w.until <= now;
        let late: Vec<Waiting> = self.waiting.extract_if(.., late).collect();
        for waiting in late {
            let change = waiting.change;
            let result = Err(Reason::NoAgent(waiting.next));
            plane.tell_machine(match waiting.what {
                What::Enlist(from) => HostEvent::Enlisted {
                    change,
                    from,
                    result,
                },
                What::Open(..) => HostEvent::Prepared { change, result },
            });
        }
    }

    /// Turns all entries of a session that passes here into tombstones. Returns true if there were
    /// any.
    pub(super) fn tombstone_transit(&mut self, plane: &mut Plane, session: &Subsession) -> bool {
        let all = plane.agent.passing_entries(&keys_of(session));
        for slot in &all {
            plane.agent.tombstone(*slot);
            self.tombstone_path(plane, Some(*slot));
        }
        !all.is_empty()
    }

    /// Reports that a session that has left is forgotten.
    pub(in crate::engine) fn forgotten(
        &mut self,
        plane: &mut Plane,
        change: ChangeId,
        from: HostId,
    ) {
        self.forgetting.remove(&change);
        self.passing.done_with(change);
        plane.tell_machine(HostEvent::Forgotten { change, from });
    }
}

impl Plane {
    /// Returns an error if this host's netfilter sees packets before the data plane on any of the
    /// interfaces: the session may arrive on one and leave by another.
    pub(super) fn filters_nothing(&self) -> Result<(), Reason> {
        match self.filtered(|_| true) {
            Some(cause) => Err(Reason::ChainUnusable(cause)),
            None => Ok(()),
        }
    }

    /// Returns the numbers of the paths to which entries belong.
    pub(super) fn numbers_of(&self, entries: &[u32]) -> Vec<u32> {
        let number = |slot: &u32| self.agent.session(*slot).laid_by;
        entries.iter().map(number).collect()
    }

    /// Returns true if a session passes here by two paths, on either side. One of them is given up
    /// on the order of an anchor.
    pub(super) fn passes_by_two(&self, session: &Subsession) -> bool {
        let all = self.agent.passing_entries(&keys_of(session)).into_iter();
        let mut views = all.map(|slot| self.agent.session(slot));
        views.any(|s| matches!(s.view(), View::Changing(Change::Passing(_))))
    }

    /// Returns true if a session passes here by two paths, on either side.
    fn has_two_paths(&self, session: &Subsession) -> bool {
        let has = |slot: u32| self.agent.session(slot).other_path().is_some();
        let all = self.agent.passing_entries(&keys_of(session));
        all.into_iter().any(has)
    }
}

/// Returns the keys of the entries for both directions of a session that passes here.
pub(super) fn keys_of(session: &Subsession) -> [FlowKey; 2] {
    let (left, right) = (session.left, session.right);
    [FlowKey::new(left, right), FlowKey::new(right, left)]
}

/// Returns an error if this host's stack does not forward.
fn forwards(to: IpAddr) -> Result<(), Reason> {
    let (file, name) = match to {
        IpAddr::V4(_) => ("/proc/sys/net/ipv4/ip_forward", "net.ipv4.ip_forward"),
        IpAddr::V6(_) => (
            "/proc/sys/net/ipv6/conf/all/forwarding",
            "net.ipv6.conf.all.forwarding",
        ),
    };
    match fs::read_to_string(file) {
        Ok(text) if text.trim() == "0" => {
            let why = format!("a host of it does not forward: {name} is 0 there");
            let hint = format!("set {name} to 1 on that host");
            Err(Reason::ChainUnusable(Cause::new(why).hint(hint)))
        }
        // If the file cannot be read, the SYN shows whether the host forwards.
        _ => Ok(()),
    }
}
