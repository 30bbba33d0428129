//! What came of reading the configuration again.

use serde::{Deserialize, Serialize};

/// What a running `dyscod` has taken up, or would.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// Was nothing changed, since only that was asked?
    pub dry_run: bool,
    /// Values that are others now.
    pub changed: Vec<ValueChange>,
    /// Files that are others now, though their names are the same: `certificate`, `authority`,
    /// `revoked`, `policy`.
    pub files: Vec<String>,
    /// Values that are others in the file, and take effect at the next start.
    pub needs_restart: Vec<ValueChange>,
}

/// A value of the configuration that is another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueChange {
    /// Which, as `table.key`.
    pub key: String,
    /// As it was, in TOML; none where it was not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// As it is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}
