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
use crate::scheduling::spawn_short;
use crate::state;

/// How long a neighbour is waited for.
const CONNECT: Duration = Duration::from_secs(4);

/// Changes of which it is remembered that they are done with here: of more than
/// can be on their way.
const FORGOTTEN: usize = 1024;

/// What waits for a neighbour.
pub(super) struct Waiting {
    change: ChangeId,
    next: IpAddr,
    until: Instant,
    what: What,
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

    /// A session is to pass here by this change's path: what an earlier one asks
    /// to be forgotten is late.
    pub(in crate::engine) fn expect_passing(&mut self, change: ChangeId, session: Subsession) {
        if self.rechain.forgotten.contains(&change) {
            return;
        }
        match self.rechain.passing.put(session, change) {
            Some(former) if former != change => self.done_with(former),
            _ => {}
        }
    }

    fn done_with(&mut self, change: ChangeId) {
        if self.rechain.forgotten.len() == FORGOTTEN {
            self.rechain.forgotten.pop_front();
        }
        self.rechain.forgotten.push_back(change);
    }

    pub(in crate::engine) fn enlist(
        &mut self,
        change: ChangeId,
        from: HostId,
        session: &Subsession,
        next: HostId,
    ) {
        self.settle_late(session);
        let many = self.rechain.waiting.len() >= MANY && self.hop_to(next).is_none();
        let result = match forwards(next).and_then(|()| self.may_stay(session)) {
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
        // Late: the session may pass here by another change now.
        let by_another = self
            .rechain
            .passing
            .peek(session)
            .is_some_and(|by| *by != change);
        let is_late = by_another && scope != Scope::Session;
        if is_late || self.rechain.forgotten.contains(&change) {
            return self.tell_machine(HostEvent::Forgotten { change, from });
        }
        self.settle_late(session);
        let (left, right) = (session.left, session.right);
        let keys = [FlowKey::new(left, right), FlowKey::new(right, left)];
        let keep = match scope {
            Scope::Session | Scope::Newcomer => Keep::Taken,
            Scope::PathBefore => Keep::New,
            Scope::NewPath => Keep::Before,
        };
        let left_out = self.agent.keep_one_path(&keys, keep);
        let has_other = !left_out.is_empty();
        for slot in left_out {
            self.entomb_path(Some(slot));
        }
        if has_other || matches!(scope, Scope::PathBefore | Scope::NewPath) {
            return self.forgotten(change, from);
        }
        if !self.rechain.forgetting.insert(change) {
            return;
        }
        self.rechain.passing.pop(session);
        let opened = as_opened(session);
        let known = self.known_to_firewall(&opened);
        for key in keys {
            let Some(slot) = self.agent.find_called(&key) else {
                continue;
            };
            let s = self.agent.session(slot);
            if s.two.chained != 0 && s.state == State::NewPath as u32 {
                for slot in [Some(slot), self.linked(slot, &s)].into_iter().flatten() {
                    self.agent.tombstone(slot);
                    self.entomb_path(Some(slot));
                }
            }
        }
        self.expect_no_state(&opened);
        let answers = self.answers.clone();
        spawn_short(move || {
            if let Err(error) = state::remove(&known, &[]) {
                tracing::warn!(session = %known, %error, "what the firewall knows of a session that has left is not removed");
            }
            // Only now may the session come here again. The engine may have ended.
            let _ = answers.send(Answer::Forgotten(change, from));
        });
    }

    /// A session that has left is forgotten.
    pub(in crate::engine) fn forgotten(&mut self, change: ChangeId, from: HostId) {
        self.rechain.forgetting.remove(&change);
        self.done_with(change);
        self.tell_machine(HostEvent::Forgotten { change, from });
    }
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
