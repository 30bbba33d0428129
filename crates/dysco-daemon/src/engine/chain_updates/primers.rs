//! Packets by which an end shows the firewalls of a path how far it has sent.

use dysco_common::view::View;
use dysco_common::{Session, seq};
use dysco_proto::ChangeId;

use super::open::announced_next;
use crate::engine::{ChainUpdates, Plane, packets, raw};

impl Plane {
    /// Shows the firewalls of a path how far this end has sent.
    pub(super) fn prime(&self, slot: u32, seq: u32) {
        let mut s = self.agent.session(slot);
        if s.view() == View::Tracked {
            (s.path, s.translation) = (s.key, s.carried());
        }
        let packet = packets::primer(&s, seq);
        if let Err(error) = raw::send(&packet, s.path.remote()) {
            tracing::warn!(path = ?s.path, %error, "cannot send on a new path");
        }
    }

    /// Shows on the new path how far this end has sent since it took that path. Some of the data
    /// may have left by the previous path as well.
    pub(super) fn prime_highest(&self, second_path: u32) {
        let s = self.agent.session(second_path);
        if !self.was_reset(&s) {
            self.prime(second_path, s.snd_max);
        }
    }

    /// Shows how far this end has sent, unless the other anchor has shown that it has received
    /// that.
    pub(super) fn prime_unconfirmed(&self, second_path: u32) {
        let s = self.agent.session(second_path);
        if seq::after(s.snd_max, s.rcv_ack) && !self.was_reset(&s) {
            self.prime(second_path, s.snd_max);
            self.announce_step(second_path, &s);
        }
    }

    /// Shows as much of the data that this end has sent elsewhere as a firewall lets the numbers
    /// advance, if that is less than all.
    pub(super) fn announce_step(&self, second_path: u32, s: &Session) {
        let next = announced_next(s);
        if next != s.snd_max {
            self.prime(second_path, next);
        }
    }

    /// Returns true if the session of a path was reset. Nothing more is shown then: a firewall
    /// keeps a connection for ten seconds after a reset whose number it cannot confirm, but for the
    /// full time if anything follows (Linux, `nf_conntrack_tcp_packet`).
    pub(super) fn was_reset(&self, s: &Session) -> bool {
        let relay = s.relayed_by().map(|relay| self.agent.session(relay));
        s.life.reset != 0 || relay.is_some_and(|relay| relay.life.reset != 0)
    }
}

impl ChainUpdates {
    /// Answers a packet that has advanced the numbers of a path which has been taken, as long as
    /// one end has sent more elsewhere than a firewall lets the numbers advance. Until then the
    /// firewalls drop what the ends send on the path, so the next look would be late.
    pub(super) fn catch_up(&mut self, plane: &Plane, change: ChangeId, second_path: u32) {
        let s = plane.agent.session(second_path);
        if !s.is_current() || plane.was_reset(&s) {
            return;
        }
        let (now, next) = ((s.rcv_ack, s.rcv_max), announced_next(&s));
        let is_behind = seq::after(s.snd_ack, s.rcv_max);
        let paths = self.paths.get_mut(&change);
        let is_news = paths.is_some_and(|paths| paths.asked.replace(now) != Some(now));
        if is_news && (is_behind || next != s.snd_max) {
            plane.prime(second_path, next);
        }
    }
}
