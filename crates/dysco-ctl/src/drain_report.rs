//! Progress of a drain, for people and programs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use dysco_api::{Label, ProcessName, SessionId};
use dysco_explain::Cause;
use serde::Serialize;

use super::output::{every_reason, rendered, table};
use super::time;

/// Progress of a drain.
#[derive(Debug, Serialize)]
pub(crate) struct State {
    /// `progress`, or `end` for the last report.
    pub event: &'static str,
    /// Number of sessions that the proxy holds.
    pub left: usize,
    /// Number of sessions that the proxy has left.
    pub removed: usize,
    /// Number of sessions that the proxy could leave, in a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removable: Option<usize>,
    /// Minimum time that this would take at the requested rate, in milliseconds, in a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_least_ms: Option<u64>,
    /// Reasons for the remaining sessions.
    pub reasons: Vec<Reason>,
    /// Remaining sessions, at the end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sessions: Vec<Left>,
}

/// Sessions that remain for the same reason.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Reason {
    pub count: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<Label>,
    pub reason: Cause,
    /// All reasons, the decisive one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<Cause>,
}

/// A remaining session.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Left {
    pub local: SocketAddr,
    pub remote: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<Label>,
    pub reason: Cause,
    /// All reasons, the decisive one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<Cause>,
}

impl Reason {
    /// Returns the reason in a few words.
    pub(crate) fn short(&self) -> String {
        let label = self.label.as_ref().map(|l| format!(" of {}", words(l)));
        let reason: String = self.reason.why.chars().take(60).collect();
        format!("{}{}: {reason}…", self.count, label.unwrap_or_default())
    }
}

/// Groups the sessions by reason, the most frequent first. Digits, as in addresses and counts, do
/// not distinguish reasons.
pub(crate) fn reasons(left: &[Left]) -> Vec<Reason> {
    let mut groups: BTreeMap<(Option<&Label>, String), Reason> = BTreeMap::new();
    for session in left {
        let label = session.label.as_ref();
        let digits = |c: char| !c.is_ascii_digit();
        let all = format!("{}{}", session.reason, every_reason(&session.reasons));
        let same = all.chars().filter(|c| digits(*c)).collect();
        let group = groups.entry((label, same)).or_insert_with(|| Reason {
            count: 0,
            label: label.cloned(),
            reason: session.reason.clone(),
            reasons: session.reasons.clone(),
        });
        group.count += 1;
    }
    let mut all: Vec<Reason> = groups.into_values().collect();
    all.sort_by_key(|r| std::cmp::Reverse(r.count));
    all
}

/// Returns frontend, backend and mode for one cell.
pub(crate) fn words(label: &Label) -> String {
    let mode = match label.mode.as_str() {
        "" => String::new(),
        mode => format!(" (mode {mode})"),
    };
    format!("{} > {}{mode}", label.frontend, label.backend)
}

/// Returns the result of a drain, for people.
pub(crate) fn text(state: &State, proxy: &ProcessName) -> String {
    let mut text = match (state.removable, state.left) {
        (Some(removable), all) => {
            let least = state.at_least_ms.map(Duration::from_millis);
            let least = least.map_or(String::new(), |t| format!("; {}", time::at_least(t)));
            format!(
                "{removable} of {all} sessions could be removed now{least}; nothing was changed"
            )
        }
        (None, 0) => format!(
            "{} removed; {proxy} holds no session: it may be reloaded or stopped",
            state.removed
        ),
        (None, left) => format!(
            "{} removed, {left} left when the time ran out: {proxy} would lose them",
            state.removed
        ),
    };
    if !state.reasons.is_empty() {
        let mut rows = table(["SESSIONS", "OF", "WHY"]);
        for r in &state.reasons {
            let of = r.label.as_ref().map_or("-".to_owned(), words);
            let why = match r.reasons.len() {
                0 | 1 => r.reason.to_string(),
                _ => every_reason(&r.reasons),
            };
            rows.add_row([r.count.to_string(), of, why]);
        }
        let mut list = table(["LOCAL", "REMOTE"]);
        for s in &state.sessions {
            list.add_row([s.local.to_string(), s.remote.to_string()]);
        }
        text += &format!("\n\n{}\n\n{}", rendered(&rows), rendered(&list));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(reason: &str, frontend: Option<&str>) -> Left {
        Left {
            local: "10.0.0.1:80".parse().unwrap(),
            remote: "10.0.0.2:1".parse().unwrap(),
            session: None,
            label: frontend.map(|f| Label {
                frontend: f.into(),
                ..Label::default()
            }),
            reason: reason.into(),
            reasons: Vec::new(),
        }
    }

    #[test]
    fn reasons_are_grouped_by_what_they_say_and_of_whom() {
        let all = [
            left("seen 12 bytes", None),
            left("parsed", Some("web")),
            left("seen 345 bytes", None),
            left("parsed", Some("api")),
        ];
        let groups = reasons(&all);
        assert_eq!(groups[0].count, 2);
        assert_eq!(groups[0].reason.why, "seen 12 bytes");
        assert_eq!(groups.len(), 3);
    }

    #[test]
    fn the_end_says_whether_the_proxy_may_go() {
        let state = |left| State {
            event: "end",
            left,
            removed: 3,
            removable: None,
            at_least_ms: None,
            reasons: Vec::new(),
            sessions: Vec::new(),
        };
        let proxy = "haproxy".parse().unwrap();
        assert!(text(&state(0), &proxy).contains("holds no session"));
        assert!(text(&state(2), &proxy).contains("2 left"));
    }
}
