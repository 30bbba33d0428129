//! Process at the other end of the socket, as the kernel reports it, and the requests that it may
//! make.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use dysco_api::{Failure, FailureCode, Request};
use dysco_explain::Cause;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use super::process;

/// Process, as it was when it connected.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Process id, in the daemon's process namespace.
    pub pid: i32,
    /// Effective user.
    pub uid: u32,
    /// Effective group, then the supplementary groups.
    pub gids: Vec<u32>,
    /// Handle of the process, which no later process with this number has; `None` if there is none.
    pub process: Option<Arc<OwnedFd>>,
}

/// Rule that says which callers may read. Only root may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Group whose members may read; `None` for root alone.
    pub read_gid: Option<u32>,
}

impl Caller {
    /// Returns the process that connected this socket.
    pub fn of(socket: &impl AsFd) -> io::Result<Caller> {
        let peer = getsockopt(socket, PeerCredentials)?;
        let mut gids = vec![peer.gid()];
        gids.extend(supplementary_groups(socket.as_fd().as_raw_fd())?);
        Ok(Caller {
            pid: peer.pid(),
            uid: peer.uid(),
            gids,
            process: process::of_peer(socket, peer.pid()).map(Arc::new),
        })
    }

    /// Checks that the process still runs, as the same user. Its number is its own then.
    ///
    /// # Errors
    /// If it does not, or this process does not see it.
    pub fn is_there(&self) -> Result<(), Cause> {
        process::check(self.process.as_deref(), self.pid, self.uid)
    }

    /// Returns true if the caller is root.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Returns the user whose processes the caller may look at; `None`, for root, means all users.
    pub fn user(&self) -> Option<u32> {
        (!self.is_root()).then_some(self.uid)
    }

    /// Returns the caller in the words of a session's history.
    pub fn words(&self) -> String {
        let who = match self.user() {
            None => "root".to_owned(),
            Some(uid) => format!("user {uid}"),
        };
        format!("{who} on this host (process {})", self.pid)
    }
}

impl Policy {
    /// Returns true if this caller may make requests.
    pub fn may_read(&self, caller: &Caller) -> bool {
        caller.is_root() || self.read_gid.is_some_and(|gid| caller.gids.contains(&gid))
    }

    /// Returns the refusal, if the caller may not make this request.
    pub fn judge(&self, caller: &Caller, request: &Request) -> Result<(), Failure> {
        let refuse = |what: &str, why: String, hint: &str| {
            Err(Failure {
                code: FailureCode::NotAllowed,
                what: what.to_owned(),
                why,
                hint: hint.to_owned(),
            })
        };
        let user = caller.uid;
        if !self.may_read(caller) {
            let why = format!("user {user} is neither root nor in the configured group");
            return refuse(
                "ask dyscod",
                why,
                "run as root, or join the group of [api] group",
            );
        }
        // The engine judges which services other users may run their own programs with, and which
        // sessions are theirs.
        let own = matches!(request, Request::Run(_) | Request::CallService(_));
        if request.changes() && !own && !caller.is_root() {
            let (what, hint) = change_of(request);
            let why = format!("only root may {what}, this is user {user}");
            return refuse(what, why, hint);
        }
        Ok(())
    }
}

/// Returns the operation of a request that changes something, and the hint for a caller who may only
/// read. Some commands have no --dry-run.
fn change_of(request: &Request) -> (&'static str, &'static str) {
    const LOOK: &str = "run as root, or look with --dry-run";
    const ROOT: &str = "run as root";
    match request {
        Request::InstallState(_) => ("install a firewall's state", LOOK),
        Request::MoveState(_) => ("move a firewall's state", LOOK),
        Request::RemoveState(_) => ("remove a firewall's state", ROOT),
        Request::Adopt => ("adopt sessions", ROOT),
        Request::Delta(_) => ("report a middlebox's delta", ROOT),
        Request::Reload { .. } => ("reload the configuration", LOOK),
        Request::PolicyApply { .. } => ("put a policy in force", ROOT),
        Request::PolicyPublish { .. } => ("publish a policy", ROOT),
        Request::Service(_) => (
            "change the services of sessions",
            "run as root, or look with --dry-run at sessions of your own programs",
        ),
        _ => ("change sessions", LOOK),
    }
}

/// Maximum number of groups that are looked at: as many as a process can have.
const MAX_GROUPS: usize = 65536;

fn supplementary_groups(fd: i32) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut len = (groups.len() * size_of::<libc::gid_t>()) as libc::socklen_t;
        // SAFETY: `groups` has `len` bytes to write to, and `fd` is open as
        // its owner is borrowed by the caller.
        let done = unsafe {
            libc::getsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &mut len,
            )
        };
        let count = len as usize / size_of::<libc::gid_t>();
        if done == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // The kernel reports how much room it needs.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > MAX_GROUPS
        {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}
