//! The part of a host of a chain: it carries out each request of the host that decides, and answers.
//! The machine keeps no state of such a change, except that the session was forgotten.

use super::super::command::Forwarder;
use super::*;

impl Machine {
    /// Carries out a request to a host of a chain, also a repeated one.
    pub(super) fn forward(&mut self, from: HostId, message: Message) {
        let change = message.change();
        let command = match message {
            Message::Enlist {
                session,
                next,
                before,
                paths,
                number,
                ..
            } => Forwarder::Enlist {
                from,
                session,
                next,
                stays: before.iter().any(|e| self.core.is_me(e.host())),
                paths,
                number,
            },
            Message::AskDelta { session, .. } => Forwarder::AskDelta { from, session },
            Message::Dismiss {
                session,
                scope,
                paths,
                ..
            } => Forwarder::Forget {
                from,
                session,
                scope,
                paths,
            },
            _ => return,
        };
        self.core.commands.push_back(Command::new(change, command));
    }

    /// Sends the answer to such a request. Returns any other event.
    pub(super) fn answer_forwarder(&mut self, now: Time, event: HostEvent) -> Option<HostEvent> {
        let (to, answer) = match event {
            HostEvent::Enlisted {
                change,
                from,
                result,
            } => (from, Message::Enlisted { change, result }),
            HostEvent::DeltaKnown {
                change,
                from,
                result,
            } => (from, Message::TellDelta { change, result }),
            HostEvent::Forgotten { change, from } => {
                self.keep_forgotten(now, change, from);
                (from, Message::Dismissed { change })
            }
            other => return Some(other),
        };
        self.core.transmits.push(to, answer);
        None
    }

    /// Records that a session was forgotten. This happens once for each change, because the session
    /// may pass the host again later.
    fn keep_forgotten(&mut self, now: Time, change: ChangeId, from: HostId) {
        let outcome = Outcome {
            role: Role::Member,
            peers: vec![from],
            unspoken: false,
            result: Ok(()),
        };
        self.outcomes.insert(now, change, outcome);
    }
}
