//! Connections between the handlers of two hosts. A host listens for them on the TCP port with the
//! number of its control channel's port.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use dysco_proto::pairs::{PairId, Secret};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::super::done::{Came, Done};
use crate::engine::Answer;

/// Time in which a connection has to open, and to prove itself.
const LIMIT: Duration = Duration::from_secs(3);
/// Greatest number of connections that have not proven themselves.
const STRANGERS: usize = 256;

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
        answers: &mpsc::UnboundedSender<Answer>,
    ) -> io::Result<Door> {
        let all = addresses.iter().map(|address| listen(*address));
        // All of them, before one accepts: a listener that stays would take the address next time.
        let all = all.collect::<io::Result<Vec<_>>>()?;
        let port = all
            .first()
            .map_or(Ok(0), |one| Ok::<_, io::Error>(one.local_addr()?.port()))?;
        for listener in all {
            tokio::spawn(accept(listener, answers.clone()));
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

async fn accept(listener: TcpListener, answers: mpsc::UnboundedSender<Answer>) {
    let room = std::sync::Arc::new(tokio::sync::Semaphore::new(STRANGERS));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // No descriptor is free, for example.
                tracing::warn!(%error, "a connection for services was not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(place) = room.clone().try_acquire_owned() else {
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
    use super::*;

    #[tokio::test]
    async fn a_door_that_did_not_open_leaves_no_listener() {
        let taken = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let addresses =
            ["127.0.0.1", "127.0.0.2"].map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
        let (answers, _answered) = mpsc::unbounded_channel();
        assert!(Door::open(&addresses, &answers).is_err());
        drop(taken);
        let door = Door::open(&addresses, &answers);
        assert_eq!(door.unwrap().port, port);
    }
}
