//! Handler processes, which run the services of sessions, and their place in the network.
//!
//! Each handler has a network namespace of its own. Its two sockets for a session have the session's
//! own addresses, which nothing outside can reach: the data plane leads packets there and back.

mod error;
mod place;
mod process;
mod sockets;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dysco_runner::protocol::{Client, listen};

pub(crate) use error::Failed;
pub(crate) use place::Place;
pub(crate) use process::{Process, run};
pub(crate) use sockets::{Sockets, Wanted};

/// The one whose services a handler runs. Each has a handler of its own, so that what one user's
/// services do, or fail to do, touches no session of another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) enum Owner {
    /// The administrator: rules, requests, other hosts, and programs of root. The handler runs as
    /// nobody.
    #[default]
    System,
    /// A user who runs a program with services. The handler runs as that user.
    User(u32),
}

impl Owner {
    /// Returns the owner of what a user runs.
    pub(crate) const fn of(uid: u32) -> Owner {
        match uid {
            0 => Owner::System,
            _ => Owner::User(uid),
        }
    }

    /// Returns the user of the handler.
    pub(crate) const fn uid(self) -> u32 {
        match self {
            Owner::System => process::NOBODY,
            Owner::User(uid) => uid,
        }
    }
}

/// A handler that has just been started.
pub(crate) struct Started {
    /// Its namespace.
    pub place: Arc<Place>,
    /// Its process.
    pub process: Process,
    /// The connection to it.
    pub client: Client,
}

/// Starts the handler of an owner in a namespace of its own. It listens in this folder.
///
/// # Errors
/// If a step fails. Nothing is left then.
pub(crate) async fn start(folder: &Path, owner: Owner) -> Result<Started, Failed> {
    let place = Arc::new(Place::make(owner).await?);
    start_in(place, folder).await
}

/// Starts a handler in the namespace of one that has ended.
///
/// # Errors
/// If a step fails.
pub(crate) async fn start_in(place: Arc<Place>, folder: &Path) -> Result<Started, Failed> {
    let (client, control) = Client::pair().map_err(Failed::of("make a connection"))?;
    let path = file(folder, &place.link, SOCKET);
    // Left by a handler that has ended, whose link is gone.
    let _ = fs::remove_file(&path);
    let listener = listen(&path).map_err(Failed::of("listen for a later dyscod"))?;
    let process = place
        .start(control, listener)
        .await
        .map_err(Failed::of("start the handler process"))?;
    // For the next dyscod, which finds the owner and the namespace by them.
    let user = file(folder, &place.link, USER);
    let noted = match place.owner {
        Owner::User(uid) => note(&user, uid),
        Owner::System => gone(fs::remove_file(user)),
    };
    noted
        .and_then(|()| note(&file(folder, &place.link, PID), process.pid()))
        .map_err(Failed::of("write down the handler's pid"))?;
    Ok(Started {
        place,
        process,
        client,
    })
}

/// Writes a number to a file of dyscod alone, as all of its state is.
fn note(path: &Path, number: u32) -> io::Result<()> {
    gone(fs::remove_file(path))?;
    let mut file = OpenOptions::new();
    let file = file.write(true).create_new(true).mode(0o600).open(path);
    file?.write_all(number.to_string().as_bytes())
}

/// True of a file that is not there any more.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Finds the handlers that an earlier `dyscod` started, and that still run.
pub(crate) fn find(folder: &Path) -> Vec<Started> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let links = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let link = name.strip_suffix(SOCKET)?;
        link.starts_with(place::LINK).then(|| link.to_owned())
    });
    let taken = links.filter_map(|link| match take_up(&link, folder) {
        Ok(started) => Some(started),
        Err(error) => {
            tracing::info!(link, %error, "an earlier handler has ended");
            forget(folder, &link);
            None
        }
    });
    taken.collect()
}

/// Removes the files about a handler that has ended: nobody can connect to it any more.
pub(crate) fn forget(folder: &Path, link: &str) {
    for ending in [SOCKET, PID, USER] {
        if let Err(error) = gone(fs::remove_file(file(folder, link, ending))) {
            tracing::warn!(link, %error, "cannot remove a file about a handler");
        }
    }
}

fn take_up(link: &str, folder: &Path) -> Result<Started, Failed> {
    let client = Client::connect(&file(folder, link, SOCKET));
    let client = client.map_err(Failed::of("connect to a handler"))?;
    let pid = fs::read_to_string(file(folder, link, PID));
    let pid = pid.map_err(Failed::of("read the handler's pid"))?;
    let pid = pid.parse().map_err(Failed::of("read the handler's pid"))?;
    let owner = match fs::read_to_string(file(folder, link, USER)) {
        Ok(uid) => Owner::of(uid.parse().map_err(Failed::of("read the handler's user"))?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Owner::System,
        Err(error) => return Err(Failed::of("read the handler's user")(error)),
    };
    let process = Process::other(pid).map_err(Failed::of("find the handler's process"))?;
    Ok(Started {
        place: Arc::new(Place::enter(link, pid, owner)?),
        process,
        client,
    })
}

/// Ending of the name of the socket on which a handler listens.
const SOCKET: &str = ".sock";
/// Ending of the name of the file with its pid.
const PID: &str = ".pid";
/// Ending of the name of the file with its owner's user id, if that is a user.
const USER: &str = ".user";

/// Returns the path of a file about the handler behind a link.
fn file(folder: &Path, link: &str, ending: &str) -> PathBuf {
    folder.join(format!("{link}{ending}"))
}
