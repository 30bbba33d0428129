//! Handler processes, which run the services of sessions, and their place in the network.
//!
//! Each handler has a network namespace of its own. Its two sockets for a session have the session's
//! own addresses, which nothing outside can reach: the data plane leads packets there and back.

mod place;
mod process;
mod sockets;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use dysco_explain::{Explain, Explanation, display_explained};
use dysco_runner::protocol::{Client, listen};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

pub use place::Place;
pub use process::{Process, run};
pub use sockets::{Sockets, Wanted};

/// A step that failed.
#[derive(Debug, thiserror::Error)]
pub struct Failed {
    /// The step.
    what: &'static str,
    /// The error.
    source: io::Error,
}

display_explained!(Failed);

impl Failed {
    /// Returns a function that adds the step to an error.
    fn of<E>(what: &'static str) -> impl FnOnce(E) -> Failed
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        move |source| Failed {
            what,
            source: io::Error::other(source),
        }
    }
}

impl Explain for Failed {
    fn explain(&self) -> Explanation {
        Explanation::new(self.what, &self.source)
    }
}

/// A handler that has just been started.
pub struct Started {
    /// Its namespace.
    pub place: Place,
    /// Its process.
    pub process: Process,
    /// The connection to it.
    pub client: Client,
}

/// Starts a handler, which listens in this folder.
///
/// # Errors
/// If a step fails. Nothing is left then.
pub async fn start(folder: &Path) -> Result<Started, Failed> {
    let place = Place::make().await?;
    let (client, control) = Client::pair().map_err(Failed::of("make a connection"))?;
    let path = socket(folder, &place.link);
    // Left by a handler that has ended, whose link is gone.
    let _ = fs::remove_file(&path);
    let listener = listen(&path).map_err(Failed::of("listen for a later dyscod"))?;
    let process = place
        .start(control, listener)
        .await
        .map_err(Failed::of("start the handler process"))?;
    Ok(Started {
        place,
        process,
        client,
    })
}

/// Finds a handler that an earlier `dyscod` started, and that still runs.
pub fn find(folder: &Path) -> Option<Started> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    let sockets = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let link = name.strip_suffix(SOCKET)?.to_owned();
        link.starts_with(place::LINK).then(|| (link, entry.path()))
    });
    for (link, path) in sockets {
        match take_up(&link, &path) {
            Ok(started) => return Some(started),
            Err(error) => {
                tracing::info!(link, %error, "an earlier handler has ended");
                // Nobody can connect to it any more.
                let _ = fs::remove_file(&path);
            }
        }
    }
    None
}

fn take_up(link: &str, path: &Path) -> Result<Started, Failed> {
    let client = Client::connect(path).map_err(Failed::of("connect to a handler"))?;
    let peer = getsockopt(&client, PeerCredentials).map_err(Failed::of("find its process"))?;
    let pid = peer.pid().cast_unsigned();
    Ok(Started {
        place: Place::enter(link, pid)?,
        process: Process::Other(pid),
        client,
    })
}

/// Ending of the names of the sockets.
const SOCKET: &str = ".sock";

fn socket(folder: &Path, link: &str) -> PathBuf {
    folder.join(format!("{link}{SOCKET}"))
}
