//! Connections between the handlers of two hosts. A host listens for them on the TCP port with the
//! number of its control channel's port.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use dysco_control::Control;
use dysco_proto::pairs::{PairId, Secret};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::super::done::{Came, Done};
use crate::engine::Answer;
use crate::permits::{Permit, Permits};

/// Time in which a connection has to open, and to prove itself.
const LIMIT: Duration = Duration::from_secs(3);
/// Greatest number of connections that have not proven themselves: of all addresses that are no
/// peer's, and of one of these.
const STRANGERS: usize = 256;
const OF_STRANGER: usize = 16;
/// The same for the addresses of peers. A change of many sessions connects for all of them at once.
const PEERS: usize = 1024;
const OF_PEER: usize = 256;

/// Permits for connections that have not proven themselves. Strangers do not take those of peers.
struct Rooms {
    strangers: Arc<Permits<IpAddr>>,
    peers: Arc<Permits<IpAddr>>,
    control: Control,
}

impl Rooms {
    fn take(&self, from: IpAddr) -> Option<Permit<IpAddr>> {
        let from = from.to_canonical();
        let room = match self.control.is_connected(from) {
            true => &self.peers,
            false => &self.strangers,
        };
        room.take(from)
    }
}

/// The place where connections of other hosts arrive.
pub(in crate::engine::services) struct Door {
    /// The TCP port.
    pub port: u16,
}

impl Door {
    /// Begins to listen.
    ///
    /// # Errors
    /// If an address is taken.
    pub(crate) fn open(
        addresses: &[SocketAddr],
        control: &Control,
        answers: &mpsc::UnboundedSender<Answer>,
    ) -> io::Result<Door> {
        let all = addresses.iter().map(|address| listen(*address));
        // All of them, before one accepts: a listener that stays would take the address next time.
        let all = all.collect::<io::Result<Vec<_>>>()?;
        let port = all
            .first()
            .map_or(Ok(0), |one| Ok::<_, io::Error>(one.local_addr()?.port()))?;
        let rooms = Arc::new(Rooms {
            strangers: Permits::new(STRANGERS, OF_STRANGER),
            peers: Permits::new(PEERS, OF_PEER),
            control: control.clone(),
        });
        for listener in all {
            tokio::spawn(accept(listener, Arc::clone(&rooms), answers.clone()));
        }
        Ok(Door { port })
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    TcpListener::from_std(socket.into())
}

async fn accept(listener: TcpListener, rooms: Arc<Rooms>, answers: mpsc::UnboundedSender<Answer>) {
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // No descriptor is free, for example.
                tracing::warn!(%error, "a connection for services was not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(place) = rooms.take(from.ip()) else {
            continue;
        };
        let answers = answers.clone();
        tokio::spawn(async move {
            let proven = timeout(LIMIT, prove(stream)).await;
            if let Ok(Ok((token, fd))) = proven {
                tell(&answers, Came::Accepted(token, fd));
            }
            drop(place);
        });
    }
}

/// Reads the token, and nothing behind it: that is the handler's.
async fn prove(mut stream: TcpStream) -> io::Result<(Secret, OwnedFd)> {
    let mut token = [0; 32];
    stream.read_exact(&mut token).await?;
    Ok((Secret(token), stream.into_std()?.into()))
}

/// Connects to the other host.
pub(super) fn connect(
    pair: PairId,
    peer: IpAddr,
    port: u16,
    token: Secret,
    answers: mpsc::UnboundedSender<Answer>,
) {
    tokio::spawn(async move {
        let opened = timeout(LIMIT, open((peer, port).into(), token)).await;
        let fd = opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        tell(&answers, Came::Made(pair, fd));
    });
}

async fn open(to: SocketAddr, token: Secret) -> io::Result<OwnedFd> {
    let mut stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    stream.write_all(&token.0).await?;
    Ok(stream.into_std()?.into())
}

fn tell(answers: &mpsc::UnboundedSender<Answer>, came: Came) {
    // The engine may have ended.
    let _ = answers.send(Answer::Service(Box::new(Done::Came(came))));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dysco_control::ControlConfig;
    use dysco_pki::{self as pki, IssueRequest, PkiPaths};

    use super::*;

    /// Starts the channel of a host with these addresses, which listens on the first.
    fn channel(dir: &Path, addresses: &[&str], port: u16, peer_port: u16) -> Control {
        let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
        let out = dir.join(addresses[0].to_string());
        let request = IssueRequest {
            dir: dir.join("authority"),
            name: "host".into(),
            addresses: addresses.clone(),
            out: out.clone(),
            days: 1,
        };
        pki::issue(&request).unwrap();
        let config = ControlConfig {
            listen: vec![SocketAddr::new(addresses[0], port)],
            peer_port,
            credentials: pki::load(&PkiPaths::in_dir(&out), &addresses).unwrap(),
        };
        Control::start(config).unwrap().0
    }

    #[tokio::test]
    async fn a_door_that_did_not_open_leaves_no_listener() {
        let dir = tempfile::tempdir().unwrap();
        pki::init(&dir.path().join("authority")).unwrap();
        let control = channel(dir.path(), &["127.0.0.1"], 0, 1);
        let taken = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let addresses =
            ["127.0.0.1", "127.0.0.2"].map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
        let (answers, _answered) = mpsc::unbounded_channel();
        assert!(Door::open(&addresses, &control, &answers).is_err());
        drop(taken);
        let door = Door::open(&addresses, &control, &answers);
        assert_eq!(door.unwrap().port, port);
    }

    #[tokio::test]
    async fn strangers_do_not_shut_out_each_other_or_peers() {
        let dir = tempfile::tempdir().unwrap();
        pki::init(&dir.path().join("authority")).unwrap();
        let other = channel(dir.path(), &["127.0.0.3", "127.0.0.4"], 0, 1);
        let port = other.local_addresses()[0].port();
        let rooms = Rooms {
            strangers: Permits::new(STRANGERS, OF_STRANGER),
            peers: Permits::new(PEERS, OF_PEER),
            control: channel(dir.path(), &["127.0.0.1"], 0, port),
        };
        rooms.control.reach([127, 0, 0, 3].into());
        let peer = IpAddr::from([127, 0, 0, 4]);
        while !rooms.control.is_connected(peer) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let take = |from: IpAddr| -> Vec<_> { (0..1000).map_while(|_| rooms.take(from)).collect() };
        let strangers: Vec<_> = (5..=100)
            .map(|last| take([127, 0, 0, last].into()))
            .collect();
        assert_eq!(strangers[0].len(), OF_STRANGER);
        assert_eq!(strangers[1].len(), OF_STRANGER);
        assert_eq!(strangers.iter().flatten().count(), STRANGERS);
        assert_eq!(take(peer).len(), OF_PEER);
    }
}
