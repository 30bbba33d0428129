//! Clients that watch events: `dyscoctl monitor`.

use std::time::SystemTime;

use dysco_agent::Agent;
use dysco_api::{MonitorEvent, Reply, SessionId, SessionName};
use tokio::sync::mpsc;

use super::Plane;
use super::history::{Origin, verb};

/// Clients that watch events.
#[derive(Default)]
pub(super) struct Monitors {
    clients: Vec<mpsc::Sender<Reply>>,
    /// True if the policy has to know of sessions that open.
    policy: bool,
}

impl Monitors {
    /// Returns true if nobody watches.
    pub(super) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// Adds a client that wants to receive events.
    pub(super) fn add(&mut self, agent: &Agent, by: mpsc::Sender<Reply>) {
        self.clients.push(by);
        self.watch_openings(agent);
    }

    /// Removes those that have left.
    pub(super) fn sweep(&mut self, agent: &Agent) {
        let before = self.clients.len();
        self.clients.retain(|monitor| !monitor.is_closed());
        if self.clients.len() < before {
            self.watch_openings(agent);
        }
    }

    /// Sends an event to all of them.
    fn send(
        &self,
        change_id: Option<String>,
        kind: &str,
        session: Option<SessionId>,
        text: String,
    ) {
        let at_ms = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |d| d.as_millis() as u64);
        let event = MonitorEvent {
            at_ms,
            kind: kind.to_owned(),
            session,
            change_id,
            text,
        };
        for monitor in &self.clients {
            // A monitor that does not keep up misses events.
            let _ = monitor.try_send(Reply::Event(event.clone()));
        }
    }

    /// Sets whether the policy has to know of sessions that open.
    pub(super) fn set_policy(&mut self, agent: &Agent, knows: bool) {
        self.policy = knows;
        self.watch_openings(agent);
    }

    fn watch_openings(&self, agent: &Agent) {
        if let Err(error) = agent.watch_openings(self.policy || !self.is_empty()) {
            tracing::warn!(%error, "monitors and the policy may not hear of sessions that open");
        }
    }
}

impl Plane {
    /// Reports an event to the monitors and the log.
    pub(super) fn report(&mut self, kind: &str, session: Option<SessionId>, text: String) {
        self.report_of_origin(Origin::default(), kind, session, text);
    }

    /// Reports an event that somebody asked for.
    pub(super) fn report_by(
        &mut self,
        by: Option<String>,
        kind: &str,
        session: Option<SessionId>,
        text: String,
    ) {
        self.report_of_origin(Origin::by(by), kind, session, text);
    }

    /// Reports an event of a part of a change, with the id that all its hosts share.
    pub(super) fn report_part(
        &mut self,
        change: Option<String>,
        kind: &str,
        session: Option<SessionId>,
        text: String,
    ) {
        let origin = Origin {
            by: None,
            change_id: change,
        };
        self.report_of_origin(origin, kind, session, text);
    }

    /// Reports an event with its origin.
    pub(super) fn report_of_origin(
        &mut self,
        origin: Origin,
        kind: &str,
        session: Option<SessionId>,
        what: String,
    ) {
        let by = origin.by.as_ref();
        let text = by.map_or_else(|| what.clone(), |by| format!("{what}; by {by}"));
        let change = origin.change_id.clone();
        let named = session.map(|s| s.to_string());
        match &change {
            Some(change) => tracing::info!(kind, session = named, %change, "{text}"),
            None => tracing::info!(kind, session = named, "{text}"),
        }
        // No history is kept of a session that is gone, since nothing would remove it.
        let lives = |id: &SessionId| self.slot_named(&SessionName::Id(*id)).is_some();
        if let Some(session) = session.filter(lives) {
            let what = format!("{}{what}", verb(kind));
            self.history.add(session, &what, origin);
        }
        self.monitors.send(change, kind, session, text);
    }

    /// Reports an event to the monitors alone.
    pub(super) fn tell_monitors(&self, kind: &str, session: Option<SessionId>, text: String) {
        self.monitors.send(None, kind, session, text);
    }
}
