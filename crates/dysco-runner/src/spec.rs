//! Services as an operator writes them: `crypt`, `shape=rate=20M`.

use std::fmt;
use std::str::FromStr;

use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

/// Greatest number of bytes of a service with its arguments.
const LONGEST: usize = 4096;

/// A service with its arguments: `name[=key=value[,key=value]…]`.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Spec {
    name: String,
    arguments: Vec<(String, String)>,
}

/// A text that names no service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SpecError {
    /// The text is longer than 4,096 bytes.
    Long,
    /// The name is not made of `a-z`, `0-9` and `-`.
    Name(String),
    /// An argument is not of the form `key=value`.
    Argument(String),
    /// An argument occurs twice.
    Twice(String),
}

impl Spec {
    /// Name of the service.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the value of an argument.
    pub fn argument(&self, key: &str) -> Option<&str> {
        let found = self.arguments.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }

    /// Names of the arguments that are given.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.arguments.iter().map(|(key, _)| key.as_str())
    }
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        if text.len() > LONGEST {
            return Err(SpecError::Long);
        }
        let (name, rest) = match text.split_once('=') {
            Some((name, rest)) => (name, Some(rest)),
            None => (text, None),
        };
        if !is_word(name) {
            return Err(SpecError::Name(name.into()));
        }
        let mut arguments: Vec<(String, String)> = Vec::new();
        for part in rest.iter().flat_map(|rest| rest.split(',')) {
            let pair = part.split_once('=');
            let Some((key, value)) = pair.filter(|(key, value)| is_word(key) && is_value(value))
            else {
                return Err(SpecError::Argument(part.into()));
            };
            if arguments.iter().any(|(known, _)| known == key) {
                return Err(SpecError::Twice(key.into()));
            }
            arguments.push((key.into(), value.into()));
        }
        Ok(Spec {
            name: name.into(),
            arguments,
        })
    }
}

fn is_word(text: &str) -> bool {
    let plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    !text.is_empty() && text.bytes().all(plain)
}

fn is_value(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_control() || c.is_whitespace())
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (index, (key, value)) in self.arguments.iter().enumerate() {
            let separator = if index == 0 { '=' } else { ',' };
            write!(f, "{separator}{key}={value}")?;
        }
        Ok(())
    }
}

/// Shows no values: a value may be a key.
impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.keys().collect();
        write!(f, "Spec({}={})", self.name, keys.join(","))
    }
}

impl TryFrom<String> for Spec {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Spec, SpecError> {
        text.parse()
    }
}

impl From<Spec> for String {
    fn from(spec: Spec) -> String {
        spec.to_string()
    }
}

impl From<&SpecError> for Cause {
    fn from(error: &SpecError) -> Cause {
        match error {
            SpecError::Long => Cause::new(format!("a service is longer than {LONGEST} bytes")),
            SpecError::Name(name) => Cause::new(format!("“{name}” is no name of a service"))
                .hint("write name=key=value,key=value"),
            SpecError::Argument(part) => Cause::new(format!("“{part}” is no argument"))
                .hint("write each argument as key=value, without spaces"),
            SpecError::Twice(key) => Cause::new(format!("the argument {key} is given twice")),
        }
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Cause::from(self).fmt(f)
    }
}

impl std::error::Error for SpecError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_displayed_is_parsed_back(
            name in "[a-z0-9-]{1,12}",
            arguments in prop::collection::btree_map("[a-z0-9-]{1,8}", "[!-+\\--~ä]{1,20}", 0..5),
        ) {
            let spec = Spec { name, arguments: arguments.into_iter().collect() };
            prop_assert_eq!(spec.to_string().parse(), Ok(spec.clone()));
            let json = serde_json::to_string(&spec).unwrap();
            prop_assert_eq!(serde_json::from_str::<Spec>(&json).unwrap(), spec);
        }

        #[test]
        fn what_is_parsed_is_displayed_as_it_was(text in "[a-c=, \\n]{0,12}") {
            if let Ok(spec) = text.parse::<Spec>() {
                prop_assert_eq!(spec.to_string(), text);
            }
        }
    }

    #[test]
    fn a_wrong_text_is_refused_for_what_is_wrong() {
        let parse = |text: &str| text.parse::<Spec>().unwrap_err();
        assert_eq!(parse(""), SpecError::Name(String::new()));
        assert_eq!(parse("Crypt"), SpecError::Name("Crypt".into()));
        assert_eq!(parse("shape=20M"), SpecError::Argument("20M".into()));
        assert_eq!(parse("shape=rate=1,"), SpecError::Argument(String::new()));
        assert_eq!(
            parse("shape=rate=1,rate=2"),
            SpecError::Twice("rate".into())
        );
        assert_eq!(parse(&"a".repeat(5000)), SpecError::Long);
    }

    #[test]
    fn values_are_not_in_debug_output() {
        let spec: Spec = "crypt=key=secret".parse().unwrap();
        assert_eq!(format!("{spec:?}"), "Spec(crypt=key)");
    }
}
