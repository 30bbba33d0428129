//! Socket options of live programs: the daemon duplicates a program's descriptor (pidfd_getfd),
//! and sets options on the socket. The program does not notice.
//!
//! All functions block. A plan reads the sockets and changes nothing, so that its caller can
//! record the values before it carries the plan out.

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
        set: Vec<Change>,
    },
}

/// Changes of one socket that a request needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The socket.
    pub socket: Socket,
    /// Options that have to change, in this order.
    pub changes: Vec<Change>,
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
    let (mut changes, mut own) = (Vec::new(), Vec::new());
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
            for Change { option, from, to } in set {
                let now = read(*option)?;
                if now == *to {
                    changes.push(Change {
                        option: *option,
                        from: now,
                        to: from.clone(),
                    });
                } else if now != *from {
                    own.push((*option, now));
                }
            }
        }
    }
    Ok(Plan {
        socket,
        changes,
        own,
    })
}

/// Carries out a plan. Returns the changes with the values that the kernel has now.
///
/// # Errors
/// If the socket is gone, or the kernel refuses a value. Options that were set before are put
/// back.
pub fn carry_out(plan: &Plan) -> Result<Vec<Change>, TuneError> {
    let fd = plan.socket.take()?;
    let mut done: Vec<Change> = Vec::with_capacity(plan.changes.len());
    for change in &plan.changes {
        let option = change.option;
        if let Err(source) = change.to.set(&fd, option) {
            for before in done.iter().rev() {
                if let Err(error) = before.from.set(&fd, before.option) {
                    tracing::warn!(option = %before.option, %error, "an option is not put back");
                }
            }
            let value = change.to.clone();
            return Err(TuneError::Set {
                option,
                value,
                source,
            });
        }
        let to = Value::read(&fd, option);
        let to = to.map_err(|source| TuneError::Read { option, source })?;
        done.push(Change {
            to,
            ..change.clone()
        });
    }
    Ok(done)
}
