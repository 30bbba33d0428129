//! Any host of a session may ask for another chain, and a middlebox's to leave it. The
//! host that opened the session decides, and does it. Sans-IO, as the session protocol,
//! and before it: what is asked for becomes a change of that.
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
//! The question is repeated until it is answered, so that any message may be lost. A
//! process that is asked again for what it never heard of has a predecessor that did,
//! and does not do it twice.

mod change;
mod message;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

pub use change::{Asked, ChainWish};
pub use message::{Answer, AskId, Message, Outcome};

/// What was not answered is asked again after this.
const REPEAT: Duration = Duration::from_secs(1);
/// What was heard, after this.
const REMIND: Duration = Duration::from_secs(5);
/// Most questions that one host is asked at a time; the others wait.
const AT_ONCE: usize = 256;
/// A host that says nothing for so long is not there.
const SILENCE: Duration = Duration::from_secs(15);
/// Answers are kept for who asks again.
const MEMORY: Duration = Duration::from_secs(60);
/// Most questions in all, asked here or there.
const MOST: usize = 65_536;
/// Most of one host that are not answered yet.
const MOST_OF_ONE: usize = 1024;

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Say this.
    Transmit(IpAddr, Message),
    /// A host wants this: do it or not, and hand in [`Asks::answered`].
    Judge {
        /// Which question.
        ask: AskId,
        /// All addresses of who asks.
        from: Vec<IpAddr>,
        /// What for.
        asked: Asked,
    },
    /// A question of this host is answered.
    Ended {
        /// Which.
        ask: AskId,
        /// How.
        answer: Answer,
        /// Nobody has said so: the host asked has said nothing for too long.
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

/// The questions of this host, and those to it.
#[derive(Default)]
pub struct Asks {
    own: HashMap<AskId, Own>,
    /// To be asked when others are answered.
    waiting: HashMap<IpAddr, VecDeque<(AskId, Asked)>>,
    others: HashMap<AskId, Others>,
    /// How many of those are not answered, by how their asker is told.
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
    /// By which of its addresses the asker is told.
    via: IpAddr,
    answer: Option<Answer>,
    /// Set with the answer.
    forget_at: Option<Duration>,
}

impl Asks {
    /// Asks a host. It ends in an [`Action::Ended`].
    pub fn begin(&mut self, now: Duration, ask: AskId, to: IpAddr, asked: Asked) -> Vec<Action> {
        let waiting = self.waiting.values().map(VecDeque::len).sum::<usize>();
        if self.own.len() + waiting >= MOST {
            let answer = Answer::refused("too much is asked for at once; ask again later");
            return vec![Action::ended(ask, answer)];
        }
        self.waiting.entry(to).or_default().push_back((ask, asked));
        self.go_on(now, to)
    }

    /// Asks a host what waits for it, as far as there is room.
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

    /// Takes a message of a host with these addresses.
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
            // Another's question is nobody else's business.
            return match &known.answer {
                _ if !peer.contains(&known.via) => Vec::new(),
                Some(answer) => vec![tell(via, ask, answer.clone())],
                None => vec![Action::Transmit(via, Message::Heard { ask })],
            };
        }
        if heard {
            let why = "dyscod was started anew there meanwhile, and what became of it is not known; see 'dyscoctl sessions' for the chain that it has now";
            return vec![tell(via, ask, Answer::refused(why))];
        }
        let its: usize = peer.iter().filter_map(|via| self.open.get(via)).sum();
        if self.others.len() >= MOST || its >= MOST_OF_ONE {
            let why = "it is asked for too much at once; ask again later";
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

    /// What another asked for has ended.
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

    /// Asks again, gives up, and forgets. Once a second or more often.
    pub fn tick(&mut self, now: Duration) -> Vec<Action> {
        self.others
            .retain(|_, others| others.forget_at.is_none_or(|at| at > now));
        self.open.retain(|_, open| *open > 0);
        let mut actions = Vec::new();
        let silent = self.own.extract_if(|_, own| own.give_up_at <= now);
        let silent: Vec<(AskId, Own)> = silent.collect();
        for (ask, own) in silent {
            let answer = Answer::refused(&own.no_answer());
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
    fn no_answer(&self) -> String {
        let to = self.to;
        match self.heard {
            false => format!("no answer of {to}, which opened it and decides; is dyscod up there?"),
            true => format!(
                "{to}, which opened it and decides, was at it and says nothing any more: what became of it is not known; see 'dyscoctl sessions' there"
            ),
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
