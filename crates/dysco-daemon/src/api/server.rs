//! Server of the local API.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::call::Call;
use super::caller::{Caller, Policy};
use super::connection;
use super::error::ApiError;
use crate::permits::{Permit, Permits};

/// Maximum number of readers' connections, so that root still gets in, and of one reader's.
const READERS: usize = 64;
const OF_ONE: usize = 16;
/// Maximum number of root's connections.
const ROOTS: usize = 64;

/// Socket to listen on, and the clients that may use it.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Rule that says which callers may ask.
    pub policy: Policy,
}

/// Listening socket. It is removed when this value is dropped.
#[derive(Debug)]
pub struct Server {
    socket: PathBuf,
    policy: watch::Sender<Policy>,
    task: JoinHandle<()>,
}

impl Server {
    /// Applies another policy from now on, to connected clients too.
    ///
    /// # Errors
    /// If the socket cannot be given to the group; nothing is changed then.
    pub(crate) fn set_policy(&self, policy: Policy) -> Result<(), ApiError> {
        admit(&self.socket, policy.read_gid, SOCKET_KEY)?;
        self.policy.send_replace(policy);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        // Best effort: the next daemon replaces a socket on which nobody listens.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Configuration key that names the API's socket.
const SOCKET_KEY: &str = "[api] socket";

/// Starts to listen. Must be called inside a tokio runtime.
pub fn serve(config: ServerConfig, calls: mpsc::Sender<Call>) -> Result<Server, ApiError> {
    let listener = bind(&config.socket, config.policy.read_gid, SOCKET_KEY)?;
    let (policy, in_force) = watch::channel(config.policy);
    let task = tokio::spawn(accept(listener, in_force, calls));
    Ok(Server {
        socket: config.socket,
        policy,
        task,
    })
}

/// Listens on a path, in place of a socket on which nobody listens. Root and the group may connect.
/// `key` is the configuration key that names the path.
pub(crate) fn bind(
    path: &Path,
    gid: Option<u32>,
    key: &'static str,
) -> Result<UnixListener, ApiError> {
    let failed = |what, path| failed(what, path, key);
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(failed("make the directory", dir))?;
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        let path = path.into();
        return Err(ApiError::InUse { path, key });
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("replace the stale socket", path)(error));
        }
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(failed("listen on", path))?;
    admit(path, gid, key)?;
    Ok(listener)
}

/// Lets this group and root use a socket. The API checks credentials too; the mode refuses other
/// users earlier.
pub(crate) fn admit(path: &Path, gid: Option<u32>, key: &'static str) -> Result<(), ApiError> {
    let failed = |what, path| failed(what, path, key);
    std::os::unix::fs::chown(path, None, gid.or(Some(0)))
        .map_err(failed("give the group", path))?;
    let mode = if gid.is_some() { 0o660 } else { 0o600 };
    std::fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(failed("set the mode of", path))
}

fn failed(
    what: &'static str,
    path: &Path,
    key: &'static str,
) -> impl FnOnce(io::Error) -> ApiError {
    let path = path.to_owned();
    move |source| ApiError::Socket {
        what,
        path,
        key,
        source,
    }
}

/// Permits for root's connections and for those of readers, by user.
struct Rooms {
    roots: Arc<Permits<u32>>,
    readers: Arc<Permits<u32>>,
}

impl Rooms {
    fn new() -> Rooms {
        Rooms {
            roots: Permits::new(ROOTS, ROOTS),
            readers: Permits::new(READERS, OF_ONE),
        }
    }

    fn take(&self, user: u32) -> Option<Permit<u32>> {
        let room = if user == 0 {
            &self.roots
        } else {
            &self.readers
        };
        room.take(user)
    }
}

async fn accept(
    listener: UnixListener,
    policy: watch::Receiver<Policy>,
    calls: mpsc::Sender<Call>,
) {
    let rooms = Rooms::new();
    loop {
        let (stream, caller) = match listener.accept().await.and_then(with_caller) {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "failed to accept a local client");
                // Out of descriptors: the loop must not spin until some are free.
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                continue;
            }
        };
        match rooms.take(caller.uid) {
            Some(place) => {
                let (calls, policy) = (calls.clone(), policy.clone());
                tokio::spawn(async move {
                    connection::run(stream, caller, policy, calls).await;
                    drop(place);
                });
            }
            None => connection::turn_away(stream),
        }
    }
}

fn with_caller(
    (stream, _): (UnixStream, tokio::net::unix::SocketAddr),
) -> io::Result<(UnixStream, Caller)> {
    let caller = Caller::of(&stream)?;
    Ok((stream, caller))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_reader_shuts_out_neither_other_readers_nor_root() {
        let rooms = Rooms::new();
        let take = |user, count| -> Vec<_> { (0..count).map_while(|_| rooms.take(user)).collect() };
        let first = take(1000, 100);
        assert_eq!(first.len(), OF_ONE);
        let others = [1001, 1002, 1003, 1004].map(|user| take(user, 100).len());
        assert_eq!(others, [OF_ONE; 4]);
        assert_eq!(take(0, 100).len(), ROOTS);
        drop(first);
        assert_eq!(take(1000, 1).len(), 1);
    }
}
