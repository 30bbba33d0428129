//! Services of new sessions: of a rule of the policy, or of a program that runs with services. The data
//! plane holds such a session from its handshake on (`State::Held`), until the services are in. It does
//! not hold one whose services are of the packet plane. If the rule has hosts as well, their session is
//! not held: the services come into it once it is open.

use std::time::{Duration, Instant};

use dysco_api::{ServiceSpec, SessionName};
use dysco_common::View;
use dysco_common::policy::Otherwise;
use dysco_common::seq::after;
use dysco_explain::Cause;
use dysco_proxy::diag;
use dysco_runner::Ends;

use super::{Serviced, Services, Stage, choice, packets, words};
use crate::engine::Plane;
use crate::handlers::Owner;

/// Services that a session is to have.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Wanted {
    pub services: Vec<ServiceSpec>,
    /// Treatment of the session if it cannot have them.
    pub otherwise: Otherwise,
    /// The one whose handler runs them.
    pub owner: Owner,
    /// Their origin, in the words of an event.
    pub by: String,
}

/// A session whose services are those of a rule or a run.
pub(super) struct Held {
    pub otherwise: Otherwise,
    pub by: String,
}

/// Repetition of a packet until the remote end was heard.
pub(super) struct Probe {
    at: Instant,
    interval: Duration,
}

/// First interval of repetitions. It doubles each time.
const FIRST: Duration = Duration::from_millis(250);
/// Longest interval. A stack repeats its SYN-ACK for about as long.
const LAST: Duration = Duration::from_secs(32);

impl Probe {
    pub(super) fn first() -> Probe {
        Probe {
            at: Instant::now() + FIRST,
            interval: FIRST,
        }
    }
}

impl Wanted {
    /// True if the services are of the packet plane.
    pub(in crate::engine) fn is_of_packets(&self) -> bool {
        self.services.iter().any(ServiceSpec::names_plane)
    }
}

impl Services {
    /// Begins to put services into a session that is held, or that is to have services of the packet
    /// plane.
    pub(in crate::engine) fn hold(&mut self, plane: &mut Plane, slot: u32, wanted: Option<Wanted>) {
        let s = plane.agent.session(slot);
        let had = self.sessions.get(&slot);
        if had.is_some_and(|one| one.created_ns == s.created_ns) {
            return;
        }
        let Some(wanted) = wanted else {
            let cause = "the rule that it was opened by is no longer known".into();
            return not_served(plane, slot, Otherwise::Refuse, &cause);
        };
        self.put_wanted(plane, slot, wanted);
    }

    /// Begins to put services into a session that has opened through the hosts of its rule.
    pub(in crate::engine) fn serve(&mut self, plane: &mut Plane, slot: u32, wanted: Wanted) {
        if !self.sessions.contains_key(&slot) {
            self.put_wanted(plane, slot, wanted);
        }
    }

    fn put_wanted(&mut self, plane: &mut Plane, slot: u32, wanted: Wanted) {
        let s = plane.agent.session(slot);
        let services = wanted.services.clone();
        if let Some(cause) = choice::refusals(plane, self, slot, &services).first() {
            return not_served(plane, slot, wanted.otherwise, cause);
        }
        if let Ok(Some(of_packets)) = packets::wanted(&services) {
            return match packets::put(plane, &s, &of_packets) {
                Ok(()) => {
                    let id = plane.session_id(slot, &s);
                    let (by, text) = (Some(wanted.by), words::of(&services));
                    plane.report_by(by, "services-put", Some(id), text);
                }
                Err(cause) => not_served(plane, slot, wanted.otherwise, &cause),
            };
        }
        plane.faults.reach("ServiceHeld");
        let ends = choice::check(&services, &s);
        let held = Held {
            otherwise: wanted.otherwise,
            by: wanted.by,
        };
        let mut one = Serviced::new(plane, slot, &s, services);
        (one.held, one.owner) = (Some(held), wanted.owner);
        one.silent = s.view() == View::Held;
        if ends == Ok(Ends::Pair) {
            return self.invite(plane, slot, one);
        }
        one.stage = Stage::Sockets;
        self.sessions.insert(slot, one);
        self.waiting.push(slot);
        self.go_on(plane);
    }

    /// Repeats the packets that open windows of remote ends, of which nothing was heard: such a packet
    /// may be lost, and the last one of the handshake with it.
    pub(super) fn probe_again(&mut self, plane: &Plane) {
        let now = Instant::now();
        for (slot, one) in &mut self.sessions {
            let Some(probe) = &mut one.probe else {
                continue;
            };
            let heard = match plane.agent.detour(*slot) {
                Some(d) => after(d.back.sent, d.back.cut) || after(d.out.shown, d.out.cut),
                None => true,
            };
            if heard || probe.interval > LAST {
                one.probe = None;
                continue;
            }
            if probe.at <= now {
                probe.interval *= 2;
                probe.at = now + probe.interval;
                if let Some(sockets) = &one.sockets {
                    sockets.open_windows();
                }
            }
        }
    }

    /// A session that is held does not get its services.
    pub(super) fn unheld(&mut self, plane: &mut Plane, slot: u32, cause: &Cause) {
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        if let Some(held) = one.held.take() {
            // Another path may have given it another slot.
            let now = plane.slot_named(&SessionName::Id(one.session));
            not_served(plane, now.unwrap_or(slot), held.otherwise, cause);
        }
    }
}

/// Lets a session that does not get its services go on without, or ends it.
fn not_served(plane: &mut Plane, slot: u32, otherwise: Otherwise, cause: &Cause) {
    let s = plane.agent.session(slot);
    let waits = match s.view() {
        View::Held | View::NewPath(_) | View::Changing(_) => !s.has_ended(),
        // It is to have services of the packet plane.
        View::Tracked => s.laid_by != 0 && !s.has_ended(),
        _ => false,
    };
    if !waits {
        return;
    }
    let then = match otherwise {
        Otherwise::Direct => {
            plane.agent.let_go(slot);
            "it goes on without".to_owned()
        }
        Otherwise::Refuse => match diag::destroy(&s.key) {
            Ok(()) => "it is reset".to_owned(),
            Err(error) => format!("it cannot be reset: {error}"),
        },
    };
    let id = plane.session_id(slot, &s);
    let text = format!("it cannot have its services, and {then}: {cause}");
    plane.report("services-refused", Some(id), text);
}
