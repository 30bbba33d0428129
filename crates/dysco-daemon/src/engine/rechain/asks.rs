//! Requests for another chain of a session that another host opened: that host is asked. Also
//! requests to this host for its own sessions, by a host that they pass or the one that accepted
//! them.

use std::net::IpAddr;

use dysco_common::Session;
use dysco_common::view::Route;
use dysco_control::Incoming;
use dysco_proto::asks::{Action, Answer, AskId, Asked, ChainWish, Message};
use dysco_proto::{KindName, Subsession};

use super::request::{Task, Whose};
use crate::engine::{Engine, measure};

impl Engine {
    /// Returns the session as the host that opened it knows it, if that is another host.
    pub(in crate::engine) fn opened_elsewhere(&self, s: &Session) -> Option<Subsession> {
        let passes = s.joined_to().is_some() && !s.view().is_relayed();
        match (s.life.opened_here != 0, passes) {
            (true, false) => None,
            (true, true) => Some(measure::opened(&s.name())),
            (false, _) => Some(measure::accepted(&s.name())),
        }
    }

    /// Returns the slots of the sessions that pass this host by a chain, on the side from which
    /// they come.
    pub(in crate::engine) fn passing_here(&self) -> Vec<u32> {
        let comes = |s: &Session| s.life.opened_here == 0 && s.is_current();
        let all = self.host.agent.sessions().into_iter();
        all.filter(|(_, s)| comes(s) && passes(s))
            .map(|(slot, _)| slot)
            .collect()
    }

    /// Asks the host that opened a session.
    pub(super) fn ask_opener(
        &mut self,
        task: Task,
        s: &Session,
        wish: &ChainWish,
        state: &[KindName],
    ) {
        let may = self
            .host
            .not_in_between(s)
            .and_then(|()| self.host.has_a_neighbour(s));
        if let Err(reason) = may {
            return self.refuse_task(&task, &reason);
        }
        let session = task.order.session;
        let asked = Asked {
            session,
            wish: wish.clone(),
            state: state.to_vec(),
            dry_run: task.dry,
        };
        if !task.dry {
            self.tally.asks(session);
        }
        let ask = AskId(rand::random());
        self.host.rechain.asking.insert(ask, task);
        let now = self.host.now();
        let actions = self
            .host
            .rechain
            .asks
            .begin(now, ask, session.left.ip(), asked);
        self.ask_on(actions);
    }

    pub(in crate::engine) fn take_ask(&mut self, incoming: &Incoming) {
        let Some(message) = Message::decode(&incoming.message) else {
            self.host.state.malformed += 1;
            tracing::warn!(from = %incoming.via, "a message about chains was discarded");
            return;
        };
        let now = self.host.now();
        let actions = (self.host.rechain.asks).handle(now, &incoming.from.addresses, message);
        self.ask_on(actions);
    }

    pub(in crate::engine) fn sweep_asks(&mut self) {
        let now = self.host.now();
        let actions = self.host.rechain.asks.tick(now);
        self.ask_on(actions);
    }

    fn ask_on(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Transmit(_, message) if !self.host.faults.pass(message.name()) => {}
                Action::Transmit(to, message) => match message.encode() {
                    Ok(bytes) => self.host.control.send(to, bytes),
                    Err(error) => tracing::error!(%to, %error, "cannot encode a message"),
                },
                Action::Judge { ask, from, asked } => self.judge_ask(ask, &from, asked),
                Action::Ended {
                    ask,
                    answer,
                    silent,
                } => self.ask_ended(ask, answer, silent),
            }
        }
    }

    /// Judges another host's request for another chain of a session.
    fn judge_ask(&mut self, ask: AskId, from: &[IpAddr], asked: Asked) {
        let Some(slot) = self.asked_about(from, &asked.session) else {
            let why = "the host that the session's address names has opened no such session, or \
                       who asks is no host of it: its dyscod may have begun anew and lost it; \
                       list the sessions there";
            return self.answer_ask(ask, Answer::refused(why));
        };
        let s = self.host.agent.session(slot);
        let id = self.host.session_id(slot, &s);
        let who = from.first().map(ToString::to_string).unwrap_or_default();
        self.host.report(
            "asked",
            Some(id),
            format!("{:?}: {who} asks for another chain", s.key),
        );
        let wish = asked.wish.named_as(&self.host.chain_now(slot, &s), from);
        let (mut task, judged) = self.chain_task(Whose::Ask(ask), slot, &wish, &asked.state);
        task.dry = asked.dry_run;
        self.take_task(task, judged);
        self.start_chains_waiting();
    }

    /// Returns the slot of a session of this host in whose chain, or at whose end, the asking host
    /// is.
    fn asked_about(&self, from: &[IpAddr], session: &Subsession) -> Option<u32> {
        let slot = self.host.find(session)?;
        let s = self.host.agent.session(slot);
        let may = from.contains(&s.name().remote.ip())
            || self
                .host
                .chain_now(slot, &s)
                .iter()
                .any(|host| from.contains(host));
        (may && self.opened_elsewhere(&s).is_none()).then_some(slot)
    }

    pub(super) fn answer_ask(&mut self, ask: AskId, answer: Answer) {
        let now = self.host.now();
        let actions = self.host.rechain.asks.answered(now, ask, answer.cut());
        self.ask_on(actions);
    }

    fn ask_ended(&mut self, ask: AskId, answer: Answer, silent: bool) {
        let Some(task) = self.host.rechain.asking.remove(&ask) else {
            return;
        };
        if !task.dry {
            self.tally.asks_no_more(&task.order.session);
        }
        let mut report = task.report(answer.outcome.into(), answer.reason);
        report.timed_out = silent || answer.timed_out;
        report.session = self.host.rechain.name_now(report.session);
        (report.before, report.after) = (answer.before, answer.after);
        self.end_chain_task(&task, report, None);
    }
}

/// Returns true if this is one of the two entries of a session that passes this host by its chain.
pub(in crate::engine) fn passes(s: &Session) -> bool {
    has_passed(s) && !s.has_ended()
}

/// Returns true if this is such an entry, or was until its session ended.
pub(in crate::engine) fn has_passed(s: &Session) -> bool {
    s.view().route().is_some_and(Route::passes_on)
}
