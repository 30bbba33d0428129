//! Columns of a listing: their cells, and their order.

use std::cmp::Ordering;

use dysco_api::{ENDED, PathReport, Relayer, Removable, Role, SessionId, SessionReport};
use dysco_explain::tame;

use crate::drain_report;
use crate::output::{bytes, every_reason, listed, or_dash, seconds};
use crate::tune::changes;

/// A column of `sessions`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Column {
    /// The network namespace, with --all-namespaces
    Namespace,
    /// The session's short name
    Id,
    /// This host's end
    Local,
    /// The other end
    Remote,
    /// This host's part: left anchor, right anchor or middlebox
    Role,
    /// The state of its entry in the data plane
    State,
    /// The mode by which its proxy has left
    Mode,
    /// The five-tuple on the wire, if it differs
    Path,
    /// The five-tuple where it was opened, if it differs
    OpenedAs,
    /// The hosts of its chain
    Chain,
    /// The process of the proxy that relays it
    Proxy,
    /// The proxy's own names for it: frontend and backend
    Label,
    /// The session on the proxy's other side
    Pair,
    /// The time since it was opened or adopted
    Age,
    /// `yes` if it is older than dyscod
    Adopted,
    /// Bytes received
    In,
    /// Bytes sent
    Out,
    /// The options of its socket that `tune` has set
    Tuned,
    /// `yes` if it has services on this host
    Services,
    /// `yes` if this host's middlebox can leave it, or `no` and the reason
    Removable,
}

/// Columns that are shown unless others are named.
pub(super) const USUAL: [Column; 12] = [
    Column::Id,
    Column::Local,
    Column::Remote,
    Column::Role,
    Column::State,
    Column::Mode,
    Column::Path,
    Column::Chain,
    Column::Age,
    Column::In,
    Column::Out,
    Column::Removable,
];

/// Columns of these that a narrow terminal omits, in the order of omission.
pub(crate) const DROPPED: [Column; 7] = [
    Column::Role,
    Column::Path,
    Column::Chain,
    Column::Mode,
    Column::Out,
    Column::In,
    Column::Age,
];

impl Column {
    /// Returns the heading of the column.
    pub(crate) fn heading(self) -> &'static str {
        match self {
            Column::Namespace => "NAMESPACE",
            Column::Id => "ID",
            Column::Local => "LOCAL",
            Column::Remote => "REMOTE",
            Column::Role => "ROLE",
            Column::State => "STATE",
            Column::Mode => "MODE",
            Column::Path => "PATH",
            Column::OpenedAs => "OPENED AS",
            Column::Chain => "CHAIN",
            Column::Proxy => "PROXY",
            Column::Label => "LABEL",
            Column::Pair => "PAIR",
            Column::Age => "AGE",
            Column::Adopted => "ADOPTED",
            Column::In => "IN",
            Column::Out => "OUT",
            Column::Tuned => "TUNED",
            Column::Services => "SERVICES",
            Column::Removable => "REMOVABLE",
        }
    }

    /// Returns true if the column has free text, which is cut before other columns are.
    pub(crate) fn is_text(self) -> bool {
        matches!(self, Column::Removable | Column::Label | Column::Tuned)
    }

    /// Compares two sessions: numbers as numbers, addresses as addresses.
    pub(crate) fn compare(self, a: &SessionReport, b: &SessionReport) -> Ordering {
        let path = |p: &Option<PathReport>| p.map(|p| (p.local, p.remote));
        match self {
            Column::Namespace => a.namespace.cmp(&b.namespace),
            Column::Id => a.id.cmp(&b.id),
            Column::Local => a.local.cmp(&b.local),
            Column::Remote => a.remote.cmp(&b.remote),
            Column::Path => path(&a.path).cmp(&path(&b.path)),
            Column::OpenedAs => path(&a.opened_as).cmp(&path(&b.opened_as)),
            Column::Chain => a.chain.cmp(&b.chain),
            Column::Pair => a.pair.cmp(&b.pair),
            Column::Age => a.since_s.total_cmp(&b.since_s),
            Column::In => a.bytes_in.cmp(&b.bytes_in),
            Column::Out => a.bytes_out.cmp(&b.bytes_out),
            Column::Label => a.label.cmp(&b.label),
            Column::Role
            | Column::State
            | Column::Mode
            | Column::Proxy
            | Column::Adopted
            | Column::Tuned
            | Column::Services
            | Column::Removable => cell(a, self).cmp(&cell(b, self)),
        }
    }
}

/// Returns the text of a session in a column, which controls no terminal. Names of processes and
/// labels of proxies may contain any characters.
pub(crate) fn cell(session: &SessionReport, column: Column) -> String {
    tame(&text(session, column))
}

fn text(session: &SessionReport, column: Column) -> String {
    match column {
        Column::Namespace => or_dash(session.namespace.clone()),
        Column::Id => session.id.to_string(),
        Column::Local => session.local.to_string(),
        Column::Remote => session.remote.to_string(),
        Column::Role => role(session.role).into(),
        Column::State => state(session).into(),
        Column::Mode => or_dash(session.mode.map(|m| m.to_string())),
        Column::Path => or_dash(session.path.map(path)),
        Column::OpenedAs => or_dash(session.opened_as.map(path)),
        Column::Chain => or_dash(session.chain.as_deref().map(listed)),
        Column::Proxy => or_dash(session.proxy.as_ref().map(proxy)),
        Column::Label => or_dash(session.label.as_ref().map(drain_report::words)),
        Column::Pair => or_dash(session.pair.map(|id: SessionId| id.to_string())),
        Column::Age => seconds(session.since_s),
        Column::Adopted => yes(session.adopted).into(),
        Column::In => bytes(session.bytes_in),
        Column::Out => bytes(session.bytes_out),
        Column::Tuned => or_dash(changes(&session.tuned)),
        Column::Services => yes(session.services).into(),
        Column::Removable => removable(&session.removable),
    }
}

/// Returns the state. A session that has ended no longer shows its data plane's state, even if
/// its entry is still in use.
fn state(session: &SessionReport) -> &str {
    match session.ended {
        true => ENDED,
        false => &session.state,
    }
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

fn path(path: PathReport) -> String {
    format!("{} > {}", path.local, path.remote)
}

fn proxy(proxy: &Relayer) -> String {
    match proxy.name.as_str() {
        "" => proxy.pid.to_string(),
        name => format!("{name}/{}", proxy.pid),
    }
}

fn role(role: Role) -> &'static str {
    match role {
        Role::LeftAnchor => "left anchor",
        Role::RightAnchor => "right anchor",
        Role::Middlebox => "middlebox",
    }
}

fn removable(removable: &Removable) -> String {
    match removable {
        Removable::Yes => "yes".into(),
        Removable::No { reason, reasons } if reasons.is_empty() => format!("no: {reason}"),
        Removable::No { reasons, .. } => format!("no: {}", every_reason(reasons)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_the_terminal_that_it_would_obey() {
        let ends = (([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into());
        let mut session = SessionReport::tracked(SessionId(1), ends.0, ends.1);
        session.proxy = Some(Relayer {
            pid: 7,
            name: "a\u{1b}[2Jb\nc\u{202e}".into(),
            unit: None,
            listener: ends.0,
        });
        let shown = cell(&session, Column::Proxy);
        assert_eq!(shown, r"a\u{1b}[2Jb\nc\u{202e}/7");
    }
}
