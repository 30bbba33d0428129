//! TLS of connections to etcd: this host proves itself, and members do that are not on the list of
//! revoked certificates.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer,
};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::KeyFiles;
use crate::error::FleetError;

/// List of revoked certificates, and the authority that has signed it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RevokedList {
    /// The list.
    pub list: CertificateRevocationListDer<'static>,
    /// Certificate of the authority.
    pub authority: CertificateDer<'static>,
}

/// Returns a connector with the present contents of the files.
pub(crate) async fn connector(
    files: &KeyFiles,
    revoked: Option<RevokedList>,
) -> Result<TlsConnector, FleetError> {
    let provider = Arc::new(ring::default_provider());
    let authorities = certificates(&files.ca).await?;
    // The members may have certificates of another authority. The list has none of these, and their
    // authority may have the same name.
    let list = revoked.filter(|revoked| {
        let mut all = authorities.iter();
        all.any(|authority| dysco_pki::is_one_authority(authority, &revoked.authority))
    });
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority).map_err(unusable(&files.ca))?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), Arc::clone(&provider))
        .with_crls(list.map(|revoked| revoked.list))
        .allow_unknown_revocation_status()
        .build()
        .map_err(unusable(&files.ca))?;
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key).await?);
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable(&files.cert))?
        .with_webpki_verifier(verifier)
        .with_client_auth_cert(
            certificates(&files.cert).await?,
            key.map_err(unusable(&files.key))?,
        )
        .map_err(unusable(&files.cert))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

async fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FleetError> {
    let pem = read(path).await?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    all.map_err(unusable(path))
}

async fn read(path: &Path) -> Result<Vec<u8>, FleetError> {
    tokio::fs::read(path)
        .await
        .map_err(|source| FleetError::Keys {
            path: path.into(),
            source,
        })
}

fn unusable<E: std::error::Error + Send + Sync + 'static>(
    path: &Path,
) -> impl FnOnce(E) -> FleetError {
    let path = path.into();
    move |error| FleetError::Keys {
        path,
        source: io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use dysco_pki::{self as pki, IssueRequest, PkiPaths};
    use tokio::io::{AsyncRead, AsyncWrite};
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;

    use super::*;
    use crate::client::connect;
    use crate::{Member, Settings};

    const ADDRESS: [IpAddr; 1] = [IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)];

    fn issue(dir: &Path, name: &str) -> PkiPaths {
        let request = IssueRequest {
            dir: dir.join("authority"),
            name: name.into(),
            addresses: ADDRESS.to_vec(),
            out: dir.join(name),
            days: 1,
        };
        pki::issue(&request).unwrap();
        PkiPaths {
            revoked: dir.join("authority").join(pki::REVOKED),
            ..PkiPaths::in_dir(&dir.join(name))
        }
    }

    /// Returns the list that a host has loaded.
    fn list_of(keys: &PkiPaths) -> Option<RevokedList> {
        let keys = pki::load(keys, &ADDRESS).unwrap();
        Some(RevokedList {
            list: keys.revoked.clone()?,
            authority: keys.ca.clone(),
        })
    }

    /// Makes the handshake of a member with these keys.
    fn member(keys: &PkiPaths) -> TlsAcceptor {
        let keys = pki::load(keys, &ADDRESS).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![keys.cert.clone()], keys.key.clone_key());
        TlsAcceptor::from(Arc::new(config.unwrap()))
    }

    async fn handshake(
        connector: &TlsConnector,
        acceptor: &TlsAcceptor,
    ) -> io::Result<impl AsyncRead + AsyncWrite> {
        let (here, there) = tokio::io::duplex(1 << 16);
        let name = ADDRESS[0].into();
        let (ours, _theirs) = tokio::join!(connector.connect(name, here), acceptor.accept(there));
        ours
    }

    #[tokio::test]
    async fn a_revoked_member_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        pki::init(&dir.path().join("authority")).unwrap();
        let [own, good, bad] = ["own", "good", "bad"].map(|name| issue(dir.path(), name));
        let (good, acceptor) = (member(&good), member(&bad));
        let files = KeyFiles {
            ca: own.ca.clone(),
            cert: own.cert.clone(),
            key: own.key.clone(),
        };
        let before = connector(&files, None).await.unwrap();
        assert!(handshake(&before, &acceptor).await.is_ok());
        pki::revoke(&dir.path().join("authority"), &[bad.cert]).unwrap();
        let list = list_of(&own);
        let after = connector(&files, list.clone()).await.unwrap();
        let refused = handshake(&after, &acceptor).await.map(drop).unwrap_err();
        assert!(refused.to_string().contains("Revoked"), "{refused}");
        assert!(handshake(&after, &good).await.is_ok());
        // Members of another authority are not on the list.
        let other = tempfile::tempdir().unwrap();
        pki::init(&other.path().join("authority")).unwrap();
        let theirs = issue(other.path(), "member");
        let files = KeyFiles {
            ca: theirs.ca.clone(),
            ..files
        };
        let after = connector(&files, list).await.unwrap();
        assert!(handshake(&after, &member(&theirs)).await.is_ok());
    }

    #[tokio::test]
    async fn an_error_of_the_handshake_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        pki::init(&dir.path().join("authority")).unwrap();
        let [own, bad] = ["own", "bad"].map(|name| issue(dir.path(), name));
        let acceptor = member(&bad);
        pki::revoke(&dir.path().join("authority"), &[bad.cert]).unwrap();
        let list = list_of(&own);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // The client refuses it.
                let _ = acceptor.accept(stream).await;
            }
        });
        let member = Member {
            url,
            host: "127.0.0.1".into(),
        };
        let settings = Settings {
            members: vec![member.clone()],
            prefix: "/dysco".into(),
            keys: KeyFiles {
                ca: own.ca,
                cert: own.cert,
                key: own.key,
            },
            lease: Duration::from_secs(30),
            name: "host".into(),
            addresses: ADDRESS.to_vec(),
        };
        let mut client = connect(&settings, &member, list).await.unwrap();
        let asked = client.get("key", None);
        let refused = crate::client::answered("read", &member, asked).await;
        let refused = refused.map(drop).unwrap_err().to_string();
        assert!(refused.contains("Revoked"), "{refused}");
        assert!(refused.contains("etcd's certificate has to"), "{refused}");
    }
}
