//! A service with its arguments, as a command line names it.

use std::fmt;
use std::str::FromStr;

use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

/// A service and its arguments: `NAME`, or `NAME=KEY=VALUE,KEY=VALUE`.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ServiceSpec {
    /// Name of the service, such as `count`: lower-case letters, digits and hyphens.
    pub name: String,
    /// Keys and values, in the order of the text. No key occurs twice. A key has the characters of
    /// a name. A value has no comma, blank or control character.
    pub arguments: Vec<(String, String)>,
}

/// Names of the services that come with Dysco, sorted.
pub const SERVICES: [&str; 8] = [
    "compress", "count", "crypt", "latency", "null", "shape", "socks", "split",
];

/// The argument that names the plane of a service.
pub const PLANE: &str = "plane";
/// Maximum length of a service with its arguments, in bytes.
const LONGEST: usize = 4096;
/// Separator of arguments.
const ARGUMENTS: char = ',';
/// Separator of a name or a key and what follows it. A value may contain it.
const IS: char = '=';

impl ServiceSpec {
    /// Returns the value of an argument.
    pub fn argument(&self, key: &str) -> Option<&str> {
        let found = self.arguments.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }

    /// Reads a service as a chain may name it, with its arguments in parentheses:
    /// `NAME(KEY=VALUE, KEY=VALUE)`. Returns `None` for a text without a parenthesis.
    pub fn from_call(s: &str) -> Option<Result<Self, Cause>> {
        let (name, rest) = s.split_once('(')?;
        let Some(rest) = rest.strip_suffix(')') else {
            let why = format!("'{s}' is no service: it does not end with ')'");
            return Some(Err(Cause::new(why).hint("write NAME(KEY=VALUE, KEY=VALUE)")));
        };
        let rest: Vec<_> = rest.split(ARGUMENTS).map(str::trim).collect();
        let rest = rest.join(&ARGUMENTS.to_string());
        Some(read(s, name, (!rest.is_empty()).then_some(&*rest)))
    }

    /// True if a plane is named for the service: eBPF programs are to run it, and no handler.
    pub fn names_plane(&self) -> bool {
        self.argument(PLANE).is_some()
    }
}

/// Returns true for a name of a service or a key of its arguments.
fn is_name(word: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !word.is_empty() && word.bytes().all(allowed)
}

fn is_value(word: &str) -> bool {
    let allowed = |c: char| c != ARGUMENTS && !c.is_whitespace() && !c.is_control();
    !word.is_empty() && word.chars().all(allowed)
}

impl FromStr for ServiceSpec {
    type Err = Cause;

    fn from_str(s: &str) -> Result<Self, Cause> {
        match s.split_once(IS) {
            Some((name, rest)) => read(s, name, Some(rest)),
            None => read(s, s, None),
        }
    }
}

/// Reads the arguments of a service. Errors quote the whole text `s`.
fn read(s: &str, name: &str, rest: Option<&str>) -> Result<ServiceSpec, Cause> {
    let hint = "write NAME or NAME=KEY=VALUE,KEY=VALUE, in lower-case letters, digits and hyphens";
    if s.len() > LONGEST {
        let why = format!("a service is longer than {LONGEST} bytes");
        return Err(Cause::new(why).hint(hint));
    }
    let bad = |why| Cause::new(format!("'{s}' is no service: {why}")).hint(hint);
    if !is_name(name) {
        return Err(bad(format!("'{name}' is no name")));
    }
    let mut spec = ServiceSpec {
        name: name.to_owned(),
        arguments: Vec::new(),
    };
    for argument in rest.into_iter().flat_map(|rest| rest.split(ARGUMENTS)) {
        let Some((key, value)) = argument.split_once(IS) else {
            return Err(bad(format!("the argument '{argument}' has no '{IS}'")));
        };
        if !is_name(key) {
            return Err(bad(format!("'{key}' is no name of an argument")));
        }
        if !is_value(value) {
            return Err(bad(format!("'{value}' is no value of '{key}'")));
        }
        if spec.argument(key).is_some() {
            return Err(bad(format!("it has '{key}' twice")));
        }
        spec.arguments.push((key.to_owned(), value.to_owned()));
    }
    Ok(spec)
}

impl fmt::Display for ServiceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (i, (key, value)) in self.arguments.iter().enumerate() {
            let before = if i == 0 { IS } else { ARGUMENTS };
            write!(f, "{before}{key}{IS}{value}")?;
        }
        Ok(())
    }
}

/// Shows no values: one may be a key.
impl fmt::Debug for ServiceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.arguments.iter().map(|(key, _)| key.as_str()).collect();
        write!(f, "ServiceSpec({}={})", self.name, keys.join(","))
    }
}

impl From<ServiceSpec> for String {
    fn from(spec: ServiceSpec) -> String {
        spec.to_string()
    }
}

impl TryFrom<String> for ServiceSpec {
    type Error = Cause;

    fn try_from(s: String) -> Result<Self, Cause> {
        s.parse()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_service_is_read_as_it_is_printed(
            name in "[a-z0-9-]{1,12}",
            arguments in prop::collection::btree_map("[a-z0-9-]{1,8}", "[!-+\\--~µ]{1,12}", 0..5),
        ) {
            let arguments: BTreeMap<String, String> = arguments;
            let spec = ServiceSpec { name, arguments: arguments.into_iter().collect() };
            let text = spec.to_string();
            prop_assert_eq!(text.parse(), Ok(spec.clone()));
            let json = serde_json::to_string(&spec).unwrap();
            prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
            prop_assert_eq!(serde_json::from_str::<ServiceSpec>(&json).unwrap(), spec);
        }

        /// A text that is accepted has one meaning, and all others get a hint.
        #[test]
        fn no_other_text_is_accepted(text in "[a-cA =,+µ-]{0,16}|\\PC{0,16}") {
            match text.parse::<ServiceSpec>() {
                Ok(spec) => prop_assert_eq!(spec.to_string(), text),
                Err(cause) => {
                    let begin = format!("'{text}' is no service: ");
                    prop_assert!(cause.why.starts_with(&begin), "{}", cause);
                    prop_assert!(cause.hint.is_some());
                }
            }
        }
    }

    #[test]
    fn arguments_are_keys_and_values() {
        let spec: ServiceSpec = "shape=rate=20M,key=YQ==".parse().unwrap();
        assert_eq!(spec.name, "shape");
        assert_eq!(spec.argument("rate"), Some("20M"));
        assert_eq!(spec.argument("key"), Some("YQ=="));
        assert_eq!(spec.argument("burst"), None);
        assert_eq!("count".parse::<ServiceSpec>().unwrap().arguments, []);
    }

    #[test]
    fn arguments_may_be_in_parentheses() {
        let of = |text| ServiceSpec::from_call(text).unwrap().map(|s| s.to_string());
        let well = |text| Ok(String::from(text));
        assert_eq!(of("shape(rate=20M)"), well("shape=rate=20M"));
        assert_eq!(of("shape(up=5M, down=off)"), well("shape=up=5M,down=off"));
        assert_eq!(of("count()"), well("count"));
        assert_eq!(of("a(b=c(d))"), well("a=b=c(d)"));
        for (bad, why) in [
            ("shape(rate=20M", "it does not end with ')'"),
            ("(rate=20M)", "'' is no name"),
            ("shape(rate)", "the argument 'rate' has no '='"),
            ("shape(rate=1,)", "the argument '' has no '='"),
            ("shape(rate=1,rate=2)", "it has 'rate' twice"),
            ("shape=a(rate=1)", "'shape=a' is no name"),
        ] {
            let cause = of(bad).unwrap_err();
            assert_eq!(cause.why, format!("'{bad}' is no service: {why}"));
        }
        assert!(ServiceSpec::from_call("count").is_none());
        assert!(ServiceSpec::from_call("2001:db8::1").is_none());
    }

    #[test]
    fn values_are_not_in_debug_output() {
        let spec: ServiceSpec = "crypt=key=secret,outward=back".parse().unwrap();
        assert_eq!(format!("{spec:?}"), "ServiceSpec(crypt=key,outward)");
    }

    #[test]
    fn a_service_has_a_greatest_length() {
        let of = |len| format!("a=b={}", "c".repeat(len - 4)).parse::<ServiceSpec>();
        assert!(of(LONGEST).is_ok());
        let cause = of(LONGEST + 1).unwrap_err();
        assert_eq!(cause.why, "a service is longer than 4096 bytes");
    }

    #[test]
    fn a_wrong_service_says_what_is_wrong() {
        for (bad, why) in [
            ("", "'' is no name"),
            ("=rate=1", "'' is no name"),
            ("Count", "'Count' is no name"),
            ("+count", "'+count' is no name"),
            ("a b", "'a b' is no name"),
            ("shape=", "the argument '' has no '='"),
            ("shape=rate", "the argument 'rate' has no '='"),
            ("shape=rate=1,", "the argument '' has no '='"),
            ("shape=Rate=1", "'Rate' is no name of an argument"),
            ("shape==1", "'' is no name of an argument"),
            ("shape=rate=", "'' is no value of 'rate'"),
            ("shape=rate=1 2", "'1 2' is no value of 'rate'"),
            ("shape=rate=1,rate=2", "it has 'rate' twice"),
        ] {
            let cause = bad.parse::<ServiceSpec>().unwrap_err();
            assert_eq!(cause.why, format!("'{bad}' is no service: {why}"));
            let json = serde_json::to_string(bad).unwrap();
            let error = serde_json::from_str::<ServiceSpec>(&json).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
