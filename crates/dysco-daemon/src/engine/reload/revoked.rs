//! The list of revoked certificates in use. It is on disk as well, so that a restart does not accept
//! what it revokes.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use dysco_pki::{Credentials, PkiError, PkiPaths, Revocations};

use crate::engine::store::replace;

/// Remedy for a list that is not used.
pub(super) const HINT: &str = "copy the newest revoked.crl of the authority here, and reload";

/// Copy on disk of the authority and the list in use.
pub(in crate::engine) struct KeptList {
    path: PathBuf,
    kept: Option<Revocations>,
    /// True if the previous process has used the same list of the same authority. Otherwise, keys
    /// that it has shared may be of peers that are revoked now.
    pub(in crate::engine) is_same: bool,
}

impl KeptList {
    /// Reads what the previous process has used. If its list is newer than that of the credentials,
    /// it stays in use.
    ///
    /// # Errors
    /// If this host's certificate is on that list.
    pub(in crate::engine) fn open(
        dir: &Path,
        credentials: Credentials,
        paths: &PkiPaths,
    ) -> Result<(KeptList, Credentials), PkiError> {
        let path = dir.join("revoked");
        let kept = read(&path);
        let outdated = kept
            .as_ref()
            .and_then(|kept| Some((kept.list()?, kept.check_next(&credentials).err()?)));
        let credentials = match outdated {
            None => credentials,
            Some((list, why)) => {
                tracing::error!(
                    path = %paths.revoked.display(), %why,
                    "the list of revoked certificates is not used, the one of before stays in use; {HINT}"
                );
                let paths = PkiPaths {
                    revoked: path.clone(),
                    ..paths.clone()
                };
                credentials.with_list(list, &paths)?
            }
        };
        let present = Revocations::of(&credentials);
        let is_same = match &kept {
            Some(kept) => *kept == present,
            // Without a list, nobody was revoked.
            None => present.list().is_none(),
        };
        let mut list = KeptList {
            path,
            kept,
            is_same,
        };
        list.keep(&credentials);
        Ok((list, credentials))
    }

    /// Writes what is in use now, if it differs.
    pub(super) fn keep(&mut self, credentials: &Credentials) {
        let present = Revocations::of(credentials);
        if self.kept.as_ref() == Some(&present) {
            return;
        }
        let bytes = postcard::to_allocvec(&present).map_err(io::Error::other);
        if let Err(error) = bytes.and_then(|bytes| replace(&self.path, &bytes)) {
            tracing::warn!(path = %self.path.display(), %error, "a restarted dyscod would not know which list of revoked certificates was in use");
        }
        self.kept = Some(present);
    }
}

fn read(path: &Path) -> Option<Revocations> {
    let read = match std::fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        read => read.and_then(|bytes| postcard::from_bytes(&bytes).map_err(io::Error::other)),
    };
    let failed = |error: &io::Error| {
        tracing::error!(path = %path.display(), %error, "it is not known which list of revoked certificates was in use");
    };
    read.inspect_err(failed).ok()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use dysco_pki::{self as pki, IssueRequest};

    use super::*;

    const OWN: [IpAddr; 1] = [IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1))];

    struct Lab {
        dir: tempfile::TempDir,
    }

    impl Lab {
        fn new() -> Lab {
            let dir = tempfile::tempdir().unwrap();
            pki::init(&dir.path().join("authority")).unwrap();
            Lab { dir }
        }

        fn paths(&self, name: &str) -> PkiPaths {
            PkiPaths {
                revoked: self.dir.path().join("revoked.crl"),
                ..PkiPaths::in_dir(&self.dir.path().join(name))
            }
        }

        fn issue(&self, name: &str) -> PkiPaths {
            let request = IssueRequest {
                dir: self.dir.path().join("authority"),
                name: name.into(),
                addresses: OWN.to_vec(),
                out: self.dir.path().join(name),
                days: 30,
            };
            pki::issue(&request).unwrap();
            self.paths(name)
        }

        fn revoke(&self, paths: &PkiPaths) {
            let authority = self.dir.path().join("authority");
            let list = pki::revoke(&authority, std::slice::from_ref(&paths.cert)).unwrap();
            std::fs::copy(list.path, &paths.revoked).unwrap();
        }

        /// Starts with the files that are there.
        fn open(&self, paths: &PkiPaths) -> Result<(KeptList, Credentials), PkiError> {
            let credentials = pki::load(paths, &OWN).unwrap();
            KeptList::open(self.dir.path(), credentials, paths)
        }
    }

    #[test]
    fn a_restart_knows_whether_the_list_is_the_same() {
        let lab = Lab::new();
        let (own, peer) = (lab.issue("own"), lab.issue("peer"));
        assert!(lab.open(&own).unwrap().0.is_same, "nobody was revoked");
        lab.revoke(&peer);
        assert!(!lab.open(&own).unwrap().0.is_same);
        assert!(lab.open(&own).unwrap().0.is_same);
        // A file that cannot be read, or none, says nothing.
        std::fs::write(lab.dir.path().join("revoked"), "").unwrap();
        assert!(!lab.open(&own).unwrap().0.is_same);
        std::fs::remove_file(lab.dir.path().join("revoked")).unwrap();
        assert!(!lab.open(&own).unwrap().0.is_same);
    }

    #[test]
    fn a_restart_keeps_the_newer_list() {
        let lab = Lab::new();
        let (own, peer) = (lab.issue("own"), lab.issue("peer"));
        lab.revoke(&peer);
        let (_, used) = lab.open(&own).unwrap();
        std::fs::remove_file(&own.revoked).unwrap();
        let (kept, credentials) = lab.open(&own).unwrap();
        assert!(kept.is_same);
        assert_eq!(credentials.revoked, used.revoked);
        // This host itself is on the list in use.
        lab.revoke(&own);
        let (other, own) = (lab.issue("other"), own);
        lab.open(&other).unwrap();
        std::fs::remove_file(&own.revoked).unwrap();
        let error = lab.open(&own).map(drop).unwrap_err();
        assert!(matches!(error, PkiError::Revoked { .. }), "{error}");
    }
}
