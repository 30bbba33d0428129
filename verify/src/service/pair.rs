//! Services at both ends, as `engine/services/pair` puts them in and takes them out: `invite.rs`,
//! `message.rs` and `progress.rs` there, and `engine/services/take_up.rs`, function by function.
//! [`super::seed`] shows the faults that the rules here prevent.

mod progress;

use dysco_common::detour::phase;

use super::config::{Configuration, Seen};
use super::daemon::{Change, Content, Letter, Pair, Stage};
use super::seed::Seed;
use super::world::{START, World};

impl World {
    /// Sends a message about a pair to a host.
    fn send(&mut self, config: &Configuration, to: usize, pair: u8, content: Content) {
        let pair = match config.seed {
            Some(Seed::StaleNames) => 0,
            _ => pair,
        };
        let letter = Letter { to, pair, content };
        // An equal message on its way is the same message.
        if let Err(at) = self.net.binary_search(&letter) {
            self.net.insert(at, letter);
        }
    }

    /// Sends a message about the services of a host's session to the other host.
    fn speak(&mut self, config: &Configuration, host: usize, content: Content) {
        if let Some(pair) = self.hosts[host].daemon.pair {
            self.send(config, 1 - host, pair.id, content);
        }
    }

    fn pair_mut(&mut self, host: usize) -> Option<&mut Pair> {
        self.hosts[host].daemon.pair.as_mut()
    }

    /// Asks the other host to put services in (`invite`).
    pub(crate) fn put_pair(&mut self, config: &Configuration, host: usize) -> bool {
        let h = &mut self.hosts[host];
        if h.daemon.dead || h.daemon.stage != Stage::None || self.puts == 0 {
            return false;
        }
        self.puts -= 1;
        self.pairs += 1;
        if !h.record.are(phase::DIRECT) {
            return true;
        }
        let id = if config.seed == Some(Seed::StaleNames) {
            0
        } else {
            self.pairs
        };
        h.daemon.pair = Some(Pair::new(id, true));
        h.daemon.stage = Stage::Invited;
        self.speak(config, host, Content::Invite);
        true
    }

    /// Begins to take services out (`leave_both`).
    pub fn take_pair(&mut self, config: &Configuration, host: usize) -> bool {
        let h = &mut self.hosts[host];
        if h.daemon.dead || h.daemon.stage != Stage::In || self.takes == 0 {
            return false;
        }
        self.takes -= 1;
        h.daemon.stage = Stage::Leaving;
        self.leave_back(host);
        if config.seed == Some(Seed::LeavesFirst) {
            self.leave_out(host);
        }
        self.speak(config, host, Content::Leave);
        true
    }

    fn leave_out(&mut self, host: usize) {
        let record = &mut self.hosts[host].record;
        if record.0.out.phase == phase::THROUGH {
            record.leave(true, 0, false);
        }
    }

    fn leave_back(&mut self, host: usize) {
        let record = &mut self.hosts[host].record;
        if record.0.back.phase == phase::THROUGH {
            record.leave(false, 0, true);
        }
    }

    /// Delivers a message (`take_pair_message`).
    pub fn take_message(&mut self, config: &Configuration, letter: Letter) {
        let Letter { to, pair, content } = letter;
        let host = to;
        if self.hosts[host].daemon.dead {
            return;
        }
        let known = self.hosts[host].daemon.pair.is_some_and(|p| p.id == pair);
        match content {
            Content::Invite => self.invited(config, host, pair, known),
            _ if known => self.take_content(config, host, content),
            Content::Out if config.seed == Some(Seed::EchoedOut) => {
                self.send(config, 1 - host, pair, Content::Out);
            }
            Content::Proceed
            | Content::Ready
            | Content::Cut(..)
            | Content::Leave
            | Content::Out => {
                self.send(config, 1 - host, pair, Content::Abort);
            }
            _ => {}
        }
    }

    fn invited(&mut self, config: &Configuration, host: usize, pair: u8, known: bool) {
        self.forget_earlier_invitation(host, known);
        let h = &mut self.hosts[host];
        let free = h.daemon.stage == Stage::None && h.record.are(phase::DIRECT);
        if !known && free && !config.refuses {
            h.daemon.pair = Some(Pair::new(pair, false));
            h.daemon.stage = Stage::Invited;
        }
        let takes_part = known || free && !config.refuses;
        self.send(config, 1 - host, pair, Content::Invited(takes_part));
    }

    /// Forgets a pair that the other host asks anew for, and that has not begun.
    fn forget_earlier_invitation(&mut self, host: usize, known: bool) {
        let daemon = &self.hosts[host].daemon;
        let invited = daemon.pair.is_some_and(|pair| !pair.asks);
        if !known && invited && matches!(daemon.stage, Stage::Invited | Stage::Accepted) {
            self.release(host);
        }
    }

    fn take_content(&mut self, config: &Configuration, host: usize, content: Content) {
        let stage = self.hosts[host].daemon.stage;
        match content {
            Content::Invite => {}
            Content::Invited(answer) => self.answered_invitation(config, host, answer),
            Content::Proceed => {
                if let Some(pair) = self.pair_mut(host) {
                    pair.proceeds = true;
                }
                match stage {
                    Stage::Accepted => self.order(config, host),
                    Stage::Entering | Stage::In => self.speak(config, host, Content::Ready),
                    _ => {}
                }
            }
            Content::Ready => self.order(config, host),
            Content::Cut(change, at) => self.cut_told(config, host, change, at),
            Content::Done(change) => {
                if let Some(pair) = self.pair_mut(host) {
                    pair.done = Some(change);
                }
                self.hosts[host].record.confirm(phase_of(change));
                self.step_pair(config, host, false);
            }
            Content::Leave => self.leave_with_peer(config, host),
            Content::Leaving => {
                if stage == Stage::Leaving {
                    self.leave_out(host);
                }
            }
            Content::Out => {
                if let Some(pair) = self.pair_mut(host) {
                    pair.out = true;
                }
                self.step_pair(config, host, false);
            }
            Content::Abort => self.aborted(config, host),
        }
    }

    fn answered_invitation(&mut self, config: &Configuration, host: usize, answer: bool) {
        let daemon = &mut self.hosts[host].daemon;
        let Some(pair) = daemon.pair.as_mut().filter(|pair| pair.asks) else {
            return;
        };
        if daemon.stage != Stage::Invited {
            return;
        }
        if !answer {
            self.saw(Seen::Refused);
            return self.forget(host);
        }
        // A second connection could be the other host's first one.
        if !pair.connects || config.seed == Some(Seed::ConnectsTwice) {
            pair.connects = true;
            let id = pair.id;
            self.connect(id);
        }
    }

    /// Records that this host's handler has the session (`accepted_here`).
    pub fn accepted(&mut self, config: &Configuration, host: usize) {
        let Some(pair) = self.hosts[host].daemon.pair else {
            return;
        };
        if pair.asks {
            self.speak(config, host, Content::Proceed);
            if config.seed == Some(Seed::EntersFirst) {
                self.order(config, host);
            }
        } else if pair.proceeds {
            self.order(config, host);
        }
    }

    /// Lets the direction of this host's end enter the handler (`order`).
    fn order(&mut self, config: &Configuration, host: usize) {
        let h = &mut self.hosts[host];
        let Some(pair) = h.daemon.pair.filter(|_| h.daemon.stage == Stage::Accepted) else {
            return;
        };
        if !h.record.are(phase::DIRECT) {
            self.speak(config, host, Content::Abort);
            return self.release(host);
        }
        h.record.enter(START);
        h.daemon.stage = Stage::Entering;
        if !pair.asks {
            self.speak(config, host, Content::Ready);
        }
        if config.seed == Some(Seed::GuessedCutoff) {
            self.open_guessed(config, host);
        }
    }

    fn open_guessed(&mut self, config: &Configuration, host: usize) {
        let before = self.hosts[host].record.clone();
        self.hosts[host].record.cut_still(false);
        self.note_cuts(config, host, &before);
        self.open(host);
    }

    fn open(&mut self, host: usize) {
        if let Some(handler) = &mut self.hosts[host].handler {
            handler.open = true;
            handler.decrypt();
        }
    }

    fn cut_told(&mut self, config: &Configuration, host: usize, change: Change, at: u32) {
        let before = self.hosts[host].record.clone();
        if self.hosts[host].record.tell(phase_of(change), at) {
            self.note_cuts(config, host, &before);
            if change == Change::Enter {
                self.open(host);
            }
            return self.step_pair(config, host, false);
        }
        let stage = self.hosts[host].daemon.stage;
        let over = match change {
            Change::Enter => matches!(stage, Stage::In | Stage::Leaving),
            Change::Leave => stage == Stage::Leaving,
        };
        if over {
            self.speak(config, host, Content::Done(change));
        }
    }

    fn leave_with_peer(&mut self, config: &Configuration, host: usize) {
        self.step_pair(config, host, false);
        let stage = self.hosts[host].daemon.stage;
        if !matches!(stage, Stage::In | Stage::Leaving) {
            return;
        }
        if stage == Stage::Leaving && self.hosts[host].record.0.out.phase == phase::THROUGH {
            self.saw(Seen::BothLeave);
        }
        self.hosts[host].daemon.stage = Stage::Leaving;
        self.leave_back(host);
        self.leave_out(host);
        self.speak(config, host, Content::Leaving);
    }
}

/// Returns the phase of a way during a change.
fn phase_of(change: Change) -> u32 {
    match change {
        Change::Enter => phase::ENTERING,
        Change::Leave => phase::LEAVING,
    }
}
