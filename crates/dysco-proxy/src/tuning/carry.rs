//! Execution of a plan on its socket.

use std::io;
use std::os::fd::OwnedFd;

use dysco_api::SocketOption;

use super::error::TuneError;
use super::value::Value;
use super::{Change, Plan};

/// Result of a plan.
#[derive(Default, Debug)]
pub struct Carried {
    /// Changes that the socket has now.
    pub changes: Vec<Change>,
    /// Options that were not changed as planned, or whose change was not undone.
    pub failed: Vec<(SocketOption, TuneError)>,
}

/// Options of a socket.
trait Options {
    fn read(&self, of: SocketOption) -> io::Result<Value>;
    fn set(&self, of: SocketOption, value: &Value) -> io::Result<()>;
}

impl Options for OwnedFd {
    fn read(&self, of: SocketOption) -> io::Result<Value> {
        Value::read(self, of)
    }

    fn set(&self, of: SocketOption, value: &Value) -> io::Result<()> {
        value.set(self, of)
    }
}

/// Carries out a plan. The result has the values that the kernel has now.
///
/// # Errors
/// If the socket is gone. Nothing was changed.
pub fn carry_out(plan: &Plan) -> Result<Carried, TuneError> {
    let socket = plan.socket.take()?;
    Ok(carry(&*socket, &plan.changes, plan.apart))
}

fn carry(socket: &impl Options, changes: &[Change], apart: bool) -> Carried {
    let mut all = Carried::default();
    for (at, change) in changes.iter().enumerate() {
        match make(socket, change) {
            Ok(made) => all.changes.push(made),
            Err(error) if apart => all.failed.push((change.option, error)),
            Err(error) => {
                // A value that was set and cannot be read is undone as well.
                let unread = matches!(error, TuneError::Read { .. });
                let made = &changes[..at + usize::from(unread)];
                all.failed.push((change.option, error));
                all.changes = undo(socket, made, &mut all.failed);
                break;
            }
        }
    }
    all
}

/// Makes a change. Returns it with the value that the kernel has now.
fn make(socket: &impl Options, change: &Change) -> Result<Change, TuneError> {
    let option = change.option;
    set(socket, option, &change.to)?;
    let to = socket.read(option);
    Ok(Change {
        to: to.map_err(|source| TuneError::Read { option, source })?,
        ..change.clone()
    })
}

/// Undoes changes in the reverse order. Returns those that the socket still has.
fn undo(
    socket: &impl Options,
    changes: &[Change],
    failed: &mut Vec<(SocketOption, TuneError)>,
) -> Vec<Change> {
    let mut left = Vec::new();
    for change in changes.iter().rev() {
        let option = change.option;
        let back = change.from.settable(option);
        let undone = set(socket, option, &back);
        let likely = if undone.is_ok() { &back } else { &change.to };
        let to = socket.read(option).unwrap_or_else(|_| likely.clone());
        failed.extend(undone.err().map(|error| (option, error)));
        if to != change.from {
            left.push(Change {
                to,
                ..change.clone()
            });
        }
    }
    left.reverse();
    left
}

fn set(socket: &impl Options, option: SocketOption, value: &Value) -> Result<(), TuneError> {
    let done = socket.set(option, value);
    done.map_err(|source| TuneError::Set {
        option,
        value: value.clone(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::HashMap;

    use super::*;

    /// A socket whose values are numbers.
    #[derive(Default)]
    struct Fake {
        values: RefCell<HashMap<SocketOption, Value>>,
        /// Values that it does not take.
        refuses: Vec<(SocketOption, u64)>,
        /// Option that cannot be read.
        hides: Option<SocketOption>,
    }

    impl Options for Fake {
        fn read(&self, of: SocketOption) -> io::Result<Value> {
            match self.hides == Some(of) {
                true => Err(io::ErrorKind::Other.into()),
                false => Ok(self.values.borrow()[&of].clone()),
            }
        }

        fn set(&self, of: SocketOption, value: &Value) -> io::Result<()> {
            let refused = |(option, n): &(_, _)| *option == of && Value::Number(*n) == *value;
            if self.refuses.iter().any(refused) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            self.values.borrow_mut().insert(of, value.clone());
            Ok(())
        }
    }

    const RATE: SocketOption = SocketOption::Rate;
    const IDLE: SocketOption = SocketOption::KeepaliveIdle;
    const NODELAY: SocketOption = SocketOption::Nodelay;

    fn change(option: SocketOption, from: u64, to: u64) -> Change {
        Change {
            option,
            from: Value::Number(from),
            to: Value::Number(to),
        }
    }

    /// Returns the result, the options that failed, and the values afterwards.
    fn run(fake: Fake, changes: &[Change], apart: bool) -> (Vec<Change>, Vec<SocketOption>, Fake) {
        let start = changes.iter().map(|c| (c.option, c.from.clone()));
        fake.values.borrow_mut().extend(start);
        let carried = carry(&fake, changes, apart);
        let failed = carried.failed.iter().map(|(option, _)| *option).collect();
        (carried.changes, failed, fake)
    }

    fn has(fake: &Fake, option: SocketOption) -> Value {
        fake.values.borrow()[&option].clone()
    }

    #[test]
    fn one_option_that_is_not_put_back_leaves_the_others_put_back() {
        let fake = Fake {
            refuses: vec![(IDLE, 7)],
            ..Fake::default()
        };
        let all = [
            change(RATE, 2, 1),
            change(IDLE, 30, 7),
            change(NODELAY, 1, 0),
        ];
        let (changes, failed, _) = run(fake, &all, true);
        assert_eq!(changes, [all[0].clone(), all[2].clone()]);
        assert_eq!(failed, [IDLE]);
    }

    #[test]
    fn a_value_that_cannot_be_read_again_is_undone_with_the_others() {
        let fake = Fake {
            hides: Some(IDLE),
            ..Fake::default()
        };
        let all = [change(RATE, 1, 2), change(IDLE, 7, 30)];
        let (changes, failed, fake) = run(fake, &all, false);
        assert_eq!((changes, failed), (vec![], vec![IDLE]));
        assert_eq!(has(&fake, RATE), Value::Number(1));
        assert_eq!(has(&fake, IDLE), Value::Number(7));
    }

    #[test]
    fn a_change_that_is_not_undone_is_reported_as_made() {
        let fake = Fake {
            refuses: vec![(NODELAY, 1), (RATE, 1)],
            ..Fake::default()
        };
        let all = [
            change(RATE, 1, 2),
            change(IDLE, 7, 30),
            change(NODELAY, 0, 1),
        ];
        let (changes, failed, fake) = run(fake, &all, false);
        assert_eq!(changes, [all[0].clone()]);
        assert_eq!(failed, [NODELAY, RATE]);
        assert_eq!(has(&fake, IDLE), Value::Number(7));
    }

    /// The kernel's default may be longer than the kernel sets.
    #[test]
    fn a_default_that_cannot_be_set_is_undone_to_the_nearest_value() {
        let fake = Fake {
            refuses: vec![(NODELAY, 1), (IDLE, 40_000)],
            ..Fake::default()
        };
        let all = [change(IDLE, 40_000, 30), change(NODELAY, 0, 1)];
        let (changes, failed, _) = run(fake, &all, false);
        assert_eq!(changes, [change(IDLE, 40_000, 32_767)]);
        assert_eq!(failed, [NODELAY]);
    }
}
