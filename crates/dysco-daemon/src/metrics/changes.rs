//! Counts of changes: their ends, the reasons, and how long they took.

use std::collections::BTreeMap;
use std::time::Duration;

use dysco_api::{Mode, Outcome};
use dysco_proto::Role;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

/// Kinds of changes that are distinguished.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ChangeKind {
    /// A proxy leaves in a mode, if the mode is known.
    Removal(Option<Mode>),
    /// A session gets another chain.
    Chain,
}

impl ChangeKind {
    /// All kinds.
    pub const ALL: [ChangeKind; 5] = [
        ChangeKind::Removal(Some(Mode::Bypass)),
        ChangeKind::Removal(Some(Mode::Local)),
        ChangeKind::Removal(Some(Mode::Return)),
        ChangeKind::Removal(None),
        ChangeKind::Chain,
    ];

    /// Returns the kind of a removal that was requested.
    pub fn removal(mode: Option<Mode>) -> ChangeKind {
        // A removal that was not begun may have no mode yet.
        ChangeKind::Removal(mode.filter(|mode| *mode != Mode::Auto))
    }

    /// Returns the kind of a change in which a host has this part.
    pub fn of(role: Role) -> ChangeKind {
        match role {
            Role::Left | Role::Middle | Role::Right | Role::Asker => {
                ChangeKind::Removal(Some(Mode::Bypass))
            }
            Role::Local => ChangeKind::Removal(Some(Mode::Local)),
            Role::Proof | Role::Dsr => ChangeKind::Removal(Some(Mode::Return)),
            Role::Head | Role::Tail | Role::Lead | Role::Member => ChangeKind::Chain,
        }
    }

    /// Returns the values of the labels `kind` and `mode`; a change of chains has no mode.
    pub fn labels(self) -> [&'static str; 2] {
        match self {
            ChangeKind::Removal(Some(Mode::Bypass)) => ["removal", "bypass"],
            ChangeKind::Removal(Some(Mode::Local)) => ["removal", "local"],
            ChangeKind::Removal(Some(Mode::Return)) => ["removal", "return"],
            ChangeKind::Removal(Some(Mode::Auto) | None) => ["removal", ""],
            ChangeKind::Chain => ["chain", ""],
        }
    }
}

/// Ends of changes that are counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum End {
    /// The change was done.
    Done,
    /// The change was rolled back.
    RolledBack,
    /// The change was refused.
    Refused,
    /// The session ended with the change.
    Lost,
}

impl End {
    /// All ends.
    pub const ALL: [End; 4] = [End::Done, End::RolledBack, End::Refused, End::Lost];

    /// Returns the end that an outcome stands for, unless the end is still to come.
    pub fn of(outcome: Outcome) -> Option<End> {
        match outcome {
            Outcome::Removed => Some(End::Done),
            Outcome::RolledBack => Some(End::RolledBack),
            Outcome::Refused => Some(End::Refused),
            Outcome::Lost => Some(End::Lost),
            Outcome::Pending | Outcome::Unconfirmed => None,
        }
    }

    /// Returns the label's value.
    pub fn label(self) -> &'static str {
        match self {
            End::Done => "done",
            End::RolledBack => "rolled_back",
            End::Refused => "refused",
            End::Lost => "lost",
        }
    }
}

/// Changes of this host, since `dyscod` started.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// Number of changes, by kind and end.
    pub ends: BTreeMap<(ChangeKind, End), u64>,
    /// Number of changes that were not done, by the name of the reason.
    pub reasons: BTreeMap<&'static str, u64>,
    /// Durations from the request to new data on the new path.
    pub to_switch: Durations,
    /// Durations from the request to the end.
    pub to_end: Durations,
}

impl Ended {
    /// Returns the number of changes with this end, of all kinds.
    pub fn count(&self, end: End) -> u64 {
        let of_end = self.ends.iter().filter(|((_, e), _)| *e == end);
        of_end.map(|(_, n)| n).sum()
    }
}

type Labels = [(&'static str, &'static str); 2];

/// Durations of changes, by their kind and mode.
#[derive(Clone, Debug)]
pub struct Durations(Family<Labels, Histogram>);

/// Upper bounds in seconds: from a round trip in a data centre to the longest time that a removal
/// may be given.
const BUCKETS: [f64; 13] = [
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 600.0,
];

impl Default for Durations {
    fn default() -> Durations {
        Durations(Family::new_with_constructor(|| Histogram::new(BUCKETS)))
    }
}

impl Durations {
    pub(super) const LABELS: &'static [&'static str] = &["kind", "mode"];

    /// Records the duration of one change.
    pub fn observe(&self, kind: ChangeKind, took: Duration) {
        let [kind, mode] = kind.labels();
        let labels = [("kind", kind), ("mode", mode)];
        self.0.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub(super) fn encode(&self, encoder: MetricEncoder<'_>) -> std::fmt::Result {
        self.0.encode(encoder)
    }
}
