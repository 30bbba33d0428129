//! Report about reading the configuration again.

use serde::{Deserialize, Serialize};

/// The values that a running `dyscod` has taken over, or would take over in a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// True if the request only asked for the differences, and nothing was changed.
    pub dry_run: bool,
    /// Values that have changed.
    pub changed: Vec<ValueChange>,
    /// Files whose contents have changed under the same name: `certificate`, `authority`,
    /// `revoked`, `policy`.
    pub files: Vec<String>,
    /// Values that differ in the file and take effect at the next start.
    pub needs_restart: Vec<ValueChange>,
}

/// A changed value of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueChange {
    /// Key, as `table.key`.
    pub key: String,
    /// Value before the change, in TOML; `None` if it was not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Value after the change, in TOML; `None` if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}
