//! The parts of an error, for an operator and for programs: what failed, why, and a hint. Errors
//! stay types; each type returns its parts, so that nothing has to split a text.

mod tame;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use tame::{tame, tame_lines};

/// An error that can name its parts.
pub trait Explain {
    /// Returns the parts of the error.
    fn explain(&self) -> Explanation;
}

/// Gives error types the text of their explanation as `Display`.
#[macro_export]
macro_rules! display_explained {
    ($($error:ty),+ $(,)?) => {$(
        impl ::std::fmt::Display for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&$crate::Explain::explain(self), f)
            }
        }
    )+};
}

/// Hint of an error that the user's lack of a permission causes.
pub const AS_ROOT: &str = "run as root, where no security module or file attribute denies it";

/// Returns true if the operating system has denied an operation for lack of a permission, by the
/// error or one below it.
pub fn is_of_permission(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source()).any(|error| {
        let error = error.downcast_ref::<std::io::Error>();
        error.is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    })
}

/// A cause, with a hint if there is one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Cause {
    /// The cause.
    pub why: String,
    /// Hint: the remedy, in the imperative.
    pub hint: Option<String>,
}

/// A failed operation.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Explanation {
    /// The operation, which completes "failed to …".
    pub what: String,
    /// The cause.
    pub why: String,
    /// Hint: the remedy, in the imperative.
    pub hint: Option<String>,
}

impl Cause {
    /// Returns a cause without a hint.
    pub fn new(why: impl ToString) -> Cause {
        Cause {
            why: why.to_string(),
            hint: None,
        }
    }

    /// Adds a hint.
    pub fn hint(mut self, hint: impl ToString) -> Cause {
        self.hint = Some(hint.to_string());
        self
    }

    /// Adds a hint if there is none.
    pub fn or_hint(self, hint: impl ToString) -> Cause {
        match self.hint {
            Some(_) => self,
            None => self.hint(hint),
        }
    }

    /// Returns the cause with words before it.
    pub fn after(self, about: impl fmt::Display) -> Cause {
        Cause {
            why: format!("{about}: {}", self.why),
            hint: self.hint,
        }
    }

    /// Returns the explanation of an operation that failed for this cause.
    pub fn of(self, what: impl ToString) -> Explanation {
        Explanation {
            what: what.to_string(),
            why: self.why,
            hint: self.hint,
        }
    }
}

impl Explanation {
    /// Returns an explanation without a hint.
    pub fn new(what: impl ToString, why: impl ToString) -> Explanation {
        Cause::new(why).of(what)
    }

    /// Adds a hint.
    pub fn hint(mut self, hint: impl ToString) -> Explanation {
        self.hint = Some(hint.to_string());
        self
    }

    /// Returns the cause without the operation, where that goes without saying.
    pub fn cause(self) -> Cause {
        Cause {
            why: self.why,
            hint: self.hint,
        }
    }

    /// Returns what failed and why, without the hint.
    pub fn found(&self) -> String {
        format!("failed to {}: {}", self.what, self.why)
    }
}

/// A failed operation is the cause of another failure.
impl From<Explanation> for Cause {
    fn from(from: Explanation) -> Cause {
        Cause {
            why: from.found(),
            hint: from.hint,
        }
    }
}

impl From<&str> for Cause {
    fn from(why: &str) -> Cause {
        Cause::new(why)
    }
}

impl From<String> for Cause {
    fn from(why: String) -> Cause {
        Cause { why, hint: None }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)?;
        with(f, self.hint.as_deref())
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed to {}: {}", self.what, self.why)?;
        with(f, self.hint.as_deref())
    }
}

fn with(f: &mut fmt::Formatter<'_>, hint: Option<&str>) -> fmt::Result {
    hint.map_or(Ok(()), |hint| write!(f, "; {hint}"))
}

impl std::error::Error for Cause {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_permission_is_found_below_an_error() {
        use std::io::{Error, ErrorKind};
        #[derive(Debug)]
        struct Above(Error);
        impl fmt::Display for Above {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("it failed")
            }
        }
        impl std::error::Error for Above {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        assert!(is_of_permission(&Above(ErrorKind::PermissionDenied.into())));
        assert!(!is_of_permission(&Above(ErrorKind::NotFound.into())));
        assert!(!is_of_permission(&Cause::new("it is gone")));
    }

    #[test]
    fn an_error_is_one_line_for_logs() {
        let cause = Cause::new("it is gone; really");
        assert_eq!(cause.to_string(), "it is gone; really");
        let failed = cause.hint("make another").of("read the file");
        let line = "failed to read the file: it is gone; really; make another";
        assert_eq!(failed.to_string(), line);
        let cause = Cause::from(failed);
        assert_eq!(cause.why, "failed to read the file: it is gone; really");
        assert_eq!(cause.to_string(), line);
    }
}
