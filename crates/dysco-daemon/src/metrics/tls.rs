//! TLS of the metrics' port: this host's certificate, for clients with a certificate of the same
//! authority.

use std::sync::Arc;

use dysco_pki::Credentials;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};

/// Error of keys that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// This host's certificate, or its key, cannot be used.
    #[error(transparent)]
    Keys(#[from] rustls::Error),
    /// The authority's certificate cannot be used.
    #[error(transparent)]
    Verifier(#[from] VerifierBuilderError),
}

/// Returns an acceptor with the keys of this host.
pub(super) fn acceptor(credentials: &Credentials) -> Result<TlsAcceptor, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(credentials.ca.clone())?;
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
    let verifier = verifier.with_crls(credentials.revoked.clone()).build()?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![credentials.cert.clone()], credentials.key.clone_key())?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use dysco_pki::{IssueRequest, PkiPaths};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpSocket, TcpStream};
    use tokio::sync::mpsc;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::ClientConfig;
    use tokio_rustls::rustls::pki_types::ServerName;

    use super::*;
    use crate::metrics::tests::free_port;
    use crate::metrics::{Scrape, Server, Snapshot, serve, server};

    fn keys() -> Credentials {
        let dir = tempfile::tempdir().unwrap();
        let authority = dir.path().join("authority");
        dysco_pki::init(&authority).unwrap();
        let addresses = vec![[10, 0, 0, 1].into()];
        dysco_pki::issue(&IssueRequest {
            dir: authority,
            name: "host".into(),
            addresses: addresses.clone(),
            out: dir.path().join("host"),
            days: 1,
        })
        .unwrap();
        dysco_pki::load(&PkiPaths::in_dir(&dir.path().join("host")), &addresses).unwrap()
    }

    fn copy(keys: &Credentials) -> Credentials {
        Credentials {
            ca: keys.ca.clone(),
            cert: keys.cert.clone(),
            key: keys.key.clone_key(),
            revoked: keys.revoked.clone(),
            addresses: keys.addresses.clone(),
        }
    }

    /// Server on a port of this host.
    struct Lab {
        port: SocketAddr,
        _dir: tempfile::TempDir,
        _server: Server,
    }

    impl Lab {
        fn new(host: &Credentials) -> Lab {
            let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
            let (scrapes, mut asked) = mpsc::channel::<Scrape>(1);
            tokio::spawn(async move {
                while let Some(scrape) = asked.recv().await {
                    scrape.send(Snapshot::default()).unwrap();
                }
            });
            let config = server::ServerConfig {
                socket: dir.path().join("metrics.sock"),
                gid: None,
                listen: Some(port),
                tls: Some(copy(host)),
            };
            Lab {
                port,
                _server: serve(config, scrapes).unwrap(),
                _dir: dir,
            }
        }

        /// Connects from this address of the host.
        async fn connect(&self, from: [u8; 4]) -> std::io::Result<TcpStream> {
            let socket = TcpSocket::new_v4()?;
            socket.bind((from, 0).into())?;
            socket.connect(self.port).await
        }
    }

    /// Returns the answer that a client receives, with a certificate of these keys or without one.
    async fn scrape(
        stream: TcpStream,
        host: &Credentials,
        own: Option<&Credentials>,
    ) -> std::io::Result<String> {
        let mut roots = RootCertStore::empty();
        roots.add(host.ca.clone()).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(roots);
        let client = match own {
            Some(own) => client
                .with_client_auth_cert(vec![own.cert.clone()], own.key.clone_key())
                .unwrap(),
            None => client.with_no_client_auth(),
        };
        let name = ServerName::try_from("10.0.0.1").unwrap();
        let connector = TlsConnector::from(Arc::new(client));
        let mut stream = connector.connect(name, stream).await?;
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: dysco\r\nConnection: close\r\n\r\n")
            .await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    const HERE: [u8; 4] = [127, 0, 0, 1];
    const OTHER: [u8; 4] = [127, 0, 0, 2];

    /// A stranger takes a few places, and none of those with a certificate.
    #[tokio::test]
    async fn silent_strangers_keep_nobody_else_away() {
        let host = keys();
        let lab = Lab::new(&host);
        let mut silent = Vec::new();
        for _ in 0..20 {
            silent.push(lab.connect(HERE).await.unwrap());
        }
        // The last of them were closed at once.
        let mut last = silent.pop().unwrap();
        assert!(matches!(last.read(&mut [0]).await, Ok(0) | Err(_)));
        let stream = lab.connect(OTHER).await.unwrap();
        let answer = scrape(stream, &host, Some(&host)).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }

    #[tokio::test]
    async fn only_a_certificate_of_the_authority_reads() {
        let host = keys();
        let lab = Lab::new(&host);
        let stream = lab.connect(HERE).await.unwrap();
        let answer = scrape(stream, &host, Some(&host)).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        assert!(answer.contains("dysco_ports_held 0\n"), "{answer}");
        for other in [None, Some(&keys())] {
            let stream = lab.connect(HERE).await.unwrap();
            let refused = scrape(stream, &host, other).await;
            assert!(refused.is_err(), "{refused:?}");
        }
    }
}
