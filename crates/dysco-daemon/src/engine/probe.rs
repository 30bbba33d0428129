//! A bypass is opened before it is used: the left anchor sends SYNs on it, which the
//! right anchor's data plane answers. A path that does not carry them is refused while
//! nothing has changed. Later the left anchor shows firewalls on the path up to where
//! it had sent elsewhere; the right one answers with its own number.

use std::time::Duration;

use dysco_common::{FlowKey, State};

use super::{Answer, Engine, packets, raw};
use crate::protocol::{ChangeId, HostId, Message, Reason};

/// When SYNs are sent after the first, and when the path is given up.
const REPEAT: [Duration; 5] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(500),
];

/// A `SetUpAck` that waits for the path to open.
pub(super) struct Probe {
    from: Vec<HostId>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Engine {
    /// The right anchor is prepared: its word counts once the path has opened.
    pub(super) fn probe(&mut self, change: ChangeId, from: &[HostId]) {
        let now = self.now();
        let ready = Message::SetUpAck { change };
        let Some((slot, key)) = self.unopened(change) else {
            return self.machine.handle_message(now, from, ready);
        };
        if self.held.get(&change).is_some_and(|h| h.probe.is_some()) {
            return;
        }
        let s = self.agent.session(slot);
        let syns = packets::bypass_opens(&s);
        let answers = self.answers.clone();
        let task = tokio::spawn(async move {
            for wait in REPEAT {
                for syn in &syns {
                    if let Err(error) = raw::send(syn, key.remote()) {
                        tracing::warn!(path = ?key, %error, "cannot send a SYN on a new path");
                    }
                }
                tokio::time::sleep(wait).await;
            }
            let _ = answers.send(Answer::Unopened(change));
        });
        if let Some(held) = self.held.get_mut(&change) {
            held.opened_at = Some(s.snd_max);
            held.probe = Some(Probe {
                from: from.to_vec(),
                task,
            });
        }
    }

    /// The slot and new path of a change that is prepared here and not opened.
    fn unopened(&self, change: ChangeId) -> Option<(u32, FlowKey)> {
        let held = self.held.get(&change)?;
        let slot = self.slot_of(change)?;
        let s = self.agent.session(slot);
        let waits = s.state == State::TwoPaths as u32 && s.two.cut_set == 0 && !held.opened;
        waits.then_some((slot, held.new?))
    }

    /// The far end has answered on the new path of this slot's session.
    pub(super) fn path_open(&mut self, slot: u32) {
        let here = |h: &&mut super::Held| h.slot.is_some_and(|(s, _)| s == slot);
        let found = self
            .held
            .iter_mut()
            .map(|(c, h)| (*c, h))
            .find(|(_, h)| here(h));
        let Some((change, held)) = found else { return };
        held.opened = true;
        if let Some(probe) = held.probe.take() {
            let now = self.now();
            self.machine
                .handle_message(now, &probe.from, Message::SetUpAck { change });
        }
    }

    /// Shows what this end has sent by the proxy, if it is the left anchor of a bypass.
    pub(super) fn show_cut(&mut self, change: ChangeId, slot: u32) {
        let s = self.agent.session(slot);
        let cut = s.state == State::TwoPaths as u32 && s.two.cut_set != 0;
        if !cut || s.life.opened_here == 0 || s.shown == 0 {
            return;
        }
        let mut opened = None;
        if let Some(held) = self.held.get_mut(&change) {
            held.showing = Some(s.new_out);
            opened = held.opened_at;
        }
        for packet in packets::bypass_shows(&s, opened) {
            if let Err(error) = raw::send(&packet, s.path.remote()) {
                tracing::warn!(path = ?s.path, %error, "cannot send on a new path");
            }
        }
    }

    /// The same of all whose end has sent nothing on the new path since: that may be
    /// lost, and firewalls learn from data as well.
    pub(super) fn show_silent_cuts(&mut self) {
        let mut silent = Vec::new();
        for (change, held) in &mut self.held {
            let (Some(before), Some((slot, _))) = (held.showing, held.slot) else {
                continue;
            };
            let sent = self.agent.session(slot).new_out;
            held.showing = Some(sent);
            if sent == before {
                silent.push((*change, slot));
            }
        }
        for (change, slot) in silent {
            self.show_cut(change, slot);
        }
    }

    /// No answer came.
    pub(super) fn path_unopened(&mut self, change: ChangeId) {
        let Some(held) = self.held.get_mut(&change) else {
            return;
        };
        let Some(probe) = held.probe.take() else {
            return;
        };
        let path = held.new.map_or(String::new(), |key| format!("{key:?}"));
        let reason = Reason::NewPathUnusable(format!(
            "no answer to a SYN on {path}: something between the anchors drops it"
        ));
        let now = self.now();
        self.machine
            .handle_message(now, &probe.from, Message::SetUpNack { change, reason });
    }
}
