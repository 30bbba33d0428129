//! Socket options of live programs: the daemon duplicates a program's descriptor (pidfd_getfd),
//! and sets options on the socket. The program does not notice.
//!
//! All functions block. A plan reads the sockets and changes nothing, so that its caller can
//! record the values before it carries the plan out.

mod carry;
mod error;
mod find;
#[cfg(test)]
mod tests;
mod value;

use std::fs;

use dysco_api::{SocketOption, TuneOptions, TunedOption};
use dysco_common::FlowKey;
use serde::{Deserialize, Serialize};

use find::Sockets;

pub use carry::{Carried, carry_out};
pub use error::TuneError;
pub use find::Socket;
pub use value::Value;

/// File with the names of the congestion controls that the kernel has.
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// An option with another value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Change {
    /// The option.
    pub option: SocketOption,
    /// Value before.
    pub from: Value,
    /// Value afterwards.
    pub to: Value,
}

impl Change {
    /// Returns the change in the words of the command line.
    pub fn report(&self) -> TunedOption {
        TunedOption {
            option: self.option,
            from: self.from.text(self.option),
            to: self.to.text(self.option),
        }
    }
}

/// An option that requests have set, as it is recorded until it is put back.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tuned {
    /// The option.
    pub option: SocketOption,
    /// Value before the first request.
    pub from: Value,
    /// Value of the last request.
    pub to: Value,
    /// Value of the request before. The socket may still have it if the last request was
    /// interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub or: Option<Value>,
}

impl Tuned {
    /// Returns true if a request has set this value, and not the program.
    pub fn has_set(&self, value: &Value) -> bool {
        self.to == *value || self.or.as_ref() == Some(value)
    }

    /// Returns the option in the words of the command line.
    pub fn report(&self) -> TunedOption {
        // A request that would have put the value back was interrupted.
        let back = self.or.as_ref().filter(|_| self.to == self.from);
        let change = Change {
            option: self.option,
            from: self.from.clone(),
            to: back.unwrap_or(&self.to).clone(),
        };
        change.report()
    }
}

impl From<Change> for Tuned {
    fn from(Change { option, from, to }: Change) -> Tuned {
        Tuned {
            option,
            from,
            to,
            or: None,
        }
    }
}

/// Request for the socket of a session.
#[derive(Clone, Debug)]
pub enum Wish {
    /// Set these options.
    Set(TuneOptions),
    /// Put the options of the socket with this cookie back to the values before.
    Restore {
        /// Cookie of the socket.
        cookie: u64,
        /// Options that were set.
        set: Vec<Tuned>,
    },
}

/// Changes of one socket that a request needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The socket.
    pub socket: Socket,
    /// Options that have to change, in this order.
    pub changes: Vec<Change>,
    /// True if an option that cannot be changed leaves the others changed. Otherwise it undoes the
    /// changes of the others.
    pub apart: bool,
    /// Options whose values before the kernel does not set, with the nearest ones that it sets.
    pub nearest: Vec<Change>,
    /// Options that the program has set itself since they were tuned, with their values. They
    /// stay.
    pub own: Vec<(SocketOption, Value)>,
}

/// Returns an error if the kernel lacks the congestion control that a request names. A user's
/// request loads no kernel module.
pub fn check(options: &TuneOptions) -> Result<(), TuneError> {
    let Some(wanted) = &options.congestion else {
        return Ok(());
    };
    let text = fs::read_to_string(AVAILABLE).map_err(|source| TuneError::System {
        what: AVAILABLE,
        source,
    })?;
    let available: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    match available.iter().any(|name| name == wanted.name()) {
        true => Ok(()),
        false => Err(TuneError::NotAvailable {
            wanted: wanted.name().to_owned(),
            available,
        }),
    }
}

/// Plans the changes of these sessions' sockets. With `uid`, only that user's processes are
/// allowed.
///
/// # Errors
/// If the host's sockets cannot be listed.
pub fn plan(
    wishes: &[(FlowKey, Wish)],
    uid: Option<u32>,
) -> Result<Vec<Result<Plan, TuneError>>, TuneError> {
    let keys: Vec<FlowKey> = wishes.iter().map(|(key, _)| *key).collect();
    let sockets = Sockets::list(&keys, uid)?;
    let plans = wishes.iter().map(|(key, wish)| one(&sockets, key, wish));
    Ok(plans.collect())
}

fn one(sockets: &Sockets, key: &FlowKey, wish: &Wish) -> Result<Plan, TuneError> {
    let socket = sockets.of(key)?;
    let fd = socket.take()?;
    let read = |option| {
        let value = Value::read(&fd, option);
        value.map_err(|source| TuneError::Read { option, source })
    };
    let apart = matches!(wish, Wish::Restore { .. });
    let (mut changes, mut nearest, mut own) = (Vec::new(), Vec::new(), Vec::new());
    match wish {
        Wish::Set(options) => {
            for (option, to) in value::wanted(options) {
                let from = read(option)?;
                changes.extend((from != to).then_some(Change { option, from, to }));
            }
        }
        Wish::Restore { cookie, .. } if *cookie != socket.cookie => {
            return Err(TuneError::Replaced);
        }
        Wish::Restore { set, .. } => {
            // The options are in the order of the request: the timer of probes is reset while
            // they are on.
            for tuned in set {
                let (option, from) = (tuned.option, tuned.from.clone());
                let now = read(option)?;
                let to = from.settable(option);
                if now == from {
                    continue;
                }
                if now != to && !tuned.has_set(&now) {
                    own.push((option, now));
                    continue;
                }
                if now != to {
                    let (from, to) = (now, to.clone());
                    changes.push(Change { option, from, to });
                }
                if from != to {
                    nearest.push(Change { option, from, to });
                }
            }
        }
    }
    Ok(Plan {
        socket,
        changes,
        apart,
        nearest,
        own,
    })
}
