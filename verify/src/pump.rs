//! What the engine of a modelled host does with the machine that ships.

use dysco_proto::{Command, HostId, Machine, Message, Reason, Report, Time};

/// The clock stands still: time passes where a timer is fired.
pub const NOW: Time = Time::ZERO;
/// More outputs than one input brings: where a daemon may die among them.
pub const OUTPUTS: u8 = 7;
/// The same of a host that is both anchors, with the parts that its commands have.
pub const PAIR_OUTPUTS: u8 = 12;

/// What goes wrong in the middle of one input.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Twist {
    /// Nothing.
    Plain,
    /// The daemon dies before the step of this number.
    Dies(u8),
    /// The command that is the step of this number fails.
    Fails(u8),
    /// The daemon is held up before the step of this number.
    HeldUp(u8),
}

impl Twist {
    /// All that may happen at one of so many outputs while so many crashes and refusals
    /// are left, and so often a daemon may be held up.
    pub fn all(outputs: u8, [crashes, refusals, delays]: [u8; 3]) -> impl Iterator<Item = Twist> {
        let steps = move |left| if left > 0 { outputs } else { 0 };
        std::iter::once(Twist::Plain)
            .chain((0..steps(crashes)).map(Twist::Dies))
            .chain((0..steps(refusals)).map(Twist::Fails))
            .chain((0..steps(delays)).map(Twist::HeldUp))
    }
}

/// What one input brought.
pub struct Outcome<W> {
    /// Messages to send.
    pub letters: Vec<(HostId, Message)>,
    /// Steps taken.
    pub steps: u8,
    /// The twist took effect.
    pub twisted: bool,
    /// A rule was broken.
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

/// A host whose engine carries out what its machine wants.
pub trait Engine {
    /// Which rule it may break.
    type Wrong;

    /// The machine, while the daemon lives.
    fn machine(&mut self) -> Option<&mut Machine>;

    /// The daemon dies.
    fn die(&mut self);

    /// May a command fail?
    fn can_fail(command: &Command) -> bool;

    /// A command fails.
    fn fail(&mut self, command: Command);

    /// Carries a command out.
    fn execute(&mut self, command: Command, wrong: &mut Option<Self::Wrong>);

    /// Is something left of a command, which goes on before the next one?
    fn has_rest(&self) -> bool {
        false
    }

    /// Carries out the next part of that.
    fn go_on(&mut self, _wrong: &mut Option<Self::Wrong>) {}

    /// This command, and all behind it, is left for later.
    fn put_off(&mut self, _command: Option<Command>) {}

    /// Takes in what the machine tells.
    fn hear(&mut self, report: Report, wrong: &mut Option<Self::Wrong>);

    /// The engine's loop: all commands, one message, and again.
    fn pump(&mut self, twist: Twist, out: &mut Outcome<Self::Wrong>) {
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
                self.go_on(&mut out.wrong);
            } else if let Some(command) = command {
                if fails && Self::can_fail(&command) {
                    out.twisted = true;
                    self.fail(command);
                } else {
                    self.execute(command, &mut out.wrong);
                }
            } else if let Some((to, message)) = letter {
                out.letters.push((to, plain(message)));
            }
        }
        while let Some(report) = self.machine().and_then(Machine::poll_report) {
            self.hear(report, &mut out.wrong);
        }
    }
}

/// No decision depends on a reason's words: without them there are fewer states.
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
