//! Deltas that middleboxes of this host report for sessions, and the check whether the numbers
//! confirm them. At the left anchor: the new path, which makes up for the delta once the
//! middleboxes have left.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dysco_agent::Agent;
use dysco_api::{DeltaReport, Failure, FailureCode, Reply, TellDelta};
use dysco_common::delta::{DeclaredDelta, Fit, Passed, Reach, Watched, is_consistent};
use dysco_common::seq::before;
use dysco_common::view::Route;
use dysco_common::{Delta, FlowKey, Session};
use dysco_proto::{ChangeId, HostEvent, HostId, Reason, Subsession};

use crate::engine::{Answer, ChainUpdates, Plane, listing};

/// Time within which a middlebox that passes on what arrives holds nothing of it at some moment. One
/// that reported nothing, and sends nothing on in this time, is a firewall that drops packets.
const STILL: Duration = Duration::from_secs(1);
/// Interval between looks at its numbers until then.
const LOOK: Duration = Duration::from_millis(1);
/// Number of looks that are made at once.
const LOOKS: u32 = 8;

/// Comparison of a session's reported delta, or of none, with its numbers.
struct DeltaCheck {
    agent: Arc<Agent>,
    sides: Sides,
    declared: Option<DeclaredDelta>,
    /// The directions: to the server, to the client.
    ways: [Watched; 2],
}

/// Result of a look at a session's numbers.
enum Look {
    /// They decide.
    Decided(Result<Delta, Reason>),
    /// They do not yet.
    Open,
    /// Another change has given the session another path here: the numbers of these slots say nothing
    /// any more. The question is repeated.
    Moved,
}

/// Slots of a session that this host passes on, and the time at which it began here. The session
/// arrives by the left slot.
#[derive(Clone, Copy)]
struct Sides {
    left: u32,
    right: u32,
    created_ns: u64,
}

/// Numbers of a session at a middlebox's host, in both directions.
struct Numbers {
    to_server: Passed,
    to_client: Passed,
}

impl Numbers {
    /// Adds these numbers to what earlier ones have shown about a delta.
    fn add_to(&self, ways: &mut [Watched; 2], delta: &Delta) {
        let [to_server, to_client] = ways;
        to_server.look(&self.to_server, delta.to_server);
        to_client.look(&self.to_client, delta.to_client);
    }

    /// Returns why the numbers contradict a delta, with the range that they allow.
    fn against(&self, delta: &Delta) -> Option<String> {
        let ways = [
            ("to the server", &self.to_server, delta.to_server),
            ("to the client", &self.to_client, delta.to_client),
        ];
        let wrong = ways
            .iter()
            .find(|(_, p, d)| p.fits(*d) == Fit::Contradicted);
        wrong.map(|(way, p, d)| {
            let (least, most) = (p.went.wrapping_sub(p.came), p.went.wrapping_sub(p.acked));
            format!(
                "{} bytes {way}, where its host has seen at least {} and at most {}",
                *d as i32, least as i32, most as i32
            )
        })
    }
}

impl Plane {
    /// Handles the report of a middlebox of this host about what it has added to a session.
    pub(in crate::engine) fn tell_delta(&mut self, request: &TellDelta) -> Reply {
        match self.take_delta(request) {
            Ok(report) => Reply::Delta(report),
            Err(failure) => Reply::Error(failure),
        }
    }

    fn take_delta(&mut self, request: &TellDelta) -> Result<DeltaReport, Failure> {
        let refused = |why: String, hint: &str| Failure {
            code: FailureCode::Refused,
            what: "take what a middlebox has added to a session".into(),
            why,
            hint: hint.into(),
        };
        let slot = self
            .slot_named(&request.session)
            .ok_or_else(|| listing::no_such_session(&request.session))?;
        let sides = self.sides_of(slot).ok_or_else(|| {
            refused(
                "this host does not forward it in a chain, or its chain is changing at this moment"
                    .into(),
                "ask on the middlebox's host; dysco_splice reports what a proxy has added",
            )
        })?;
        let delta = Delta {
            to_server: request.to_server as u32,
            to_client: request.to_client as u32,
        };
        let numbers = numbers(&self.agent, &sides);
        if let Some(why) = numbers.against(&delta) {
            return Err(refused(
                Reason::DeltaContradicted(why).why(),
                "report what it has added in all, since the session began",
            ));
        }
        let declared = DeclaredDelta {
            created_ns: sides.created_ns,
            delta,
            from_client: numbers.to_server.came,
            from_server: numbers.to_client.came,
        };
        let set = self.agent.set_delta(sides.left, &declared);
        set.map_err(|e| refused(e.to_string(), "see dyscod's log"))?;
        let s = self.agent.session(slot);
        let session = self.session_id(slot, &s);
        let (to_server, to_client) = (request.to_server, request.to_client);
        let text = format!(
            "{:?}: a middlebox has added {to_server} bytes to the server, {to_client} to the client",
            s.key
        );
        self.report("delta", Some(session), text);
        Ok(DeltaReport {
            session,
            to_server,
            to_client,
        })
    }

    /// Returns the two sides of a session that this host passes on by one path.
    fn sides_of(&self, slot: u32) -> Option<Sides> {
        let s = self.agent.session(slot);
        let other = self.linked(slot, &s)?;
        let o = self.agent.session(other);
        let (left, right) = match (s.life.opened_here, o.life.opened_here) {
            (0, 1) => (slot, other),
            (1, 0) => (other, slot),
            _ => return None,
        };
        let created_ns = self.agent.session(left).created_ns;
        (passes(&s) && passes(&o)).then_some(Sides {
            left,
            right,
            created_ns,
        })
    }

    fn sides(&self, session: &Subsession) -> Option<Sides> {
        let keys = [
            FlowKey::new(session.left, session.right),
            FlowKey::new(session.right, session.left),
        ];
        let mut found = keys.iter().filter_map(|key| self.agent.find_called(key));
        found.find_map(|slot| self.sides_of(slot))
    }

    /// Returns the delta if the numbers decide at once; otherwise the answer follows later, or at the
    /// next repetition of the question. A host that asks again meanwhile is answered twice.
    fn check_declared(
        &self,
        change: ChangeId,
        from: HostId,
        sides: Sides,
    ) -> Option<Result<Delta, Reason>> {
        let mut delta_check = DeltaCheck {
            agent: self.agent.clone(),
            sides,
            declared: self.agent.delta_of(sides.left),
            ways: Default::default(),
        };
        for _ in 0..LOOKS {
            match delta_check.look() {
                Look::Decided(result) => return Some(result),
                Look::Moved => return None,
                Look::Open => {}
            }
        }
        let answers = self.answers.clone();
        tokio::spawn(async move {
            let begun = Instant::now();
            let result = loop {
                tokio::time::sleep(LOOK).await;
                match delta_check.look() {
                    Look::Decided(result) => break result,
                    Look::Moved => return,
                    Look::Open if begun.elapsed() < STILL => {}
                    Look::Open => break delta_check.undecided(),
                }
            };
            // The engine has ended.
            let _ = answers.send(Answer::Event(HostEvent::DeltaKnown {
                change,
                from,
                result,
            }));
        });
        None
    }
}

impl ChainUpdates {
    /// Answers the left anchor, which asks for the delta of a session.
    pub(in crate::engine) fn ask_delta(
        &mut self,
        plane: &mut Plane,
        change: ChangeId,
        from: HostId,
        session: &Subsession,
    ) {
        self.settle_late(plane, session);
        let checked = match plane.sides(session) {
            // The question is repeated.
            None if plane.passes_by_two(session) => None,
            // This host knows nothing of the session, or is asked by its other side.
            None => Some(Ok(Delta::default())),
            Some(sides) => plane.check_declared(change, from, sides),
        };
        if let Some(result) = checked {
            plane.tell_machine(HostEvent::DeltaKnown {
                change,
                from,
                result,
            });
        }
    }

    /// At the left anchor: notes the delta that the new path has to make up for.
    pub(in crate::engine) fn note_delta(&mut self, change: ChangeId, delta: Delta, right: Reach) {
        if let Some(paths) = self.paths.get_mut(&change) {
            paths.beyond = (delta, right);
        }
    }

    /// Returns an error if the numbers of the two ends contradict the delta.
    pub(super) fn check_delta(&self, plane: &Plane, change: ChangeId) -> Result<(), Reason> {
        let Some(paths) = self.paths.get(&change) else {
            return Err(Reason::Closing);
        };
        let (delta, right) = paths.beyond;
        let now = plane.agent.reach(paths.first.0);
        if is_consistent(&paths.reach, &right, &now, &delta) {
            return Ok(());
        }
        let ahead = |heard: u32, sent: u32| heard.wrapping_sub(sent) as i32;
        let why = format!(
            "the server has received up to {} bytes more than the client has sent, the client {} more than the server has",
            ahead(right.heard, now.sent),
            ahead(paths.reach.heard, right.sent)
        );
        Err(match delta.is_none() {
            true => Reason::DeltaNotDeclared(why),
            false => Reason::DeltaContradicted(why),
        })
    }

    pub(super) fn lead_beyond(&self, plane: &Plane, change: ChangeId, second_path: u32) {
        if let Some(paths) = self.paths.get(&change) {
            plane.agent.lead_beyond(second_path, &paths.beyond.0);
        }
    }
}

impl DeltaCheck {
    /// Looks at the numbers once.
    fn look(&mut self) -> Look {
        let (left, right) = (self.sides.left, self.sides.right);
        let [left, right] = [left, right].map(|slot| self.agent.session(slot));
        if left.created_ns != self.sides.created_ns {
            return Look::Decided(Err(Reason::Closing));
        }
        if !passes(&left) || !passes(&right) {
            return Look::Moved;
        }
        let delta = self
            .declared
            .map(|declared| declared.delta)
            .unwrap_or_default();
        let now = numbers(&self.agent, &self.sides);
        if let Some(why) = now.against(&delta) {
            return Look::Decided(Err(match self.declared {
                Some(_) => Reason::DeltaContradicted(why),
                None => Reason::DeltaNotDeclared(why),
            }));
        }
        now.add_to(&mut self.ways, &delta);
        // Data that the middlebox changed before its report must not have to be retransmitted.
        let acked = self.declared.is_none_or(|declared| {
            !before(now.to_server.acked, declared.from_client)
                && !before(now.to_client.acked, declared.from_server)
        });
        match acked && self.ways.iter().all(Watched::is_exact) {
            true => Look::Decided(Ok(delta)),
            false => Look::Open,
        }
    }

    /// Returns the result if the numbers have not decided for long enough.
    fn undecided(&self) -> Result<Delta, Reason> {
        let is_in_doubt = |way: &Watched| match self.declared {
            Some(_) => !way.is_exact(),
            None => way.is_doubtful(),
        };
        let delta = self.declared.map(|declared| declared.delta);
        let delta = delta.unwrap_or_default();
        let names = [
            ("to the server", delta.to_server),
            ("to the client", delta.to_client),
        ];
        let in_doubt = names
            .iter()
            .zip(&self.ways)
            .find(|(_, way)| is_in_doubt(way));
        let why = match (self.declared, in_doubt) {
            (None, None) => return Ok(Delta::default()),
            (None, Some(((name, _), _))) => format!(
                "none was reported, and at no moment within a second had the middlebox sent as many bytes {name} as it had received: either it holds bytes all the time, or it has changed the size of the stream"
            ),
            (Some(_), Some(((name, delta), _))) => format!(
                "at no moment within a second had it sent {} bytes {name} more than it had received: either it holds bytes all the time, or it has added another number",
                *delta as i32
            ),
            (Some(_), None) => {
                "the bytes that it changed before its report are not acknowledged yet".into()
            }
        };
        Err(Reason::DeltaUnconfirmed(why))
    }
}

/// Returns true if the numbers of a session's entry are those of all that it carries: another path
/// carries nothing meanwhile.
fn passes(s: &Session) -> bool {
    s.view().new_path().is_some_and(Route::is_open) && s.is_current()
}

/// Returns a session's numbers, read in the order that [`Passed`] wants. Reading an entry takes no
/// lock: programs write the words meanwhile.
fn numbers(agent: &Agent, sides: &Sides) -> Numbers {
    let (left, right) = (agent.session(sides.left), agent.session(sides.right));
    let (left_after, right_after) = (agent.session(sides.left), agent.session(sides.right));
    Numbers {
        to_server: Passed {
            acked: left.snd_ack,
            went: right.snd_max,
            came: left_after.rcv_max,
        },
        to_client: Passed {
            acked: right.snd_ack,
            went: left_after.snd_max,
            came: right_after.rcv_max,
        },
    }
}
