//! The protocol machine and the host on which it works: commands and messages go from the one to
//! the other, and events back.

use std::collections::HashSet;

use dysco_proto::{ChangeId, HostEvent, Machine, Message};

use super::host::ThisHost;
use super::plane::Notice;
use super::tally::Tally;

/// State that the owners of requests share.
pub(super) struct Core {
    pub host: ThisHost,
    pub machine: Machine,
    /// Counts of how changes ended.
    pub tally: Tally,
    /// Changes that have had an input whose commands are not carried out yet.
    pub round: HashSet<ChangeId>,
}

impl Core {
    /// Gives the machine all news of this host. They are given before the machine is asked for or
    /// told anything else.
    pub(crate) fn feed_machine(&mut self) {
        let now = self.host.plane.now();
        while let Some(notice) = self.host.plane.notices.pop_front() {
            let event = match notice {
                Notice::Event(event) => *event,
                // Another session may have the name meanwhile.
                Notice::Collected(subsession)
                    if self.machine.is_changing(&subsession)
                        && self.host.plane.find(&subsession).is_none() =>
                {
                    HostEvent::SessionGone { subsession }
                }
                Notice::Collected(_) => continue,
            };
            self.machine.handle_event(now, event);
        }
    }

    /// Returns the machine, once it has all news of this host.
    pub(super) fn machine(&mut self) -> &mut Machine {
        self.feed_machine();
        &mut self.machine
    }

    /// Prepares for an input of a change, or of none in particular. Inputs of several changes are
    /// taken together, but the commands of an input are carried out before the next input of the
    /// same change.
    pub(super) fn admit(&mut self, change: Option<ChangeId>) {
        let is_first = change.is_some_and(|change| self.round.insert(change));
        if !is_first {
            self.carry_out();
            self.round.extend(change);
        }
    }

    /// Carries out all commands.
    pub(super) fn carry_out(&mut self) {
        self.round.clear();
        self.feed_machine();
        self.write_ahead();
        while let Some(command) = self.machine().poll_command() {
            if self.host.plane.faults.pass(command.name()) {
                self.host.execute(command);
            }
        }
        self.host.plane.state.flush();
    }

    /// Writes the records with which changes begin, by one append. Faults of single records need
    /// each record's own write.
    fn write_ahead(&mut self) {
        let faults = &self.host.plane.faults;
        let mut records = self.machine.first_records().peekable();
        let ahead = records.peek().is_some() && !faults.names("Persist");
        if ahead && faults.pass("WriteAhead") {
            self.host.plane.state.write_ahead(records);
            // No command is carried out yet.
            faults.pass("WrittenAhead");
        }
    }

    /// Carries out all commands, then sends the messages, until there are none.
    pub(super) fn act(&mut self) {
        loop {
            self.carry_out();
            let Some((to, message)) = self.machine().poll_transmit() else {
                match self.host.moves.have_expected(&mut self.host.plane, None) {
                    true => continue,
                    false => return self.host.plane.begin_jobs(),
                }
            };
            if self.host.plane.faults.pass(message.name()) {
                self.host.plane.send(to, &message);
            }
            if matches!(message, Message::Enlist { .. }) {
                // At once: the old host's export is on its way there.
                self.host
                    .moves
                    .have_expected(&mut self.host.plane, Some(to));
            }
        }
    }
}
