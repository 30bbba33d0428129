//! The configuration and the files that it names, read and checked.

use dysco_api::{Failure, Reply};
use dysco_config::policy::Policy;
use dysco_config::{Config, Source};
use dysco_control::{Control, Renewal};
use dysco_explain::{Explain, Explanation};
use dysco_pki::Credentials;
use tokio::sync::mpsc;

/// Client that waits for an answer; none after a SIGHUP.
pub(super) type Asker = Option<mpsc::Sender<Reply>>;

/// Result of reading the files, and the client that waits for it.
pub(in crate::engine) struct Reread {
    pub(super) dry_run: bool,
    pub(super) asker: Asker,
    pub(super) files: Result<Files, Failure>,
}

/// Configuration and the files that it names, each checked.
pub(super) struct Files {
    pub config: Config,
    pub credentials: Credentials,
    pub renewal: Renewal,
    /// The file's policy. An error of it counts only where the file is used.
    pub policy: Result<Option<Policy>, Explanation>,
}

/// Reads and checks all files.
pub(super) fn read(source: &Source) -> Result<Files, Explanation> {
    let config = Config::without_keys_from(source).map_err(|e| e.explain())?;
    let credentials = config.credentials().map_err(|e| e.explain())?;
    let renewal = Control::prepare(&credentials).map_err(|e| e.explain())?;
    let policy = Policy::load(&config.chain.policy, &config.host.addresses);
    let policy = policy.map_err(|e| e.explain());
    Ok(Files {
        config,
        credentials,
        renewal,
        policy,
    })
}
