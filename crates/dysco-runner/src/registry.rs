//! The services that a runner knows, by name.

use dysco_explain::Cause;
use dysco_service::builtin::{Compress, Count, Crypt, Key, Null, Socks};
use dysco_service::{Ends, Flow, Service, Session};
use ring::hkdf::{HKDF_SHA256, Salt};

use crate::Spec;
use crate::protocol::{End, Pair};

/// The services that a runner knows.
#[derive(Clone)]
pub struct Registry {
    kinds: Vec<Kind>,
}

/// A kind of service.
#[derive(Clone, Copy)]
pub struct Kind {
    /// Name, as on the command line.
    pub name: &'static str,
    /// Names of its arguments, for messages.
    pub arguments: &'static [&'static str],
    /// Makes a service from its arguments, and from what the two hosts have in common if it is at
    /// both ends.
    pub make: Make,
}

/// Makes a service from its arguments.
pub type Make = fn(&Spec, Option<&Half>) -> Result<Box<dyn Service>, Cause>;

/// One half of services that are at both ends.
#[derive(Clone, Copy)]
pub struct Half {
    /// Direction towards the other host.
    pub outward: Flow,
    /// Secret of the two hosts.
    pub secret: Key,
}

/// Half of a service that is made for a check, and of no use.
const CHECKED: Half = Half {
    outward: Flow::Forward,
    secret: [0; 32],
};

impl Half {
    /// Returns the half of this host.
    pub fn of(pair: &Pair) -> Half {
        Half {
            outward: match pair.beyond {
                End::Opener => Flow::Back,
                End::Other => Flow::Forward,
            },
            secret: pair.secret,
        }
    }
}

impl Registry {
    /// Returns the services that come with Dysco.
    pub fn builtin() -> Registry {
        let kind = |name, arguments, make| Kind {
            name,
            arguments,
            make,
        };
        Registry {
            kinds: vec![
                kind("compress", &["level"], compress),
                kind("count", &[], |_, _| Ok(Box::new(Count::default()))),
                kind("crypt", &[], crypt),
                kind("null", &[], |_, _| Ok(Box::new(Null))),
                kind("socks", &["target"], socks),
            ],
        }
    }

    /// Adds a kind of service.
    pub fn with(mut self, kind: Kind) -> Registry {
        self.kinds.push(kind);
        self
    }

    /// Makes a service.
    ///
    /// # Errors
    /// If no service has this name, or it does not take these arguments.
    pub fn make(&self, spec: &Spec, half: Option<&Half>) -> Result<Box<dyn Service>, Cause> {
        let Some(kind) = self.kinds.iter().find(|kind| kind.name == spec.name()) else {
            let names: Vec<_> = self.kinds.iter().map(|kind| kind.name).collect();
            return Err(Cause::new(format!("no service is named {}", spec.name()))
                .hint(format!("choose one of {}", names.join(", "))));
        };
        let unknown = spec.keys().find(|key| !kind.arguments.contains(key));
        if let Some(unknown) = unknown {
            let cause = Cause::new(format!("{} has no argument {unknown}", kind.name));
            return Err(match kind.arguments {
                [] => cause.hint("give no arguments"),
                known => cause.hint(format!("choose from {}", known.join(", "))),
            });
        }
        (kind.make)(spec, half)
    }

    /// Checks that a service has this name, and takes these arguments.
    ///
    /// # Errors
    /// The reason for which a runner would refuse it.
    pub fn known(&self, spec: &Spec) -> Result<(), Cause> {
        self.make(spec, Some(&CHECKED)).map(drop)
    }

    /// Checks that services can be made, and work in a session. Returns the ends at which they
    /// have to be.
    ///
    /// # Errors
    /// The reason for which a runner would refuse them.
    pub fn check(&self, services: &[Spec], session: &Session) -> Result<Ends, Cause> {
        let mut ends = Ends::One;
        let mut stack = dysco_service::Stack::new(*session);
        for (at, spec) in services.iter().enumerate() {
            let service = self.make(spec, Some(&CHECKED))?;
            if service.needs(session)?.ends == Ends::Pair {
                ends = Ends::Pair;
            }
            stack.put(at, service)?;
        }
        Ok(ends)
    }
}

/// Makes `crypt` from the secret of both hosts, from which each direction gets a key of its own.
fn crypt(_: &Spec, half: Option<&Half>) -> Result<Box<dyn Service>, Cause> {
    let Half { outward, secret } = half.ok_or_else(|| alone("crypt"))?;
    let [forward, back] = [derive(secret, b"forward")?, derive(secret, b"back")?];
    let keys = match outward {
        Flow::Back => [back, forward],
        _ => [forward, back],
    };
    Ok(Box::new(Crypt::new(*outward, keys)?))
}

/// Makes `compress`.
fn compress(spec: &Spec, half: Option<&Half>) -> Result<Box<dyn Service>, Cause> {
    let half = half.ok_or_else(|| alone("compress"))?;
    let level = match spec.argument("level") {
        None => Compress::LEVEL,
        Some(text) => text
            .parse()
            .ok()
            .filter(|level| (1..=19).contains(level))
            .ok_or_else(|| {
                Cause::new(format!("{text} is no level of compression"))
                    .hint("give a level from 1 (fast) to 19 (small)")
            })?,
    };
    Ok(Box::new(Compress::new(half.outward, level)?))
}

fn alone(name: &str) -> Cause {
    Cause::new(format!("{name} needs dyscod on the hosts of both ends"))
}

/// Derives the key of a direction. The same key for both would use each nonce twice.
fn derive(secret: &Key, direction: &[u8]) -> Result<Key, Cause> {
    let mut key = [0; 32];
    let salt = Salt::new(HKDF_SHA256, b"dysco crypt");
    let filled = salt
        .extract(secret)
        .expand(&[direction], HKDF_SHA256)
        .and_then(|derived| derived.fill(&mut key));
    filled.map_err(|_| Cause::new("the key of a direction cannot be derived"))?;
    Ok(key)
}

/// Makes `socks`.
fn socks(spec: &Spec, _: Option<&Half>) -> Result<Box<dyn Service>, Cause> {
    let hint = "give the address behind the proxy: target=192.0.2.1:443";
    let target = required(spec, "target", hint)?;
    let target = target
        .parse()
        .map_err(|_| Cause::new(format!("{target} is no address with a port")).hint(hint))?;
    Ok(Box::new(Socks::new(target)))
}

fn required<'a>(spec: &'a Spec, key: &str, hint: &str) -> Result<&'a str, Cause> {
    let missing = || Cause::new(format!("{} needs the argument {key}", spec.name())).hint(hint);
    spec.argument(key).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        let spec: Spec = text.parse().unwrap();
        let refused = Registry::builtin().make(&spec, None).err().unwrap();
        refused.to_string()
    }

    #[test]
    fn what_exists_is_named() {
        assert_eq!(
            refusal("gzip"),
            "no service is named gzip; choose one of compress, count, crypt, null, socks"
        );
        assert_eq!(
            refusal("socks=via=x"),
            "socks has no argument via; choose from target"
        );
        assert_eq!(
            refusal("count=a=b"),
            "count has no argument a; give no arguments"
        );
        assert!(refusal("crypt").starts_with("crypt needs dyscod on the hosts of both ends"));
        assert!(refusal("crypt=key=00").starts_with("crypt has no argument key"));
        assert!(refusal("socks=target=x").starts_with("x is no address with a port"));
    }

    #[test]
    fn a_check_says_what_a_runner_would() {
        let mut session = Session {
            opener: ([192, 0, 2, 1], 1).into(),
            other: ([192, 0, 2, 2], 2).into(),
            both_ends: false,
        };
        let services = ["count".parse().unwrap(), "crypt".parse().unwrap()];
        let registry = Registry::builtin();
        let refused = registry.check(&services, &session).unwrap_err();
        assert!(refused.why.contains("crypt needs both"));
        session.both_ends = true;
        assert_eq!(registry.check(&services, &session), Ok(Ends::Pair));
        assert_eq!(registry.check(&services[..1], &session), Ok(Ends::One));
    }
}
