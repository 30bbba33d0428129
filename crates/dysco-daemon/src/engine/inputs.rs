//! Inputs of the engine: requests, answers, events and timers come in by one door.

use std::time::{Duration, Instant};

use dysco_agent::{Events, Happened};
use dysco_control as control;
use dysco_firewall::transfer;
use dysco_proto::marked::Marked;
use dysco_proto::{ChangeId, DecodeError, Message, asks, pairs};
use dysco_proxy::PairEvent;
use tokio::signal::unix::Signal;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};
use tokio::time::{Interval, MissedTickBehavior};

use super::answers::Answer;
use super::chains::message::is_ours;
use super::error::EngineError;
use super::held::DRAIN_SWEEP;
use super::pages::Begun;
use crate::api::Call;
use crate::metrics::Scrape;

/// Interval at which sessions are collected, and events are looked for that a full ring may have
/// lost. The table is swept in parts: a large one takes milliseconds, for which a removal would
/// have to wait.
const SWEEP: Duration = Duration::from_secs(1);
pub(super) const SWEEP_PARTS: u32 = 16;
/// Channels by which others send to the engine.
pub(super) struct Sources {
    pub events: Events,
    pub control: mpsc::Receiver<control::Event>,
    pub calls: mpsc::Receiver<Call>,
    pub answers: mpsc::UnboundedReceiver<Answer>,
    pub pages: mpsc::UnboundedReceiver<Begun>,
    pub pairs: broadcast::Receiver<PairEvent>,
    pub scrapes: mpsc::Receiver<Scrape>,
    pub hang_up: Signal,
}

/// Everything that may wake the engine.
pub(super) struct Inputs {
    from: Sources,
    sweep: Interval,
    /// Part of the table that is swept next.
    part: u32,
    drain_sweep: Interval,
    happened: Happened,
}

/// Times and conditions that the engine waits for, besides its channels.
pub(super) struct Wants {
    /// Time at which the machine has something to do.
    pub timer: Option<Instant>,
    /// Time at which the next waiting removal may begin.
    pub turn: Option<Instant>,
    /// Time at which a removal's mode is decided.
    pub decision: Option<Instant>,
    /// True if a session is between two paths.
    pub drains: bool,
}

/// Message for the machine, as it has arrived.
pub(super) struct Heard {
    pub incoming: control::Incoming,
    pub message: Result<Message, DecodeError>,
}

/// One input.
pub(super) enum Input<'a> {
    Answer(Answer),
    /// Message for the machine.
    Message(Box<Heard>),
    Control(control::Event),
    /// Events of the data plane.
    Happened(&'a mut Happened),
    Call(Call),
    Scrape(Scrape),
    HangUp,
    Pair(Result<PairEvent, RecvError>),
    Timer,
    Turn,
    Decision,
    DrainSweep,
    /// Time to sweep this part of the table, and events of the data plane that a full ring may have
    /// lost.
    Sweep {
        part: u32,
        happened: &'a mut Happened,
    },
    Page(Begun),
}

impl Inputs {
    pub(super) fn new(from: Sources) -> Inputs {
        Inputs {
            from,
            sweep: every(SWEEP / SWEEP_PARTS),
            part: 0,
            drain_sweep: every(DRAIN_SWEEP),
            happened: Happened::default(),
        }
    }

    /// Waits for the next input. If several are there, the first of this order comes first.
    pub(super) async fn next(&mut self, wants: Wants) -> Result<Input<'_>, EngineError> {
        let Inputs {
            from,
            sweep,
            part,
            drain_sweep,
            happened,
        } = self;
        Ok(tokio::select! {
            biased;
            Some(answer) = from.answers.recv() => Input::Answer(answer),
            event = from.control.recv() => {
                Input::of_control(event.ok_or(EngineError::ControlEnded)?)
            }
            read = from.events.read(happened) => {
                read.map_err(EngineError::system("read the data plane's events"))?;
                Input::Happened(happened)
            }
            Some(call) = from.calls.recv() => Input::Call(call),
            Some(scrape) = from.scrapes.recv() => Input::Scrape(scrape),
            Some(()) = from.hang_up.recv() => Input::HangUp,
            pair = from.pairs.recv() => Input::Pair(pair),
            () = sleep_until(wants.timer) => Input::Timer,
            () = sleep_until(wants.turn) => Input::Turn,
            () = sleep_until(wants.decision) => Input::Decision,
            _ = drain_sweep.tick(), if wants.drains => Input::DrainSweep,
            _ = sweep.tick() => {
                from.events.take(happened);
                let this = *part;
                *part = (this + 1) % SWEEP_PARTS;
                Input::Sweep { part: this, happened }
            }
            // Last: all other inputs have their turn before the next page.
            Some(begun) = from.pages.recv() => Input::Page(begun),
        })
    }
}

impl Inputs {
    /// Returns an input that waits already, if there is one of those that come in numbers.
    pub(super) fn waiting(&mut self) -> Option<Input<'_>> {
        let Inputs { from, happened, .. } = self;
        if let Ok(answer) = from.answers.try_recv() {
            return Some(Input::Answer(answer));
        }
        if let Ok(event) = from.control.try_recv() {
            return Some(Input::of_control(event));
        }
        from.events.take(happened);
        (!happened.is_empty()).then_some(Input::Happened(happened))
    }
}

impl Input<'_> {
    fn of_control(event: control::Event) -> Self {
        match event {
            control::Event::Message(incoming) if is_for_machine(&incoming.message) => {
                let message = Message::decode(&incoming.message);
                Input::Message(Box::new(Heard { incoming, message }))
            }
            event => Input::Control(event),
        }
    }

    /// Returns the changes that the input concerns, each once; none if it may concern any.
    pub(super) fn changes(&self) -> Vec<ChangeId> {
        match self {
            Input::Answer(answer) => answer.changes(),
            Input::Message(heard) => {
                let message = heard.message.as_ref();
                message.iter().map(|message| message.change()).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Returns true if a message of the channel is none of other owners.
fn is_for_machine(bytes: &[u8]) -> bool {
    !transfer::Message::is_one(bytes)
        && !asks::Message::is_one(bytes)
        && !pairs::Message::is_one(bytes)
        && !is_ours(bytes)
}

/// Returns ticks of which missed ones are not made up for. The work of a tick covers everything,
/// and a task that is late has no time to do it several times.
fn every(period: Duration) -> Interval {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_tick_is_made_up_for() {
        let ticks = every(DRAIN_SWEEP);
        assert_eq!(ticks.missed_tick_behavior(), MissedTickBehavior::Delay);
    }
}
