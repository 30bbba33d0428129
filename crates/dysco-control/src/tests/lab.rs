//! Fleets, their daemons, and clients that are no daemons.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dysco_pki::{self as pki, Credentials, IssueRequest, PkiPaths};
use rcgen::{CertificateParams, Issuer, KeyPair, SanType, date_time_ymd};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::{Control, ControlConfig, Event, Incoming, tls};

/// Time that no passing test takes.
const PATIENCE: Duration = Duration::from_secs(20);
/// Port of all daemons: every test has separate loopback addresses.
pub(super) const PORT: u16 = 47474;

/// Returns addresses that no other test has.
pub(super) fn addresses<const N: usize>() -> [IpAddr; N] {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let first = NEXT.fetch_add(N as u32, Ordering::Relaxed);
    let [.., high, low] = std::process::id().to_be_bytes();
    std::array::from_fn(|i| Ipv4Addr::new(127, high, low, (first + i as u32) as u8).into())
}

/// Authority of a fleet.
pub(super) struct Fleet {
    dir: TempDir,
}

impl Fleet {
    pub(super) fn new() -> Fleet {
        let dir = tempfile::tempdir().unwrap();
        pki::init(&dir.path().join("authority")).unwrap();
        Fleet { dir }
    }

    /// Returns credentials for these addresses.
    pub(super) fn credentials(&self, addresses: &[IpAddr]) -> Credentials {
        let keys = self.issue(addresses);
        self.load(&keys, addresses)
    }

    /// Loads the keys of a folder, with the fleet's present list of revoked certificates.
    pub(super) fn load(&self, keys: &Path, addresses: &[IpAddr]) -> Credentials {
        let paths = PkiPaths {
            revoked: self.dir.path().join("authority").join(pki::REVOKED),
            ..PkiPaths::in_dir(keys)
        };
        pki::load(&paths, addresses).unwrap()
    }

    /// Puts the certificate of a folder on the list.
    pub(super) fn revoke(&self, keys: &Path) {
        let certificate = keys.join(pki::HOST_CERT);
        pki::revoke(&self.dir.path().join("authority"), &[certificate]).unwrap();
    }

    /// Issues a certificate for these addresses into a separate folder.
    pub(super) fn issue(&self, addresses: &[IpAddr]) -> PathBuf {
        let out = tempfile::tempdir_in(self.dir.path()).unwrap().keep();
        let request = IssueRequest {
            dir: self.dir.path().join("authority"),
            name: "host".into(),
            addresses: addresses.to_vec(),
            out: out.clone(),
            days: 1,
        };
        pki::issue(&request).unwrap();
        out
    }

    /// Issues a certificate that expires within two or three seconds.
    pub(super) fn issue_short(&self, addresses: &[IpAddr]) -> PathBuf {
        let out = self.issue(addresses);
        let authority = self.dir.path().join("authority");
        let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
        let ca_key = KeyPair::from_pem(&read(authority.join(pki::CA_KEY))).unwrap();
        let issuer = Issuer::from_ca_cert_pem(&read(authority.join(pki::CA_CERT)), ca_key).unwrap();
        let key = KeyPair::from_pem(&read(out.join(pki::HOST_KEY))).unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = addresses.iter().copied().map(SanType::IpAddress).collect();
        params.use_authority_key_identifier_extension = true;
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        params.not_after = date_time_ymd(1970, 1, 1) + since_1970 + Duration::from_secs(2);
        let certificate = params.signed_by(&key, &issuer).unwrap();
        std::fs::write(out.join(pki::HOST_CERT), certificate.pem()).unwrap();
        out
    }

    /// Starts a daemon that listens on an address, which its certificate names.
    pub(super) fn daemon(&self, address: IpAddr) -> Daemon {
        Daemon::start(address, self.credentials(&[address]))
    }
}

/// Channel of one daemon, with its events.
pub(super) struct Daemon {
    pub control: Control,
    pub events: mpsc::Receiver<Event>,
}

impl Daemon {
    pub(super) fn start(listen: IpAddr, credentials: Credentials) -> Daemon {
        Daemon::with(SocketAddr::new(listen, PORT), PORT, credentials)
    }

    pub(super) fn with(listen: SocketAddr, peer_port: u16, credentials: Credentials) -> Daemon {
        let config = ControlConfig {
            listen: vec![listen],
            peer_port,
            credentials,
        };
        let (control, events) = Control::start(config).unwrap();
        Daemon { control, events }
    }

    /// Returns the next event that does not concern a key.
    pub(super) async fn event(&mut self) -> Event {
        loop {
            match self.any_event().await {
                Event::Key { .. } | Event::KeyGone(_) | Event::KeyRevoked(_) => {}
                event => return event,
            }
        }
    }

    /// Returns the next key of a connection; other events before it do not matter.
    pub(super) async fn key(&mut self) -> (u64, [u64; 2]) {
        loop {
            if let Event::Key { id, key, .. } = self.any_event().await {
                return (id, key.0);
            }
        }
    }

    pub(super) async fn any_event(&mut self) -> Event {
        let event = timeout(PATIENCE, self.events.recv()).await;
        event.expect("no event in time").expect("channel closed")
    }

    /// Returns the next message; events of peers before it do not matter.
    pub(super) async fn message(&mut self) -> Incoming {
        loop {
            if let Event::Message(incoming) = self.event().await {
                return incoming;
            }
        }
    }

    /// Returns true if no event so far says that a peer is down.
    pub(super) fn no_peer_went(&mut self) -> bool {
        let mut events = std::iter::from_fn(|| self.events.try_recv().ok());
        !events.any(|event| matches!(event, Event::PeerDown(..)))
    }

    /// Returns true if no event was reported so far.
    pub(super) fn heard_nothing(&mut self) -> bool {
        self.events.try_recv().is_err()
    }
}

/// QUIC client that is no daemon.
pub(super) struct Stranger {
    _endpoint: quinn::Endpoint,
    pub connection: quinn::Connection,
}

impl Stranger {
    /// Connects with a certificate of the fleet.
    pub(super) async fn trusted(credentials: &Credentials, to: IpAddr) -> Stranger {
        Stranger::connect(tls::Tls::new(credentials).unwrap().client, to).await
    }

    pub(super) async fn connect(config: quinn::ClientConfig, to: IpAddr) -> Stranger {
        let endpoint = quinn::Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = SocketAddr::new(to, PORT);
        let connecting = endpoint.connect_with(config, address, &to.to_string());
        let connection = connecting.unwrap().await.unwrap();
        Stranger {
            _endpoint: endpoint,
            connection,
        }
    }

    /// Returns the reason for which the daemon closed the connection.
    pub(super) async fn closed(&self) -> quinn::ConnectionError {
        let closed = timeout(PATIENCE, self.connection.closed()).await;
        closed.expect("not closed in time")
    }
}
