//! Calls of services in sessions.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::services::OneEnd;

/// Calls a service of the first session that has any: the name of the service, and the operation.
/// Returns what `dyscoctl` says.
pub(crate) fn call(here: &OneEnd, words: &[&str]) -> Result<Value> {
    let listed = here.service(&["list"])?;
    let session = listed[0]["session"].as_str().context("no session")?;
    here.service(&[&["call", session], words].concat())
}
