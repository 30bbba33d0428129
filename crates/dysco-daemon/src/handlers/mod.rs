//! Handler processes, which run the services of sessions, and their place in the network.
//!
//! Each handler has a network namespace of its own. Its two sockets for a session have the session's
//! own addresses, which nothing outside can reach: the data plane leads packets there and back.

mod error;
mod place;
mod process;
mod sockets;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dysco_runner::protocol::{Client, listen};

pub use error::Failed;
pub use place::Place;
pub use process::{Process, run};
pub use sockets::{Sockets, Wanted};

/// A handler that has just been started.
pub struct Started {
    /// Its namespace.
    pub place: Arc<Place>,
    /// Its process.
    pub process: Process,
    /// The connection to it.
    pub client: Client,
}

/// Starts a handler in a namespace of its own. It listens in this folder.
///
/// # Errors
/// If a step fails. Nothing is left then.
pub async fn start(folder: &Path) -> Result<Started, Failed> {
    let place = Arc::new(Place::make().await?);
    start_in(place, folder).await
}

/// Starts a handler in the namespace of one that has ended.
///
/// # Errors
/// If a step fails.
pub async fn start_in(place: Arc<Place>, folder: &Path) -> Result<Started, Failed> {
    let (client, control) = Client::pair().map_err(Failed::of("make a connection"))?;
    let path = file(folder, &place.link, SOCKET);
    // Left by a handler that has ended, whose link is gone.
    let _ = fs::remove_file(&path);
    let listener = listen(&path).map_err(Failed::of("listen for a later dyscod"))?;
    let process = place
        .start(control, listener)
        .await
        .map_err(Failed::of("start the handler process"))?;
    // For the next dyscod, which finds the namespace by it.
    fs::write(file(folder, &place.link, PID), process.pid().to_string())
        .map_err(Failed::of("write down the handler's pid"))?;
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
        match take_up(&link, folder) {
            Ok(started) => return Some(started),
            Err(error) => {
                tracing::info!(link, %error, "an earlier handler has ended");
                // Nobody can connect to it any more.
                let _ = fs::remove_file(&path);
                let _ = fs::remove_file(file(folder, &link, PID));
            }
        }
    }
    None
}

fn take_up(link: &str, folder: &Path) -> Result<Started, Failed> {
    let client = Client::connect(&file(folder, link, SOCKET));
    let client = client.map_err(Failed::of("connect to a handler"))?;
    let pid = fs::read_to_string(file(folder, link, PID));
    let pid = pid.map_err(Failed::of("read the handler's pid"))?;
    let pid = pid.parse().map_err(Failed::of("read the handler's pid"))?;
    Ok(Started {
        place: Arc::new(Place::enter(link, pid)?),
        process: Process::Other(pid),
        client,
    })
}

/// Ending of the name of the socket on which a handler listens.
const SOCKET: &str = ".sock";
/// Ending of the name of the file with its pid.
const PID: &str = ".pid";

/// Returns the path of a file about the handler behind a link.
fn file(folder: &Path, link: &str, ending: &str) -> PathBuf {
    folder.join(format!("{link}{ending}"))
}
