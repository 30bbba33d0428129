//! Requests for another chain of a session that another host opened: that host is asked. Also
//! requests to this host for its own sessions, by a host that they pass or the one that accepted
//! them.

use std::net::IpAddr;

use dysco_common::Session;
use dysco_control::Incoming;
use dysco_explain::Cause;
use dysco_proto::asks::{Action, Answer, AskId, Asked, ChainWish, Message};
use dysco_proto::marked::Marked;
use dysco_proto::{KindName, Subsession};

use super::ChainRequests;
use super::choice::chain_task;
use super::task::{Task, Whose};
use crate::engine::Plane;
use crate::engine::core::Core;

impl ChainRequests {
    /// Asks the host that opened a session.
    pub(super) fn ask_opener(
        &mut self,
        core: &mut Core,
        task: Task,
        s: &Session,
        wish: &ChainWish,
        state: &[KindName],
    ) {
        let may = core
            .host
            .plane
            .not_in_between(s)
            .and_then(|()| core.host.plane.has_a_neighbour(s));
        if let Err(reason) = may {
            return self.refuse_task(core, &task, &reason);
        }
        let session = task.order.session;
        let asked = Asked {
            session,
            wish: wish.clone(),
            state: state.to_vec(),
            dry_run: task.dry,
        };
        if !task.dry {
            core.tally.asks(session);
        }
        let ask = AskId(rand::random());
        self.asking.insert(ask, task);
        let now = core.host.plane.now();
        let actions = self.asks.begin(now, ask, session.left.ip(), asked);
        self.ask_on(core, actions);
    }

    pub(in crate::engine) fn take_ask(&mut self, core: &mut Core, incoming: &Incoming) {
        let Some(message) = Message::decode(&incoming.message) else {
            core.host.plane.state.malformed += 1;
            tracing::warn!(from = %incoming.via, "a message about chains was discarded");
            return;
        };
        let now = core.host.plane.now();
        let actions = (self.asks).handle(now, &incoming.from.addresses, message);
        self.ask_on(core, actions);
    }

    pub(in crate::engine) fn sweep_asks(&mut self, core: &mut Core) {
        let now = core.host.plane.now();
        let actions = self.asks.tick(now);
        self.ask_on(core, actions);
    }

    fn ask_on(&mut self, core: &mut Core, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Transmit(_, message) if !core.host.plane.faults.pass(message.name()) => {}
                Action::Transmit(to, message) => match message.encode() {
                    Ok(bytes) => core.host.plane.control.send(to, bytes),
                    Err(error) => tracing::error!(%to, %error, "cannot encode a message"),
                },
                Action::Judge { ask, from, asked } => self.judge_ask(core, ask, &from, asked),
                Action::Ended {
                    ask,
                    answer,
                    silent,
                } => self.ask_ended(core, ask, answer, silent),
            }
        }
    }

    /// Judges another host's request for another chain of a session.
    fn judge_ask(&mut self, core: &mut Core, ask: AskId, from: &[IpAddr], asked: Asked) {
        let Some(slot) = asked_about(&core.host.plane, from, &asked.session) else {
            let why = Cause::new(
                "the host that the session's address names has opened no such session, or who \
                 asks is no host of it: its dyscod may have begun anew and lost it",
            );
            let why = why.hint("list the sessions there");
            return self.answer_ask(core, ask, Answer::refused(why));
        };
        let s = core.host.plane.agent.session(slot);
        let id = core.host.plane.session_id(slot, &s);
        let who = from.first().map(ToString::to_string).unwrap_or_default();
        core.host.plane.report(
            "asked",
            Some(id),
            format!("{:?}: {who} asks for another chain", s.key),
        );
        let wish = asked
            .wish
            .named_as(&core.host.plane.chain_now(slot, &s), from);
        let whose = Whose::Ask(ask);
        self.requesters.add(whose, format!("the host {who}"), 1);
        let (mut task, judged) = chain_task(core, whose, slot, &wish, &asked.state);
        task.dry = asked.dry_run;
        self.take_task(core, task, judged);
        self.start_chains_waiting(core);
    }

    pub(super) fn answer_ask(&mut self, core: &mut Core, ask: AskId, answer: Answer) {
        let now = core.host.plane.now();
        let actions = self.asks.answered(now, ask, answer.cut());
        self.ask_on(core, actions);
    }

    fn ask_ended(&mut self, core: &mut Core, ask: AskId, answer: Answer, silent: bool) {
        let Some(task) = self.asking.remove(&ask) else {
            return;
        };
        if !task.dry {
            core.tally.asks_no_more(&task.order.session);
        }
        let mut report = task.report(answer.outcome.into(), answer.reason);
        report.timed_out = silent || answer.timed_out;
        report.session = core.host.plane.names.now(report.session);
        (report.before, report.after) = (answer.before, answer.after);
        self.end_chain_task(core, &task, report, None);
    }
}

/// Returns the slot of a session of this host in whose chain, or at whose end, the asking host
/// is.
fn asked_about(here: &Plane, from: &[IpAddr], session: &Subsession) -> Option<u32> {
    let slot = here.find(session)?;
    let s = here.agent.session(slot);
    let may = from.contains(&s.name().remote.ip())
        || here
            .chain_now(slot, &s)
            .iter()
            .any(|element| from.contains(&element.host()));
    (may && here.opened_elsewhere(&s).is_none()).then_some(slot)
}
