//! The sockets of sessions, by process and descriptor.

use std::collections::HashMap;
use std::fs;
use std::os::linux::fs::MetadataExt;

use dysco_api::SocketOwner;
use dysco_common::FlowKey;

use super::error::TuneError;
use crate::duplicate::{Duplicate, Process, is_no_socket};
use crate::elsewhere;
use crate::network::Elsewhere;
use crate::process::comm;
use crate::sys::{cookie, gone, key, protocol};
use crate::table::{self, Holder, Holders, Row};

/// `TCP_TIME_WAIT` in the kernel's list. A socket in this state has no process.
const TIME_WAIT: u8 = 6;

/// A socket of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Socket {
    /// Addresses of the session; local is this host's end.
    pub key: FlowKey,
    /// The kernel's cookie, which no other socket ever has.
    pub cookie: u64,
    /// Process that has the socket open.
    pub owner: SocketOwner,
    /// Descriptor in that process.
    fd: i32,
}

impl Socket {
    /// Returns a duplicate of the descriptor, if it still is this socket.
    pub fn take(&self) -> Result<Duplicate, TuneError> {
        let Holder { pid, fd } = self.holder();
        let taken = take(self.holder())?;
        let same = cookie(&taken).is_ok_and(|cookie| cookie == self.cookie)
            && key(&taken).is_ok_and(|key| key == self.key);
        match same {
            true => Ok(taken),
            false => {
                tracing::debug!(pid, fd, "the descriptor is another socket now");
                Err(TuneError::Gone { pid })
            }
        }
    }

    fn holder(&self) -> Holder {
        Holder {
            pid: self.owner.pid,
            fd: self.fd,
        }
    }
}

fn take(Holder { pid, fd }: Holder) -> Result<Duplicate, TuneError> {
    match gone(Process::open(pid).and_then(|process| process.socket(fd))) {
        Ok(Some(fd)) => Ok(fd),
        Ok(None) => Err(TuneError::Gone { pid }),
        Err(error) if is_no_socket(&error) => Err(TuneError::Gone { pid }),
        Err(source) => Err(TuneError::Take { pid, source }),
    }
}

/// All sockets of this host.
pub(super) struct Sockets {
    rows: HashMap<FlowKey, Row>,
    holders: Holders,
    elsewhere: HashMap<FlowKey, Elsewhere>,
    uid: Option<u32>,
}

impl Sockets {
    /// Lists the sockets. Those of `keys` that this network namespace lacks are searched in the
    /// others. With `uid`, only that user's processes are allowed.
    pub(super) fn list(keys: &[FlowKey], uid: Option<u32>) -> Result<Sockets, TuneError> {
        let system = |what| move |source| TuneError::System { what, source };
        let rows = table::rows().map_err(system("the list of TCP sockets"))?;
        let rows: HashMap<FlowKey, Row> = rows.into_iter().map(|row| (row.key, row)).collect();
        let missing: Vec<FlowKey> = keys
            .iter()
            .filter(|key| !rows.contains_key(key))
            .copied()
            .collect();
        Ok(Sockets {
            rows,
            holders: Holders::find().map_err(system("/proc"))?,
            elsewhere: elsewhere::with_sockets(&missing),
            uid,
        })
    }

    /// Returns the socket of a session.
    pub(super) fn of(&self, key: &FlowKey) -> Result<Socket, TuneError> {
        let Some(row) = self.rows.get(key) else {
            return Err(match self.elsewhere.get(key) {
                Some(process) => TuneError::Elsewhere(process.clone()),
                None => TuneError::NoSocket,
            });
        };
        let holders = self.holders.of.get(&row.inode).filter(|_| row.inode != 0);
        let Some(holders) = holders else {
            return Err(match row.state {
                TIME_WAIT => TuneError::Over,
                _ => TuneError::NoProcess,
            });
        };
        let mut error = TuneError::NoProcess;
        // Several processes may share the socket, and some of them may end meanwhile.
        for holder in holders {
            match self.held(key, *holder) {
                Ok(socket) => return Ok(socket),
                Err(other) => error = other,
            }
        }
        Err(error)
    }

    fn held(&self, of: &FlowKey, holder: Holder) -> Result<Socket, TuneError> {
        let pid = holder.pid;
        if let Some(uid) = self.uid
            && fs::metadata(format!("/proc/{pid}"))
                .map(|m| m.st_uid())
                .ok()
                != Some(uid)
        {
            return Err(TuneError::NotAllowed { pid });
        }
        let taken = take(holder)?;
        if protocol(&taken).is_ok_and(|protocol| protocol == libc::IPPROTO_MPTCP) {
            return Err(TuneError::Multipath { pid });
        }
        if !key(&taken).is_ok_and(|key| key == *of) {
            return Err(TuneError::Gone { pid });
        }
        Ok(Socket {
            key: *of,
            cookie: cookie(&taken).map_err(|source| TuneError::Take { pid, source })?,
            owner: SocketOwner {
                pid,
                name: comm(pid),
            },
            fd: holder.fd,
        })
    }
}
