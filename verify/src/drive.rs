//! Work of a modelled host's engine with the shipped machine.

use dysco_proto::{Command, Host, HostId, Machine, Message, Reason, Report, Time};

/// Current time. The clock stands still: time passes only when a timer fires.
pub(crate) const NOW: Time = Time::ZERO;
/// Number of outputs at which a daemon may die. One input produces fewer.
pub(crate) const OUTPUTS: u8 = 7;
/// The corresponding number for a host that is both anchors, including the parts of its commands.
pub(crate) const PAIR_OUTPUTS: u8 = 12;

/// A fault in the middle of one input.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Twist {
    /// No fault.
    Plain,
    /// The daemon dies before the step of this number.
    Dies(u8),
    /// The command that is the step of this number fails.
    Fails(u8),
    /// The daemon is held up before the step of this number.
    HeldUp(u8),
}

impl Twist {
    /// Describes the fault in brackets, after the input; empty if there is none.
    pub fn aside(self) -> String {
        match self {
            Twist::Plain => String::new(),
            other => format!(" ({other:?})"),
        }
    }

    /// Returns all twists at this number of outputs, for the remaining numbers of crashes, refusals
    /// and delays.
    pub fn all(outputs: u8, [crashes, refusals, delays]: [u8; 3]) -> impl Iterator<Item = Twist> {
        let steps = move |left| if left > 0 { outputs } else { 0 };
        std::iter::once(Twist::Plain)
            .chain((0..steps(crashes)).map(Twist::Dies))
            .chain((0..steps(refusals)).map(Twist::Fails))
            .chain((0..steps(delays)).map(Twist::HeldUp))
    }
}

/// Result of one input.
pub struct Outcome<W> {
    /// Messages to send.
    pub letters: Vec<(HostId, Message)>,
    /// Number of steps taken.
    pub steps: u8,
    /// True if the twist took effect.
    pub twisted: bool,
    /// Rule that was broken.
    pub wrong: Option<W>,
}

impl<W> Default for Outcome<W> {
    fn default() -> Outcome<W> {
        Outcome {
            letters: Vec::new(),
            steps: 0,
            twisted: false,
            wrong: None,
        }
    }
}

/// A host whose engine carries out the commands of its machine.
pub(crate) trait Engine: Host<Outcome = ()> + Sized {
    /// Rule that the host may break.
    type Wrong;

    /// Returns the machine, while the daemon lives.
    fn machine(&mut self) -> Option<&mut Machine>;

    /// Ends the daemon.
    fn die(&mut self);

    /// Makes a command fail. Returns false if the command cannot fail on a sound host.
    fn fail(&mut self, command: &Command) -> bool;

    /// Returns the rule that the host has broken since the last call.
    fn take_wrong(&mut self) -> Option<Self::Wrong>;

    /// True if a part of a command remains, which precedes the next command.
    fn has_rest(&self) -> bool {
        false
    }

    /// Carries out the next part of that command.
    fn go_on(&mut self) {}

    /// Leaves this command, and all commands after it, for later.
    fn put_off(&mut self, _command: Option<Command>) {}

    /// Processes a report of the machine.
    fn hear(&mut self, report: Report);

    /// Runs the engine's loop: all commands, one message, and again.
    fn drive(&mut self, twist: Twist, out: &mut Outcome<Self::Wrong>) {
        self.run(twist, out);
        out.wrong = self.take_wrong().or(out.wrong.take());
    }

    /// Runs the loop until there is nothing to do, or the daemon dies.
    fn run(&mut self, twist: Twist, out: &mut Outcome<Self::Wrong>) {
        loop {
            let goes_on = self.has_rest();
            let Some(machine) = self.machine() else { break };
            let command = match goes_on {
                true => None,
                false => machine.poll_command(),
            };
            let letter = match command {
                None if !goes_on => machine.poll_transmit(),
                _ => None,
            };
            if !goes_on && command.is_none() && letter.is_none() {
                break;
            }
            if twist == Twist::HeldUp(out.steps) && letter.is_none() {
                out.twisted = true;
                self.put_off(command);
                break;
            }
            if twist == Twist::Dies(out.steps) {
                out.twisted = true;
                return self.die();
            }
            let fails = twist == Twist::Fails(out.steps);
            out.steps += 1;
            if goes_on {
                self.go_on();
            } else if let Some(command) = command {
                if fails && self.fail(&command) {
                    out.twisted = true;
                } else {
                    command.carry_out(self);
                }
            } else if let Some((to, message)) = letter {
                out.letters.push((to, plain(message)));
            }
        }
        while let Some(report) = self.machine().and_then(Machine::poll_report) {
            self.hear(report);
        }
    }
}

/// Removes the text of a reason. No decision depends on the text, and there are fewer states
/// without it.
fn plain(mut message: Message) -> Message {
    let words = match &mut message {
        Message::Asked {
            result: Err(reason),
            ..
        }
        | Message::Enlisted {
            result: Err(reason),
            ..
        }
        | Message::TellDelta {
            result: Err(reason),
            ..
        }
        | Message::Extended {
            result: Err(reason),
            ..
        }
        | Message::NackLock { reason, .. }
        | Message::SetUpNack { reason, .. }
        | Message::Back { reason, .. }
        | Message::Cancel { reason, .. } => reason,
        _ => return message,
    };
    *words = Reason::Cancelled;
    message
}
