//! A client of the local API. Calls block, because a command-line program has no other work.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dysco_explain::{Explain, Explanation, display_explained};

use super::host::HostName;
use super::types::{Failure, FailureCode, Reply, Request};

/// Default path of the local API's socket.
pub const DEFAULT_API_SOCKET: &str = "/run/dysco/dyscod.sock";

/// Maximum length in bytes of a reply.
const MAX_REPLY: u64 = 16 * 1024 * 1024;

/// First bytes of a [`Reply::Session`], as serde writes them.
pub(crate) const SESSION: &[u8] = br#"{"reply":"session","#;

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    stream: BufReader<UnixStream>,
}

/// An error while asking the daemon, or the daemon's refusal.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process listens on the socket.
    NoDaemon {
        /// The socket.
        socket: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The user has no permission for the socket.
    NotAllowed {
        /// The socket.
        socket: PathBuf,
    },
    /// The daemon did not answer in time.
    TimedOut {
        /// The socket.
        socket: PathBuf,
    },
    /// The daemon closed the connection.
    Lost {
        /// The socket.
        socket: PathBuf,
        /// Description of the event.
        why: String,
    },
    /// The answer belongs to another version.
    Malformed(serde_json::Error),
    /// The daemon reports a failure.
    Failure(Failure),
}

display_explained!(ClientError);

impl Explain for ClientError {
    fn explain(&self) -> Explanation {
        let of = |does: &str, socket: &Path| format!("{does} dyscod at {}", socket.display());
        match self {
            ClientError::NoDaemon { socket, source } => {
                Explanation::new(of("reach", socket), source)
                    .hint("start it, or name its socket with --socket")
            }
            ClientError::NotAllowed { socket } => {
                Explanation::new(of("reach", socket), "permission denied")
                    .hint("run as root, or join the group of [api] group")
            }
            ClientError::TimedOut { socket } => {
                Explanation::new(of("hear from", socket), "it did not answer in time")
                    .hint("see its log for what keeps it, then ask again")
            }
            ClientError::Lost { socket, why } => Explanation::new(of("hear from", socket), why)
                .hint("see its log: it may have been stopped"),
            ClientError::Malformed(source) => Explanation::new("understand dyscod", source)
                .hint("use dyscoctl of the same version"),
            ClientError::Failure(failure) => failure.explain(),
        }
    }
}

impl Client {
    /// Connects to the daemon's socket.
    pub fn connect(socket: &Path) -> Result<Client, ClientError> {
        let stream = UnixStream::connect(socket).map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => ClientError::NotAllowed {
                socket: socket.into(),
            },
            _ => ClientError::NoDaemon {
                socket: socket.into(),
                source,
            },
        })?;
        Ok(Client {
            socket: socket.into(),
            stream: BufReader::new(stream),
        })
    }

    /// Sends a request after resolving the host names in it. [`Client::reply`] returns the
    /// answers.
    pub fn ask(&mut self, request: &Request) -> Result<(), ClientError> {
        let mut request = request.clone();
        request.hosts().for_each(HostName::look_up);
        let mut line = serde_json::to_vec(&request).map_err(ClientError::Malformed)?;
        line.push(b'\n');
        let mut stream = self.stream.get_ref();
        stream.write_all(&line).map_err(|error| self.lost(error))
    }

    /// Sets the time to wait for each answer. Without one, the client waits for ever.
    pub fn set_patience(&mut self, patience: Option<Duration>) -> Result<(), ClientError> {
        let set = self.stream.get_ref().set_read_timeout(patience);
        set.map_err(|error| self.lost(error))
    }

    /// Returns the next answer. A failure is returned as an error.
    pub fn reply(&mut self) -> Result<Reply, ClientError> {
        let mut line = Vec::new();
        let read = (&mut self.stream)
            .take(MAX_REPLY)
            .read_until(b'\n', &mut line);
        match read {
            Err(error) => return Err(self.lost(error)),
            Ok(_) if !line.ends_with(b"\n") => {
                let why = "it closed the connection".into();
                return Err(self.closed(why));
            }
            Ok(_) => {}
        }
        let reply = match line.starts_with(SESSION) {
            // Sessions are numerous, and serde parses a tagged type twice.
            true => serde_json::from_slice(&line).map(|s| Reply::Session(Box::new(s))),
            false => serde_json::from_slice(&line),
        };
        match reply.map_err(ClientError::Malformed)? {
            Reply::Error(failure) => Err(ClientError::Failure(failure)),
            reply => Ok(reply),
        }
    }

    fn lost(&self, error: io::Error) -> ClientError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ClientError::TimedOut {
                socket: self.socket.clone(),
            },
            _ => self.closed(error.to_string()),
        }
    }

    fn closed(&self, why: String) -> ClientError {
        ClientError::Lost {
            socket: self.socket.clone(),
            why,
        }
    }
}

impl ClientError {
    /// Returns the failure's code, if the daemon gave one.
    pub fn code(&self) -> Option<FailureCode> {
        match self {
            ClientError::Failure(failure) => Some(failure.code),
            _ => None,
        }
    }
}
