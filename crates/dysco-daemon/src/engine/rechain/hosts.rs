//! Hosts of chains: those that have to know their neighbour first, and those that
//! are to forget a session.

use std::fs;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use dysco_agent::Keep;
use dysco_common::chain::{Hop, Token};
use dysco_common::{FlowKey, State};

use crate::config::is_host;
use crate::engine::chains::MANY;
use crate::engine::firewall::as_opened;
use crate::engine::{Answer, Engine};
use crate::protocol::{ChangeId, HostEvent, HostId, Reason, Scope, Subsession};

/// How long a neighbour is waited for.
const CONNECT: Duration = Duration::from_secs(4);

/// What waits for a neighbour.
pub(super) struct Waiting {
    change: ChangeId,
    next: IpAddr,
    until: Instant,
    what: What,
}

/// That a session is to pass here by a change.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Enlisting {
    pub change: ChangeId,
    /// Who asked.
    pub from: HostId,
    pub session: Subsession,
    /// It goes on to this host.
    pub next: HostId,
}

enum What {
    /// To tell that host that sessions may be passed on.
    Enlist(HostId),
    /// To open a path by it.
    Open(Vec<IpAddr>, bool, Token),
}

impl Waiting {
    pub fn to_open(
        change: ChangeId,
        next: IpAddr,
        (chain, inner): (Vec<IpAddr>, bool),
        token: Token,
    ) -> Waiting {
        Waiting {
            change,
            next,
            until: Instant::now() + CONNECT,
            what: What::Open(chain, inner, token),
        }
    }

    pub fn is_of(&self, change: ChangeId) -> bool {
        self.change == change && matches!(self.what, What::Open(..))
    }
}

impl Engine {
    /// What leads to a neighbour.
    pub(super) fn hop_to(&self, next: IpAddr) -> Option<Hop> {
        self.known_hop(next)
    }

    pub(super) fn wait_for(&mut self, waiting: Waiting) {
        self.meet(waiting.next);
        self.ask_about_keys(waiting.next);
        self.rechain.waiting.push(waiting);
    }

    /// A session is to pass here by this change's path.
    pub(in crate::engine) fn expect_passing(&mut self, change: ChangeId, session: Subsession) {
        let passing = &mut self.rechain.passing;
        passing.expect(change, session, Instant::now());
    }

    /// A session is to pass here. A change begins, so that the one before has ended: if
    /// this host was away then it has more of the session than it should.
    pub(in crate::engine) fn get_ready(&mut self, enlisting: Enlisting, stays: bool) {
        let Enlisting {
            change,
            from,
            session,
            ..
        } = enlisting;
        if self.rechain.forgetting.contains(&change) {
            // It is asked for again.
            return;
        }
        let passing = &self.rechain.passing;
        if passing.is_late(change, &session, Instant::now()) {
            // What a later change has brought here stays.
            let result = Err(Reason::UnknownChange);
            return self.tell_machine(HostEvent::Enlisted {
                change,
                from,
                result,
            });
        }
        if passing.by(&session) == Some(change) || passing.is_done(change) {
            return self.enlist(enlisting);
        }
        self.expect_passing(change, session);
        // Of two paths the one that is in use may stay.
        for slot in self.agent.keep_one_path(&keys_of(&session), Keep::Used) {
            self.entomb_path(Some(slot));
        }
        let known = self.known_to_firewall(&as_opened(&session));
        if !stays && self.entomb_passed(&session) {
            self.rechain.forgetting.insert(change);
            return self.remove_all_state(known, Answer::Cleared(enlisting));
        }
        self.enlist(enlisting);
    }

    pub(in crate::engine) fn cleared(&mut self, enlisting: Enlisting) {
        self.rechain.forgetting.remove(&enlisting.change);
        self.enlist(enlisting);
    }

    fn enlist(&mut self, enlisting: Enlisting) {
        let Enlisting {
            change,
            from,
            session,
            next,
        } = enlisting;
        self.settle_late(&session);
        let many = self.rechain.waiting.len() >= MANY && self.hop_to(next).is_none();
        let result = match forwards(next).and_then(|()| self.may_stay(&session)) {
            Err(reason) => Err(reason),
            Ok(()) if many => Err(Reason::Busy(next)),
            Ok(()) if !is_host(next) => Err(Reason::NoAgent(next)),
            Ok(()) if self.hop_to(next).is_some() => {
                // It is needed from now on.
                self.meet(next);
                Ok(())
            }
            Ok(()) => {
                let waits = |w: &Waiting| w.change == change && matches!(w.what, What::Enlist(_));
                if !self.rechain.waiting.iter().any(waits) {
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
        self.tell_machine(HostEvent::Enlisted {
            change,
            from,
            result,
        });
    }

    /// Sessions may be steered to this neighbour from now on.
    pub(in crate::engine) fn neighbour_ready(&mut self, neighbour: IpAddr) {
        let ready = |w: &mut Waiting| w.next == neighbour;
        let ready: Vec<Waiting> = self.rechain.waiting.extract_if(.., ready).collect();
        for waiting in ready {
            let change = waiting.change;
            match waiting.what {
                What::Enlist(from) => self.tell_machine(HostEvent::Enlisted {
                    change,
                    from,
                    result: Ok(()),
                }),
                What::Open(chain, inner, token) => self.open_path(change, chain, inner, token),
            }
        }
    }

    /// Gives up what has waited too long.
    pub(super) fn sweep_waiting(&mut self) {
        let now = Instant::now();
        let late = |w: &mut Waiting| w.until <= now;
        let late: Vec<Waiting> = self.rechain.waiting.extract_if(.., late).collect();
        for waiting in late {
            let change = waiting.change;
            let result = Err(Reason::NoAgent(waiting.next));
            self.tell_machine(match waiting.what {
                What::Enlist(from) => HostEvent::Enlisted {
                    change,
                    from,
                    result,
                },
                What::Open(..) => HostEvent::Prepared { change, result },
            });
        }
    }

    /// Forgets a session that this host has passed on, or one of its paths here.
    pub(in crate::engine) fn forget_passed(
        &mut self,
        change: ChangeId,
        from: HostId,
        session: &Subsession,
        scope: Scope,
    ) {
        if self.rechain.passing.is_done(change) {
            return self.tell_machine(HostEvent::Forgotten { change, from });
        }
        // Late: the session may pass here by another change now.
        let by = self.rechain.passing.by(session);
        let is_late = match scope {
            // A host that leaves came by an earlier change.
            Scope::Session => self
                .rechain
                .passing
                .is_late(change, session, Instant::now()),
            _ => by.is_some_and(|by| by != change),
        };
        if is_late || scope == Scope::Unopened {
            return self.forgotten(change, from);
        }
        self.settle_late(session);
        let keys = keys_of(session);
        let keep = match scope {
            Scope::Session | Scope::Newcomer => Keep::Taken,
            Scope::PathBefore => Keep::New,
            Scope::NewPath | Scope::Unopened => Keep::Before,
        };
        let left_out = self.agent.keep_one_path(&keys, keep);
        // Who asks may not know that this host, which stays, goes by two addresses. One that
        // leaves had no part in this change.
        let stays = !left_out.is_empty() && (by == Some(change) || scope == Scope::Newcomer);
        for slot in left_out {
            self.entomb_path(Some(slot));
        }
        if stays || matches!(scope, Scope::PathBefore | Scope::NewPath) {
            return self.forgotten(change, from);
        }
        if !self.rechain.forgetting.insert(change) {
            return;
        }
        self.rechain.passing.left(session);
        let opened = as_opened(session);
        let known = self.known_to_firewall(&opened);
        self.entomb_passed(session);
        self.expect_no_state(&opened);
        // Only then may the session come here again.
        self.remove_all_state(known, Answer::Forgotten(change, from));
    }

    /// The entries of a session that passes here become tombstones. Were there any?
    fn entomb_passed(&mut self, session: &Subsession) -> bool {
        let mut any = false;
        for key in keys_of(session) {
            let Some(slot) = self.agent.find_called(&key) else {
                continue;
            };
            let s = self.agent.session(slot);
            if s.two.chained != 0 && s.state == State::NewPath as u32 {
                any = true;
                for slot in [Some(slot), self.linked(slot, &s)].into_iter().flatten() {
                    self.agent.tombstone(slot);
                    self.entomb_path(Some(slot));
                }
            }
        }
        any
    }

    /// A session that has left is forgotten.
    pub(in crate::engine) fn forgotten(&mut self, change: ChangeId, from: HostId) {
        self.rechain.forgetting.remove(&change);
        self.rechain.passing.done_with(change);
        self.tell_machine(HostEvent::Forgotten { change, from });
    }
}

/// What the entries for either direction of a session that passes here lie under.
fn keys_of(session: &Subsession) -> [FlowKey; 2] {
    let (left, right) = (session.left, session.right);
    [FlowKey::new(left, right), FlowKey::new(right, left)]
}

/// Does this host's stack forward?
fn forwards(to: IpAddr) -> Result<(), Reason> {
    let (file, name) = match to {
        IpAddr::V4(_) => ("/proc/sys/net/ipv4/ip_forward", "net.ipv4.ip_forward"),
        IpAddr::V6(_) => (
            "/proc/sys/net/ipv6/conf/all/forwarding",
            "net.ipv6.conf.all.forwarding",
        ),
    };
    match fs::read_to_string(file) {
        Ok(text) if text.trim() == "0" => Err(Reason::ChainUnusable(format!(
            "a host of it does not forward: {name} is 0 there"
        ))),
        // What cannot be read is found out by the SYN.
        _ => Ok(()),
    }
}
