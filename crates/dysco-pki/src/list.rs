//! Order of the lists of revoked certificates that one authority has signed.

use std::collections::BTreeMap;

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use serde::{Deserialize, Serialize};
use x509_parser::num_bigint::BigUint;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;
use x509_parser::time::ASN1Time;

use super::issue::CA_DAYS;
use super::load::Credentials;
use super::subject;

/// Serial numbers of revoked certificates, and the times of their revocation.
pub(super) type Revoked = BTreeMap<Vec<u8>, ASN1Time>;

/// Contents of a list.
pub(super) struct List {
    pub revoked: Revoked,
    /// Number of the list; each list that an authority signs has a higher one than the last.
    pub number: BigUint,
}

impl List {
    pub(super) fn parse(der: &[u8]) -> Option<List> {
        let (_, list) = CertificateRevocationList::from_der(der).ok()?;
        let entries = list.iter_revoked_certificates();
        let revoked = entries.map(|entry| (entry.raw_serial().to_vec(), entry.revocation_date));
        Some(List {
            revoked: revoked.collect(),
            number: list.crl_number().cloned().unwrap_or_default(),
        })
    }
}

/// Reason for which a list does not follow the one in use.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Outdated {
    /// There is no list.
    #[error("it is gone")]
    Gone,
    /// The list was signed before the one in use.
    #[error("it has the number {number}, and the list in use has the number {used}")]
    Older {
        /// Number of the list.
        number: String,
        /// Number of the list in use.
        used: String,
    },
    /// The list would let revoked certificates in.
    #[error("{0} certificates are not on it that the list in use has")]
    Lacks(usize),
}

/// Authority of a host, and its list of revoked certificates, if there is one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Revocations {
    authority: Vec<u8>,
    list: Option<Vec<u8>>,
}

impl Revocations {
    /// Returns those that credentials have.
    pub fn of(credentials: &Credentials) -> Revocations {
        Revocations {
            authority: credentials.ca.to_vec(),
            list: credentials.revoked.as_ref().map(|list| list.to_vec()),
        }
    }

    /// Returns the list.
    pub fn list(&self) -> Option<CertificateRevocationListDer<'static>> {
        self.list.clone().map(CertificateRevocationListDer::from)
    }

    /// Checks that the credentials revoke all that these revoke. Those of another authority may have
    /// any list.
    ///
    /// # Errors
    /// If their list is missing, is older, or lacks certificates that may be valid still.
    pub fn check_next(&self, next: &Credentials) -> Result<(), Outdated> {
        let own = CertificateDer::from(self.authority.as_slice());
        let used = self.list.as_deref().and_then(List::parse);
        let Some(used) = used.filter(|_| is_one_authority(&own, &next.ca)) else {
            return Ok(());
        };
        let next = next.revoked.as_deref().and_then(List::parse);
        let next = next.ok_or(Outdated::Gone)?;
        if next.number < used.number {
            return Err(Outdated::Older {
                number: next.number.to_string(),
                used: used.number.to_string(),
            });
        }
        // No certificate is valid for longer.
        let longest = i64::from(CA_DAYS) * 86_400;
        let since = ASN1Time::now().timestamp() - longest;
        let lacking = used
            .revoked
            .iter()
            .filter(|(serial, at)| at.timestamp() >= since && !next.revoked.contains_key(*serial));
        match lacking.count() {
            0 => Ok(()),
            count => Err(Outdated::Lacks(count)),
        }
    }
}

/// Returns true if two certificates are of one authority: it has one key, and may have renewed its
/// certificate.
pub fn is_one_authority(one: &CertificateDer<'_>, other: &CertificateDer<'_>) -> bool {
    let both = subject::parse(one).zip(subject::parse(other));
    both.is_some_and(|(one, other)| one.public_key().raw == other.public_key().raw)
}
