//! Clients that watch events: `dyscoctl monitor`.

use std::time::SystemTime;

use dysco_api::{MonitorEvent, Reply, SessionId, SessionName};
use tokio::sync::mpsc;

use super::Plane;

impl Plane {
    /// Reports an event to the monitors and the log.
    pub(super) fn report(&mut self, kind: &str, session: Option<SessionId>, text: String) {
        self.report_part(None, kind, session, text);
    }

    /// Reports an event of a part of a change, with the id that all its hosts share.
    pub(super) fn report_part(
        &mut self,
        change: Option<String>,
        kind: &str,
        session: Option<SessionId>,
        text: String,
    ) {
        let named = session.map(|s| s.to_string());
        match &change {
            Some(change) => tracing::info!(kind, session = named, %change, "{text}"),
            None => tracing::info!(kind, session = named, "{text}"),
        }
        // No history is kept of a session that is gone, since nothing would remove it.
        let lives = |id: &SessionId| self.slot_named(&SessionName::Id(*id)).is_some();
        if let Some(session) = session.filter(lives) {
            self.history.add(session, &text, change.clone());
        }
        self.send_event(change, kind, session, text);
    }

    /// Reports an event to the monitors alone.
    pub(super) fn tell_monitors(&self, kind: &str, session: Option<SessionId>, text: String) {
        self.send_event(None, kind, session, text);
    }

    fn send_event(
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
        for monitor in &self.monitors {
            // A monitor that does not keep up misses events.
            let _ = monitor.try_send(Reply::Event(event.clone()));
        }
    }

    /// Adds a client that wants to receive events.
    pub(super) fn monitored(&mut self, by: mpsc::Sender<Reply>) {
        self.monitors.push(by);
        self.watch_openings();
    }

    /// Removes monitors that have left.
    pub(super) fn sweep_monitors(&mut self) {
        let before = self.monitors.len();
        self.monitors.retain(|monitor| !monitor.is_closed());
        if self.monitors.len() < before {
            self.watch_openings();
        }
    }

    fn watch_openings(&self) {
        if let Err(error) = self.agent.watch_openings(!self.monitors.is_empty()) {
            tracing::warn!(%error, "monitors may not hear of sessions that open");
        }
    }
}
