//! Requests for another chain. Any host of a session may ask for one, and the host of a middlebox
//! may ask to leave the chain. The host that opened the session decides and acts. Sans-IO like the
//! session protocol, and a step before it: a granted request becomes a change of that protocol.
//!
//! ```text
//! asker                   host that opened the session
//!   ---- Ask -------------->   judged, and begun
//!   <--- Heard -------------
//!   ---- Ask (again) ------>
//!   <--- Heard -------------
//!   <--- Answer ------------   the change has ended
//! ```
//!
//! The question is repeated until it is answered, so that any message may be lost. If a process has
//! no record of a question that the asker repeats after `Heard`, an earlier process had received
//! it. The later process does not act on it a second time.

mod change;
mod message;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use dysco_explain::Cause;

pub use change::{Asked, ChainWish};
pub use message::{Answer, AskId, Message, Outcome};

/// Interval at which a question is repeated before `Heard`.
const REPEAT: Duration = Duration::from_secs(1);
/// Interval at which a question is repeated after `Heard`.
const REMIND: Duration = Duration::from_secs(5);
/// Maximum number of unanswered questions to one host. Further questions wait.
const AT_ONCE: usize = 256;
/// Time without a message after which a host counts as absent.
const SILENCE: Duration = Duration::from_secs(15);
/// Time for which answers are kept, in case the asker repeats the question.
const MEMORY: Duration = Duration::from_secs(60);
/// Maximum number of questions in each direction.
const MOST: usize = 65_536;
/// Maximum number of one host's questions that are not answered yet.
const MOST_OF_ONE: usize = 1024;

/// An action of the caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send this message.
    Transmit(IpAddr, Message),
    /// A host asks for this. The caller acts or refuses, and calls [`Asks::answered`].
    Judge {
        /// Identifier of the question.
        ask: AskId,
        /// All addresses of the asker.
        from: Vec<IpAddr>,
        /// The request.
        asked: Asked,
    },
    /// A question of this host is answered.
    Ended {
        /// Identifier of the question.
        ask: AskId,
        /// The answer.
        answer: Answer,
        /// True if the host gave no answer, because it has been silent for too long.
        silent: bool,
    },
}

impl Action {
    fn ended(ask: AskId, answer: Answer) -> Action {
        Action::Ended {
            ask,
            answer,
            silent: false,
        }
    }
}

/// Questions of this host, and questions to it.
#[derive(Default)]
pub struct Asks {
    own: HashMap<AskId, Own>,
    /// Questions that are sent when others are answered.
    waiting: HashMap<IpAddr, VecDeque<(AskId, Asked)>>,
    others: HashMap<AskId, Others>,
    /// Number of unanswered questions of other hosts, by the address that gets the answer.
    open: HashMap<IpAddr, usize>,
}

struct Own {
    to: IpAddr,
    asked: Asked,
    heard: bool,
    repeat_at: Duration,
    give_up_at: Duration,
}

struct Others {
    /// Address of the asker that gets the answer.
    via: IpAddr,
    answer: Option<Answer>,
    /// Set with the answer.
    forget_at: Option<Duration>,
}

impl Asks {
    /// Asks a host. The result is an [`Action::Ended`].
    pub fn begin(&mut self, now: Duration, ask: AskId, to: IpAddr, asked: Asked) -> Vec<Action> {
        let waiting = self.waiting.values().map(VecDeque::len).sum::<usize>();
        if self.own.len() + waiting >= MOST {
            let why = Cause::new("too much is asked for at once").hint("ask again later");
            return vec![Action::ended(ask, Answer::refused(why))];
        }
        self.waiting.entry(to).or_default().push_back((ask, asked));
        self.go_on(now, to)
    }

    /// Sends waiting questions to a host, up to the limit.
    fn go_on(&mut self, now: Duration, to: IpAddr) -> Vec<Action> {
        let asked = self.own.values().filter(|own| own.to == to).count();
        let Some(waiting) = self.waiting.get_mut(&to) else {
            return Vec::new();
        };
        let next = waiting.len().min(AT_ONCE.saturating_sub(asked));
        let mut actions = Vec::new();
        for (ask, asked) in waiting.drain(..next) {
            let own = Own {
                to,
                asked,
                heard: false,
                repeat_at: now + REPEAT,
                give_up_at: now + SILENCE,
            };
            actions.push(own.say(ask));
            self.own.insert(ask, own);
        }
        if waiting.is_empty() {
            self.waiting.remove(&to);
        }
        actions
    }

    /// Handles a message of a host with these addresses.
    pub fn handle(&mut self, now: Duration, peer: &[IpAddr], message: Message) -> Vec<Action> {
        match message {
            Message::Ask { ask, heard, asked } => self.asked(peer, ask, heard, asked),
            Message::Heard { ask } => {
                let own = self.own.get_mut(&ask).filter(|own| peer.contains(&own.to));
                if let Some(own) = own {
                    own.heard = true;
                    own.repeat_at = now + REMIND;
                    own.give_up_at = now + SILENCE;
                }
                Vec::new()
            }
            Message::Answer { ask, answer } => {
                let own = self.own.get(&ask).filter(|own| peer.contains(&own.to));
                let Some(to) = own.map(|own| own.to) else {
                    return Vec::new();
                };
                self.own.remove(&ask);
                let mut actions = vec![Action::ended(ask, answer)];
                actions.extend(self.go_on(now, to));
                actions
            }
        }
    }

    fn asked(&mut self, peer: &[IpAddr], ask: AskId, heard: bool, asked: Asked) -> Vec<Action> {
        let Some(via) = peer.first().copied() else {
            return Vec::new();
        };
        if let Some(known) = self.others.get(&ask) {
            // A question of another host is not revealed.
            return match &known.answer {
                _ if !peer.contains(&known.via) => Vec::new(),
                Some(answer) => vec![tell(via, ask, answer.clone())],
                None => vec![Action::Transmit(via, Message::Heard { ask })],
            };
        }
        if heard {
            let why = Cause::new(
                "dyscod was started anew there meanwhile, and what became of it is not known",
            )
            .hint("see 'dyscoctl sessions' for the chain that it has now");
            return vec![tell(via, ask, Answer::refused(why))];
        }
        let its: usize = peer.iter().filter_map(|via| self.open.get(via)).sum();
        if self.others.len() >= MOST || its >= MOST_OF_ONE {
            let why = Cause::new("it is asked for too much at once").hint("ask again later");
            return vec![tell(via, ask, Answer::refused(why))];
        }
        let others = Others {
            via,
            answer: None,
            forget_at: None,
        };
        self.others.insert(ask, others);
        *self.open.entry(via).or_default() += 1;
        let judge = Action::Judge {
            ask,
            from: peer.to_vec(),
            asked,
        };
        vec![Action::Transmit(via, Message::Heard { ask }), judge]
    }

    /// Handles the end of another host's request.
    pub fn answered(&mut self, now: Duration, ask: AskId, answer: Answer) -> Vec<Action> {
        let Some(others) = self.others.get_mut(&ask) else {
            return Vec::new();
        };
        if others.answer.is_none()
            && let Some(open) = self.open.get_mut(&others.via)
        {
            *open -= 1;
        }
        others.answer = Some(answer.clone());
        others.forget_at = Some(now + MEMORY);
        vec![tell(others.via, ask, answer)]
    }

    /// Repeats questions, gives up and forgets. To be called at least once a second.
    pub fn tick(&mut self, now: Duration) -> Vec<Action> {
        self.others
            .retain(|_, others| others.forget_at.is_none_or(|at| at > now));
        self.open.retain(|_, open| *open > 0);
        let mut actions = Vec::new();
        let silent = self.own.extract_if(|_, own| own.give_up_at <= now);
        let silent: Vec<(AskId, Own)> = silent.collect();
        for (ask, own) in silent {
            let answer = Answer::refused(own.no_answer());
            actions.push(Action::Ended {
                ask,
                answer,
                silent: true,
            });
            actions.extend(self.go_on(now, own.to));
        }
        for (ask, own) in &mut self.own {
            if own.repeat_at <= now {
                own.repeat_at = now + if own.heard { REMIND } else { REPEAT };
                actions.push(own.say(*ask));
            }
        }
        actions
    }
}

impl Own {
    fn no_answer(&self) -> Cause {
        let to = self.to;
        match self.heard {
            false => Cause::new(format!("no answer of {to}, which opened it and decides"))
                .hint("see that dyscod is up there"),
            true => Cause::new(format!(
                "{to}, which opened it and decides, was at it and says nothing any more: what became of it is not known"
            ))
            .hint("see 'dyscoctl sessions' there"),
        }
    }

    fn say(&self, ask: AskId) -> Action {
        let (heard, asked) = (self.heard, self.asked.clone());
        Action::Transmit(self.to, Message::Ask { ask, heard, asked })
    }
}

fn tell(to: IpAddr, ask: AskId, answer: Answer) -> Action {
    Action::Transmit(to, Message::Answer { ask, answer })
}
