//! `[fleet]`: the store of a fleet's policy and hosts.

use std::net::IpAddr;
use std::time::Duration;

use dysco_explain::Cause;
use toml::Spanned;

use super::super::error::ConfigError;
use super::super::{Fleet, PkiPaths, schema};
use super::Checker;

/// Default prefix of the keys.
const PREFIX: &str = "/dysco";
/// Default time in seconds after which the entry of a host that is gone ends.
const LEASE_S: u64 = 30;
/// Maximum number of members of etcd, which is more than any cluster has.
const MOST_MEMBERS: usize = 16;

impl Checker<'_> {
    /// Checks the table. Keys and certificates are those of the control channel by default.
    pub(super) fn fleet(&self, fleet: schema::Fleet, pki: &PkiPaths) -> Result<Fleet, ConfigError> {
        let members = fleet.etcd;
        if let Some(extra) = members.get(MOST_MEMBERS) {
            let why = Cause::new(format!("etcd has more than {MOST_MEMBERS}"));
            return Err(self.error(extra.span(), why.hint("name the members of one cluster")));
        }
        for member in &members {
            let url = member.get_ref();
            let is_local = url.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
            if !url.tls && !is_local {
                let why = format!(
                    "{url} is no loopback address, and without TLS any host on the path to it can \
                     redirect sessions"
                );
                let hint = "use https://, with etcd's certificate of the authority";
                return Err(self.error(member.span(), Cause::new(why).hint(hint)));
            }
        }
        Ok(Fleet {
            etcd: members.into_iter().map(Spanned::into_inner).collect(),
            prefix: self.prefix(fleet.prefix)?,
            lease: Duration::from_secs(self.within("lease_s", fleet.lease_s, LEASE_S, 2..=3600)?),
            ca: fleet.ca.unwrap_or_else(|| pki.ca.clone()),
            cert: fleet.cert.unwrap_or_else(|| pki.cert.clone()),
            key: fleet.key.unwrap_or_else(|| pki.key.clone()),
        })
    }

    fn prefix(&self, prefix: Option<Spanned<String>>) -> Result<String, ConfigError> {
        let Some(prefix) = prefix else {
            return Ok(PREFIX.into());
        };
        let text = prefix.get_ref();
        let is_path = text.starts_with('/') && !text.ends_with('/');
        if !is_path || !text.chars().all(|c| c.is_ascii_graphic()) {
            let why = Cause::new(format!("'{text}' is no prefix of keys"));
            let hint = format!("write it like \"{PREFIX}\", without a slash at its end");
            return Err(self.error(prefix.span(), why.hint(hint)));
        }
        Ok(prefix.into_inner())
    }
}
