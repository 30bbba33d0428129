//! Connections that services open.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use dysco_service::{Event, Flow, FlowId, LayerId};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::link::{HARD, Input, Link};
use super::{Session, pressure};
use crate::host::{Host, Place};
use crate::protocol::Reason;

/// Greatest number of connections that the services of a session have at a time.
const CONNECTIONS: usize = 16;

/// A connection of a service.
pub(super) struct Own {
    pub link: Link,
    /// True until the connection is open.
    connecting: bool,
}

type Key = (LayerId, FlowId);

impl Session {
    /// Applies a function to a connection, if it is there.
    pub(super) fn with_own(&mut self, key: Key, apply: impl FnOnce(&mut Own)) {
        if let Some(own) = self.own.get_mut(&key) {
            apply(own);
        }
    }

    /// Opens a connection. Its service gets the result in a later turn, so that a service which
    /// tries again at once does not block the others.
    pub(super) fn open_own(&mut self, key: Key, to: SocketAddr, host: &mut Host) {
        let opened = (self.own.len() < CONNECTIONS)
            .then(|| begin(to).ok())
            .flatten();
        let watched = opened.and_then(|socket| {
            let place = Place::Own(key.0, key.1);
            let token = host.watch(&socket, self.id, place).ok()?;
            Some(Link::new(socket, token))
        });
        match watched {
            Some(link) => {
                let connecting = true;
                self.own.insert(key, Own { link, connecting });
            }
            None => self.failed.push_back(key),
        }
    }

    /// Closes a connection.
    pub(super) fn close_own(&mut self, key: Key, host: &mut Host) {
        if let Some(own) = self.own.remove(&key) {
            host.unwatch(&own.link.socket, own.link.token);
        }
        self.failed.retain(|failed| *failed != key);
    }

    /// Tells services which of their connections have opened or failed.
    pub(super) fn advance_own(&mut self, host: &mut Host) {
        let mut opened = Vec::new();
        for (key, own) in &mut self.own {
            if own.connecting && own.link.is_writable() {
                own.connecting = false;
                match own.link.error() {
                    None => opened.push(*key),
                    Some(_) => self.failed.push_back(*key),
                }
            } else if !own.link.wants_read() && own.link.announced_error().is_some() {
                self.failed.push_back(*key);
            }
        }
        for (layer, flow) in opened {
            self.tell(layer, Event::Opened(flow));
        }
        for key in std::mem::take(&mut self.failed) {
            self.close_own(key, host);
            self.tell(key.0, Event::Failed(key.1));
        }
    }

    fn readable_own(&self) -> impl Iterator<Item = Key> {
        let room = self.links.iter().all(|link| link.load() < HARD);
        let wants = move |own: &Own| room && !own.connecting && own.link.wants_read();
        let own = self.own.iter();
        own.filter(move |(_, own)| wants(own)).map(|(key, _)| *key)
    }

    pub(super) fn can_read_own(&self) -> bool {
        self.readable_own().next().is_some()
    }

    /// Reads once from each connection.
    pub(super) fn read_own(&mut self, host: &mut Host) -> Result<(), Reason> {
        let keys: Vec<Key> = self.readable_own().collect();
        for key in keys {
            let Some(own) = self.own.get_mut(&key) else {
                continue;
            };
            let flow = Flow::Own(key.1);
            match own.link.read(&mut host.scratch) {
                Ok(Input::Bytes(bytes)) => self.tell(key.0, Event::Data { flow, bytes }),
                Ok(Input::End) => self.tell(key.0, Event::Fin(flow)),
                // Only a connection to another runner has marks.
                Ok(Input::Nothing | Input::Mark(_)) => {}
                Err(_) => self.failed.push_back(key),
            }
            self.settle(host)?;
        }
        Ok(())
    }

    /// Writes what waits for connections, and closes those that have ended both ways.
    pub(super) fn flush_own(&mut self, host: &mut Host) {
        let mut ended = Vec::new();
        for (key, own) in self.own.iter_mut().filter(|(_, own)| !own.connecting) {
            match own.link.flush() {
                Ok(_) if own.link.ended && own.link.has_sent_fin() => ended.push(*key),
                Ok(_) => {}
                Err(_) if self.failed.contains(key) => {}
                Err(_) => self.failed.push_back(*key),
            }
        }
        for key in ended {
            self.close_own(key, host);
        }
    }

    /// Tells services which of their connections have become full or not full.
    pub(super) fn tell_pressure_own(&mut self) -> bool {
        let own = self.own.iter_mut();
        let changed: Vec<(Key, bool)> = own
            .filter_map(|(key, own)| Some((*key, own.link.pressure()?)))
            .collect();
        for ((layer, flow), full) in &changed {
            self.tell(*layer, pressure(Flow::Own(*flow), *full));
        }
        !changed.is_empty()
    }
}

/// Begins to connect. The socket becomes writable when that has succeeded or failed.
fn begin(to: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    Link::set_options(&socket)?;
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}
