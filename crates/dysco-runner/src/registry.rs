//! The services that a runner knows, by name.

use dysco_api::{Delay, OFF, Rate};
use dysco_explain::Cause;
use dysco_service::builtin::{
    Compress, Count, Crypt, Key, Latency, Limits, Null, Shape, Socks, Split,
};
use dysco_service::{Ends, Flow, Needs, Service, Session};
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
    /// Makes a service from its arguments, and from the half if it is at both ends.
    pub make: Make,
}

/// Makes a service from its arguments.
pub(crate) type Make = fn(&Spec, Option<&Half>) -> Result<Box<dyn Service>, Cause>;

/// One half of services that are at both ends.
#[derive(Clone, Copy)]
pub struct Half {
    /// Direction towards the other host.
    pub outward: Flow,
    /// Secret of the two hosts.
    pub secret: Key,
}

/// Bytes that `shape` may let pass at once.
const BURSTS: std::ops::RangeInclusive<u64> = 1..=16 << 20;

/// Half for services that are made only for a check.
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
                kind("latency", &["delay"], latency),
                kind("null", &[], |_, _| Ok(Box::new(Null))),
                kind("shape", &["rate", "up", "down", "burst"], shape),
                kind("socks", &["target"], socks),
                kind("split", &["congestion"], split),
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

    /// Checks that services can be made, and work in a session. Returns what they need together.
    ///
    /// # Errors
    /// The reason for which a runner would refuse them.
    pub fn check(&self, services: &[Spec], session: &Session) -> Result<Needs, Cause> {
        let mut all = Needs::of_observer();
        let mut changes = None;
        let mut stack = dysco_service::Stack::new(*session);
        for (at, spec) in services.iter().enumerate() {
            let service = self.make(spec, Some(&CHECKED))?;
            let needs = service.needs(session)?;
            all.keeps_bytes &= needs.keeps_bytes;
            all.from_start |= needs.from_start;
            if needs.ends == Ends::One && !needs.keeps_bytes {
                changes = Some(spec.name().to_owned());
            }
            let Needs {
                ends, congestion, ..
            } = needs;
            if ends == Ends::Pair {
                all.ends = ends;
                // Both would have the same keys, and the hosts identify services by name.
                if services[..at]
                    .iter()
                    .any(|other| other.name() == spec.name())
                {
                    let name = spec.name();
                    return Err(Cause::new(format!("{name} is asked for twice"))
                        .hint(format!("name {name} once")));
                }
            }
            if let (Some(one), Some(other)) = (&all.congestion, &congestion) {
                return Err(Cause::new(format!(
                    "the services ask for two congestion controls: {one} and {other}"
                ))
                .hint("put split in once"));
            }
            all.congestion = all.congestion.or(congestion);
            stack.put(at, service)?;
        }
        match changes {
            // With services at both ends, the stream beyond both hosts must stay unchanged.
            Some(name) if all.ends == Ends::Pair => Err(Cause::new(format!(
                "{name} changes the stream, and cannot be beside services at both ends"
            ))
            .hint(format!("leave {name} out"))),
            _ => Ok(all),
        }
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

/// Reads the delay of `latency`.
///
/// # Errors
/// If there is none, or it is no delay.
pub fn delay(spec: &Spec) -> Result<Delay, Cause> {
    required(spec, "delay", "give a time: delay=50ms")?.parse()
}

/// Makes `latency`.
fn latency(spec: &Spec, _: Option<&Half>) -> Result<Box<dyn Service>, Cause> {
    Ok(Box::new(Latency::new(delay(spec)?.0)))
}

/// Reads the limits of `shape`.
///
/// # Errors
/// If there is none, or it is no limit.
pub fn limits(spec: &Spec) -> Result<Limits, Cause> {
    let [rate, up, down] = ["rate", "up", "down"].map(|key| spec.argument(key));
    if [rate, up, down].iter().all(Option::is_none) {
        return Err(Cause::new("shape needs a rate")
            .hint("give rate=20M for both directions, or up=5M or down=20M for one"));
    }
    let of = |own: Option<&str>| own.or(rate).unwrap_or(OFF).parse::<Rate>();
    let burst = spec.argument("burst").map(|text| {
        let bytes = text.parse().ok().filter(|bytes| BURSTS.contains(bytes));
        bytes.ok_or_else(|| {
            Cause::new(format!("'{text}' is no number of bytes of 1 to 16777216"))
                .hint("give the bytes that pass at once after a pause: burst=65536")
        })
    });
    Ok(Limits {
        up: of(up)?,
        down: of(down)?,
        burst: burst.transpose()?,
    })
}

/// Makes `shape`.
fn shape(spec: &Spec, _: Option<&Half>) -> Result<Box<dyn Service>, Cause> {
    Ok(Box::new(Shape::new(&limits(spec)?)))
}

/// Makes `split`.
fn split(spec: &Spec, _: Option<&Half>) -> Result<Box<dyn Service>, Cause> {
    let name = required(spec, "congestion", "name one: congestion=bbr")?;
    Ok(Box::new(Split::new(name.parse()?)))
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
    fn the_configuration_knows_the_same_services() {
        let kinds = Registry::builtin().kinds;
        let names: Vec<_> = kinds.iter().map(|kind| kind.name).collect();
        assert_eq!(names, dysco_api::SERVICES);
    }

    #[test]
    fn what_exists_is_named() {
        assert_eq!(
            refusal("gzip"),
            "no service is named gzip; choose one of compress, count, crypt, latency, null, shape, \
             socks, split"
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
        let ends = |services| registry.check(services, &session).map(|needs| needs.ends);
        assert_eq!(ends(&services), Ok(Ends::Pair));
        assert_eq!(ends(&services[..1]), Ok(Ends::One));
        let twice = [services[1].clone(), services[1].clone()];
        let refused = registry.check(&twice, &session).unwrap_err();
        assert_eq!(refused.why, "crypt is asked for twice");
    }

    #[test]
    fn one_end_alone_changes_no_stream_that_both_ends_change() {
        let session = Session {
            opener: ([192, 0, 2, 1], 1).into(),
            other: ([192, 0, 2, 2], 2).into(),
            both_ends: true,
        };
        let check = |words: &[&str]| {
            let services: Vec<Spec> = words.iter().map(|word| word.parse().unwrap()).collect();
            Registry::builtin().check(&services, &session).map(drop)
        };
        let socks = "socks=target=192.0.2.3:1";
        assert_eq!(check(&[socks, "count"]), Ok(()));
        assert_eq!(check(&["count", "compress", "crypt"]), Ok(()));
        for words in [[socks, "crypt"], ["compress", socks]] {
            let cause = check(&words).unwrap_err();
            assert!(cause.why.starts_with("socks changes the stream"), "{cause}");
        }
    }

    #[test]
    fn one_congestion_control_is_asked_for() {
        let session = Session {
            opener: ([192, 0, 2, 1], 1).into(),
            other: ([192, 0, 2, 2], 2).into(),
            both_ends: false,
        };
        let registry = Registry::builtin();
        let check = |words: &[&str]| {
            let services: Vec<Spec> = words.iter().map(|word| word.parse().unwrap()).collect();
            registry.check(&services, &session)
        };
        let needs = check(&["count", "split=congestion=bbr"]).unwrap();
        assert_eq!(needs.congestion.as_deref(), Some("bbr"));
        assert_eq!(check(&["count"]).unwrap().congestion, None);
        let twice = check(&["split=congestion=bbr", "split=congestion=reno"]);
        assert!(twice.unwrap_err().why.contains("bbr and reno"));
    }

    #[test]
    fn rates_times_and_names_are_checked() {
        for good in [
            "shape=rate=20M",
            "shape=up=1.5G,burst=3000",
            "shape=rate=64k,down=off",
            "latency=delay=50ms",
            "split=congestion=bbr",
        ] {
            let spec: Spec = good.parse().unwrap();
            assert!(Registry::builtin().make(&spec, None).is_ok(), "{good}");
        }
        assert!(refusal("shape").starts_with("shape needs a rate"));
        assert!(refusal("shape=rate=fast").starts_with("'fast' is no rate"));
        assert!(refusal("shape=rate=1M,burst=0").starts_with("'0' is no number"));
        assert!(refusal("latency").starts_with("latency needs the argument delay"));
        assert!(refusal("latency=delay=off").starts_with("'off' is no time"));
        assert!(refusal("split=congestion=a/b").starts_with("'a/b' names no"));
    }
}
