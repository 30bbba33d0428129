//! The parts of an error, for an operator and for programs: what failed, why, and a hint. Errors
//! stay types; each type returns its parts, so that nothing has to split a text.

use std::fmt;

use serde::{Deserialize, Serialize};

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
