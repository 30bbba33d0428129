//! Progress of a session with services at both ends, and its end: `progress.rs` of
//! `engine/services/pair`, and `lost`, `ended` and `take_up` of `engine/services`.

use dysco_common::detour::{cut, phase};

use super::phase_of;
use crate::service::config::{Configuration, Seen};
use crate::service::daemon::{Change, Content, Pair, Stage};
use crate::service::record::Record;
use crate::service::seed::Seed;
use crate::service::world::World;

impl World {
    /// Handles the end of the pair by the other host (`aborted`).
    pub(super) fn aborted(&mut self, config: &Configuration, host: usize) {
        match self.hosts[host].daemon.stage {
            Stage::None => {}
            Stage::Invited => self.forget(host),
            Stage::Accepted => self.release(host),
            Stage::Leaving if self.is_out(host) => self.out(host),
            _ => self.end_session(config, host),
        }
    }

    /// True if no data passes this host's handler (`is_out`).
    fn is_out(&self, host: usize) -> bool {
        self.hosts[host].record.are(phase::DIRECT)
    }

    /// Continues the change of the session as far as its routes have changed (`step`). With `due`,
    /// unanswered messages are repeated.
    pub(crate) fn step_pair(&mut self, config: &Configuration, host: usize, due: bool) {
        if self.hosts[host].daemon.stage == Stage::None {
            return;
        }
        self.hosts[host].record.settle();
        self.tell_peer(config, host, due);
        let h = &mut self.hosts[host];
        let out = h.daemon.pair.is_some_and(|pair| pair.out);
        match h.daemon.stage {
            Stage::Entering if h.record.are(phase::THROUGH) => {
                h.daemon.stage = Stage::In;
                self.saw(Seen::Put);
                if self.pairs > 1 {
                    self.saw(Seen::PutAgain);
                }
            }
            Stage::Leaving
                if h.record.are(phase::DIRECT)
                    && (out || config.seed == Some(Seed::ForgetsFirst)) =>
            {
                self.out(host);
            }
            _ => {}
        }
    }

    fn tell_peer(&mut self, config: &Configuration, host: usize, due: bool) {
        let d = self.hosts[host].record.0;
        let all_direct = self.hosts[host].record.are(phase::DIRECT);
        let daemon = &mut self.hosts[host].daemon;
        let (change, after) = match daemon.stage {
            Stage::Entering | Stage::In => (Change::Enter, phase::THROUGH),
            Stage::Leaving => (Change::Leave, phase::DIRECT),
            _ => return,
        };
        let Some(pair) = &mut daemon.pair else {
            return;
        };
        let is_cut = d.out.phase == phase_of(change) && d.out.cut_set == cut::SET;
        let known = is_cut || d.out.phase == after;
        let first = pair.told != Some(change);
        let leaving = after == phase::DIRECT;
        let is_in = leaving && d.out.phase == phase::THROUGH;
        let is_out = leaving && all_direct;
        let mut say = Vec::new();
        let again = due && config.seed != Some(Seed::CutOnce);
        if known && pair.done != Some(change) && (first || again) {
            pair.told = Some(change);
            say.push(Content::Cut(change, d.out.cut));
        }
        if d.back.phase == after && pair.told_done != Some(change) {
            pair.told_done = Some(change);
            say.push(Content::Done(change));
        }
        if is_in && due {
            if pair.done.is_none() {
                say.push(Content::Cut(Change::Enter, d.out.cut));
            }
            say.push(Content::Leave);
        }
        if is_out && (due || !pair.told_out) {
            pair.told_out = true;
            say.push(Content::Out);
        }
        if config.seed == Some(Seed::Unconfirmed) && is_cut {
            self.hosts[host].record.confirm(phase_of(change));
        }
        for content in say {
            self.speak(config, host, content);
        }
    }

    /// Leads the session past the handler (`out`).
    fn out(&mut self, host: usize) {
        self.release(host);
        self.hosts[host].record.end();
        self.saw(Seen::Taken);
    }

    /// Closes the sockets without a packet. The session then has no services.
    pub(super) fn release(&mut self, host: usize) {
        self.close_tunnel(host);
        self.drop_handler(host);
        self.forget(host);
    }

    /// Records that the session has no services any more.
    pub(super) fn forget(&mut self, host: usize) {
        self.hosts[host].daemon.stage = Stage::None;
        self.hosts[host].daemon.pair = None;
    }

    /// Ends a session whose bytes are lost (`end_session`).
    fn end_session(&mut self, config: &Configuration, host: usize) {
        self.close_tunnel(host);
        self.resets(config, host);
        self.forget(host);
    }

    /// Handles the end of a host's handler (`lost`).
    pub fn lost(&mut self, config: &Configuration, host: usize) {
        match self.hosts[host].daemon.stage {
            Stage::None | Stage::Invited => {}
            Stage::Accepted => {
                self.speak(config, host, Content::Abort);
                self.release(host);
            }
            _ => self.end_session(config, host),
        }
    }

    /// Makes the handler of a host notice that the other one has closed the connection. The handler
    /// ends the session (`ended`).
    pub fn cut_off(&mut self, config: &Configuration, host: usize) -> bool {
        if !self.is_cut_off(host) {
            return false;
        }
        self.close_tunnel(host);
        self.resets(config, host);
        if self.hosts[host].daemon.dead {
            return true;
        }
        match self.hosts[host].daemon.stage {
            Stage::Leaving if self.is_out(host) => self.out(host),
            Stage::Accepted => {
                self.speak(config, host, Content::Abort);
                self.release(host);
            }
            _ => self.forget(host),
        }
        true
    }

    /// Repeats unanswered messages (`sweep`, `wait_for_peer`).
    pub fn repeat(&mut self, config: &Configuration, host: usize) {
        let daemon = &self.hosts[host].daemon;
        if daemon.dead {
            return;
        }
        self.step_pair(config, host, true);
        let daemon = &self.hosts[host].daemon;
        let asks = daemon.pair.is_some_and(|pair| pair.asks);
        match daemon.stage {
            Stage::Accepted if asks => self.speak(config, host, Content::Proceed),
            Stage::Invited if asks => self.speak(config, host, Content::Invite),
            _ => {}
        }
    }

    /// Ends the wait for the other host (`wait_for_peer`).
    pub fn gives_up(&mut self, config: &Configuration, host: usize) -> bool {
        let daemon = &self.hosts[host].daemon;
        let asks = daemon.pair.is_some_and(|pair| pair.asks);
        // The asker waits for a shorter time.
        let asker = &self.hosts[1 - host].daemon;
        let awaited = !asks && asker.stage == Stage::Invited && asker.pair.is_some_and(|p| p.asks);
        match daemon.stage {
            _ if daemon.dead || awaited => return false,
            Stage::Accepted if !asks => {}
            Stage::Invited => {}
            _ => return false,
        }
        self.speak(config, host, Content::Abort);
        self.release(host);
        true
    }

    /// Starts a daemon again (`take_up`).
    pub fn starts(&mut self, config: &Configuration, host: usize) {
        let h = &mut self.hosts[host];
        h.daemon.dead = false;
        let tunnel = h.handler.as_ref().and_then(|handler| handler.tunnel);
        let stage = stage_of(config, &h.record, tunnel.is_some());
        let pair = h.daemon.pair.take();
        h.daemon.stage = stage;
        if stage == Stage::None {
            self.close_tunnel(host);
            self.resets(config, host);
            self.drop_handler(host);
        } else if tunnel.is_some() {
            h.daemon.pair = pair.map(|pair| Pair::new(pair.id, false));
        }
    }
}

/// Returns the progress of a session whose record an earlier process has left.
fn stage_of(config: &Configuration, record: &Record, has_tunnel: bool) -> Stage {
    let phases = record.phases();
    let has = |phase| phases.contains(&phase);
    // The other host may not have heard yet that no data passes this host's handler.
    let told = !record.is_used() || !has_tunnel || config.seed == Some(Seed::ForgetsAtStart);
    let half = has(phase::DIRECT) && config.seed != Some(Seed::StaysIn);
    match () {
        () if has(phase::LEAVING) && config.seed == Some(Seed::TakenForOut) => Stage::None,
        () if has(phase::LEAVING) => Stage::Leaving,
        () if has(phase::ENTERING) => Stage::Entering,
        () if has(phase::THROUGH) && half => Stage::Leaving,
        () if has(phase::THROUGH) => Stage::In,
        () if told => Stage::None,
        () => Stage::Leaving,
    }
}
