//! Commands of the machine to its host: one enum for each role that the host has in a change.

use std::fmt;

use super::names::ChangeId;

mod anchor;
mod chain;
mod direct;
mod forwarder;
mod journal;
mod pair;
mod proxy;

pub use anchor::{Anchor, Side};
pub use chain::Chain;
pub use direct::Direct;
pub use forwarder::Forwarder;
pub use journal::Journal;
pub use pair::Pair;
pub use proxy::Proxy;

/// An action of the host, to carry out now and in the order given. All commands are idempotent:
/// after a restart the machine gives them again. If the session is gone, the answer is
/// [`HostEvent::SessionGone`].
///
/// [`HostEvent::SessionGone`]: super::HostEvent::SessionGone
#[derive(Clone, PartialEq, Eq)]
pub struct Command {
    /// The change.
    pub change: ChangeId,
    /// The action.
    pub action: Action,
}

/// An action, by the role of the host that carries it out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// At the host of the middlebox.
    Proxy(Proxy),
    /// At an anchor of a removal.
    Anchor(Anchor),
    /// At the host of the middlebox, if it is both anchors as well.
    Pair(Pair),
    /// At the relaying host and at the server's host, if replies are to bypass the former.
    Direct(Direct),
    /// At an anchor of a change of a chain, or at the host that decides about it.
    Chain(Chain),
    /// At a host of a chain.
    Forwarder(Forwarder),
    /// At any host: its records.
    Journal(Journal),
}

/// A host that carries out the commands of its machine, in each role.
pub trait Host {
    /// Result of a command, for the caller of [`Command::carry_out`].
    type Outcome;

    /// Acts as the host of the middlebox.
    fn proxy(&mut self, change: ChangeId, command: Proxy) -> Self::Outcome;

    /// Acts as an anchor of a removal.
    fn anchor(&mut self, change: ChangeId, command: Anchor) -> Self::Outcome;

    /// Acts as both anchors.
    fn pair(&mut self, change: ChangeId, command: Pair) -> Self::Outcome;

    /// Acts as the relaying host, or as the server's host whose replies bypass it.
    fn direct(&mut self, change: ChangeId, command: Direct) -> Self::Outcome;

    /// Acts as an anchor of a change of a chain, or as the host that decides about it.
    fn chain(&mut self, change: ChangeId, command: Chain) -> Self::Outcome;

    /// Acts as a host of a chain. The machine has no state of such a change.
    fn forwarder(&mut self, change: ChangeId, command: Forwarder) -> Self::Outcome;

    /// Writes or removes a record.
    fn journal(&mut self, change: ChangeId, command: Journal) -> Self::Outcome;
}

impl Command {
    /// Creates a command of a change.
    pub fn new(change: ChangeId, action: impl Into<Action>) -> Command {
        let action = action.into();
        Command { change, action }
    }

    /// Has the host carry out the command in the role that it concerns.
    pub fn carry_out<H: Host>(self, host: &mut H) -> H::Outcome {
        let change = self.change;
        match self.action {
            Action::Proxy(command) => host.proxy(change, command),
            Action::Anchor(command) => host.anchor(change, command),
            Action::Pair(command) => host.pair(change, command),
            Action::Direct(command) => host.direct(change, command),
            Action::Chain(command) => host.chain(change, command),
            Action::Forwarder(command) => host.forwarder(change, command),
            Action::Journal(command) => host.journal(change, command),
        }
    }

    /// Returns the names of all commands.
    pub fn names() -> Vec<&'static str> {
        use strum::VariantNames;
        let roles = [
            Proxy::VARIANTS,
            Anchor::VARIANTS,
            Pair::VARIANTS,
            Direct::VARIANTS,
            Chain::VARIANTS,
            Forwarder::VARIANTS,
            Journal::VARIANTS,
        ];
        roles.concat()
    }

    /// Returns the name of the command, for the log and for tests. Commands of different roles may
    /// have the same name.
    pub fn name(&self) -> &'static str {
        match &self.action {
            Action::Proxy(command) => command.into(),
            Action::Anchor(command) => command.into(),
            Action::Pair(command) => command.into(),
            Action::Direct(command) => command.into(),
            Action::Chain(command) => command.into(),
            Action::Forwarder(command) => command.into(),
            Action::Journal(command) => command.into(),
        }
    }
}

/// Begins with the name and the change, by which readers of the log find a command.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.name())
            .field("change", &self.change)
            .field("action", &self.action)
            .finish()
    }
}

macro_rules! actions {
    ($($role:ident),*) => {$(
        impl From<$role> for Action {
            fn from(command: $role) -> Action {
                Action::$role(command)
            }
        }
    )*};
}

actions!(Proxy, Anchor, Pair, Direct, Chain, Forwarder, Journal);

#[cfg(test)]
mod tests {
    use super::*;

    /// The tests of the daemon and the benchmark of the steps find commands in its log this way.
    #[test]
    fn a_command_is_shown_with_its_name_and_its_change_first() {
        let change = ChangeId([1; 16]);
        for (action, name) in [
            (Action::from(Anchor::Cut), "Cut"),
            (Chain::Cut.into(), "Cut"),
            (Journal::Erase.into(), "Erase"),
        ] {
            let shown = format!("{:?}", Command::new(change, action));
            assert!(shown.starts_with(&format!("{name} {{ change: {change}, action: ")));
        }
    }
}
