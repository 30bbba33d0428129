//! Services of the packet plane as an operator names them: `shape=rate=20M,plane=packet`.

use std::time::Duration;

use dysco_api::{Delay, PLANE, Rate, ServiceSpec};
use dysco_common::packet_services::{Lane, MAX_DELAY, PacketServices, service};
use dysco_explain::Cause;
use dysco_runner::{Spec, delay, limits};

/// Value of the argument that names the plane.
const PACKET: &str = "packet";

/// Services of the packet plane, each at most once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::engine::services) struct Wanted {
    pub count: bool,
    pub delay: Option<Duration>,
    /// Rates of the direction to the server, and of that to the client.
    pub rates: Option<[Rate; 2]>,
}

/// Returns the services, if they are of the packet plane.
///
/// # Errors
/// If some of them are of another plane, or a service does not exist in this plane, is there twice,
/// or does not take its arguments.
pub(in crate::engine::services) fn wanted(
    services: &[ServiceSpec],
) -> Result<Option<Wanted>, Cause> {
    match services.iter().filter(|one| one.names_plane()).count() {
        0 => return Ok(None),
        count if count < services.len() => {
            let cause = Cause::new("services of the packet plane cannot be put in with others");
            return Err(cause.hint("name only services with plane=packet, or none"));
        }
        _ => {}
    }
    let mut all = Wanted::default();
    for service in services {
        all.add(service)?;
    }
    Ok(Some(all))
}

impl Wanted {
    fn add(&mut self, service: &ServiceSpec) -> Result<(), Cause> {
        let name = service.name.as_str();
        if service.argument(PLANE) != Some(PACKET) {
            return Err(Cause::new("the plane of a service is packet, or not named")
                .hint("write plane=packet, or leave it out"));
        }
        let known: &[&str] = match name {
            "count" => &[],
            "latency" => &["delay"],
            "shape" => &["rate", "up", "down"],
            _ => {
                let cause = Cause::new(format!("{name} is no service of the packet plane"));
                return Err(
                    cause.hint("choose one of count, latency, shape, or leave plane=packet out")
                );
            }
        };
        let mut rest = service.clone();
        rest.arguments.retain(|(key, _)| key != PLANE);
        if let Some((key, _)) = rest
            .arguments
            .iter()
            .find(|(key, _)| !known.contains(&&**key))
        {
            let cause = Cause::new(format!("{name} has no argument {key} in the packet plane"));
            return Err(match known {
                [] => cause.hint("give plane=packet alone"),
                known => cause.hint(format!("choose from {}", known.join(", "))),
            });
        }
        let spec: Spec = rest
            .to_string()
            .parse()
            .map_err(|error| Cause::from(&error))?;
        let twice = match name {
            "count" => std::mem::replace(&mut self.count, true),
            "latency" => self.delay.replace(kept(delay(&spec)?)?).is_some(),
            _ => {
                let limits = limits(&spec)?;
                self.rates.replace([limits.up, limits.down]).is_some()
            }
        };
        match twice {
            true => Err(Cause::new(format!("{name} is there twice")).hint("name it once")),
            false => Ok(()),
        }
    }

    /// Returns these services and others.
    ///
    /// # Errors
    /// If a service is among both.
    pub(crate) fn and(&self, others: &Wanted) -> Result<Wanted, Cause> {
        let [mine, theirs] = [self, others].map(Wanted::services);
        let twice = theirs
            .iter()
            .find(|one| mine.iter().any(|has| has.name == one.name));
        if let Some(twice) = twice {
            return Err(super::is_in(&twice.name));
        }
        Ok(Wanted {
            count: self.count | others.count,
            delay: self.delay.or(others.delay),
            rates: self.rates.or(others.rates),
        })
    }

    /// Returns these services without those that have these names.
    pub(crate) fn without(&self, names: &[String]) -> Wanted {
        let stays = |name: &str| names.iter().all(|out| out != name);
        Wanted {
            count: self.count && stays("count"),
            delay: self.delay.filter(|_| stays("latency")),
            rates: self.rates.filter(|_| stays("shape")),
        }
    }

    /// Returns the record of these services, without a session.
    pub(crate) fn record(&self, opened_here: bool) -> PacketServices {
        let bit = |has: bool, bit| if has { bit } else { 0 };
        let [up, down] = self.rates.unwrap_or([Rate(None); 2]);
        let (out, back) = if opened_here { (up, down) } else { (down, up) };
        let lane = |rate: Rate| Lane {
            rate: rate.0.unwrap_or(0),
            ..Lane::default()
        };
        PacketServices {
            services: bit(self.count, service::COUNT)
                | bit(self.rates.is_some(), service::SHAPE)
                | bit(self.delay.is_some(), service::LATENCY),
            out: Lane {
                // At most `MAX_DELAY`.
                delay_ns: self.delay.unwrap_or_default().as_nanos() as u64,
                ..lane(out)
            },
            back: lane(back),
            ..PacketServices::default()
        }
    }

    /// Returns the services of a record.
    pub(crate) fn of(record: &PacketServices, opened_here: bool) -> Wanted {
        let has = |bit| record.services & bit != 0;
        let (out, back) = (rate(record.out.rate), rate(record.back.rate));
        let rates = if opened_here {
            [out, back]
        } else {
            [back, out]
        };
        Wanted {
            count: has(service::COUNT),
            delay: has(service::LATENCY).then(|| Duration::from_nanos(record.out.delay_ns)),
            rates: has(service::SHAPE).then_some(rates),
        }
    }

    /// Returns the services in words.
    pub(crate) fn services(&self) -> Vec<ServiceSpec> {
        let spec = |name: &str, arguments: Vec<(&str, String)>| ServiceSpec {
            name: name.into(),
            arguments: arguments
                .into_iter()
                .chain([(PLANE, PACKET.into())])
                .map(|(key, value)| (key.into(), value))
                .collect(),
        };
        let mut all = Vec::new();
        if self.count {
            all.push(spec("count", Vec::new()));
        }
        if let Some(delay) = self.delay {
            // A value has no blank.
            let words = Delay(delay).to_string().replace(' ', "");
            all.push(spec("latency", vec![("delay", words)]));
        }
        match self.rates {
            Some([up, down]) if up == down => {
                all.push(spec("shape", vec![("rate", up.to_string())]));
            }
            Some([up, down]) => {
                let both = vec![("up", up.to_string()), ("down", down.to_string())];
                all.push(spec("shape", both));
            }
            None => {}
        }
        all
    }
}

/// Returns a delay that the packet plane keeps.
///
/// # Errors
/// If it is longer: the kernel would drop each packet.
fn kept(Delay(delay): Delay) -> Result<Duration, Cause> {
    let longest = Duration::from_nanos(MAX_DELAY);
    match delay <= longest {
        true => Ok(delay),
        false => {
            let why = format!(
                "a delay of the packet plane is at most {}, since fq drops packets that are more than ten seconds early",
                Delay(longest)
            );
            Err(Cause::new(why).hint("choose a shorter delay, or leave plane=packet out"))
        }
    }
}

/// Returns the rate of a record.
pub(super) fn rate(bits: u64) -> Rate {
    Rate((bits != 0).then_some(bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Result<Option<Wanted>, Cause> {
        let specs: Vec<ServiceSpec> = words.iter().map(|word| word.parse().unwrap()).collect();
        wanted(&specs)
    }

    /// The kernel would drop each packet, and the counts would say that it has passed.
    #[test]
    fn a_delay_that_the_kernel_does_not_keep_is_refused() {
        assert!(of(&["latency=delay=7500ms,plane=packet"]).is_ok());
        let refused = of(&["latency=delay=7501ms,plane=packet"]).unwrap_err();
        assert!(refused.why.contains("at most 7s 500ms"), "{refused}");
    }

    #[test]
    fn services_are_those_of_their_record() {
        for words in [
            &["count=plane=packet"][..],
            &["latency=delay=50ms,plane=packet"],
            &["latency=delay=1s500ms,plane=packet"],
            &["shape=rate=20M,plane=packet"],
            &["shape=up=5M,down=off,plane=packet"],
            &[
                "count=plane=packet",
                "latency=delay=2s,plane=packet",
                "shape=rate=1500M,plane=packet",
            ],
        ] {
            let wanted = of(words).unwrap().unwrap();
            for opened_here in [false, true] {
                let record = wanted.record(opened_here);
                assert_eq!(Wanted::of(&record, opened_here), wanted);
            }
            let printed: Vec<_> = wanted.services().iter().map(ToString::to_string).collect();
            assert_eq!(printed, words);
        }
    }

    #[test]
    fn services_come_and_leave_one_by_one() {
        let count = of(&["count=plane=packet"]).unwrap().unwrap();
        let shape = of(&["shape=rate=20M,plane=packet"]).unwrap().unwrap();
        let both = count.and(&shape).unwrap();
        assert_eq!(both.services().len(), 2);
        let twice = both.and(&shape).unwrap_err();
        assert_eq!(twice.why, "shape is in it already");
        assert_eq!(both.without(&["count".into()]), shape);
        assert_eq!(both.without(&["latency".into()]), both);
        let none = both.without(&["shape".into(), "count".into()]);
        assert_eq!(none, Wanted::default());
    }

    #[test]
    fn the_server_is_the_end_that_did_not_open_the_session() {
        let wanted = of(&["shape=up=5M,plane=packet"]).unwrap().unwrap();
        let rates = |opened_here| {
            let record = wanted.record(opened_here);
            [record.out.rate, record.back.rate]
        };
        assert_eq!(rates(true), [5_000_000, 0]);
        assert_eq!(rates(false), [0, 5_000_000]);
    }

    #[test]
    fn other_services_are_of_the_stream_plane() {
        assert_eq!(of(&["count", "shape=rate=20M"]), Ok(None));
        let mixed = of(&["count", "shape=rate=20M,plane=packet"]).unwrap_err();
        assert!(mixed.why.contains("with others"), "{mixed}");
    }

    #[test]
    fn a_wrong_service_says_what_is_wrong() {
        for (words, why) in [
            (
                &["crypt=plane=packet"][..],
                "crypt is no service of the packet plane",
            ),
            (
                &["count=plane=stream"],
                "the plane of a service is packet, or not named",
            ),
            (
                &["count=level=1,plane=packet"],
                "count has no argument level in the packet plane",
            ),
            (
                &["shape=rate=1M,burst=1,plane=packet"],
                "shape has no argument burst in the packet plane",
            ),
            (&["shape=plane=packet"], "shape needs a rate"),
            (
                &["latency=plane=packet"],
                "latency needs the argument delay",
            ),
            (
                &["count=plane=packet", "count=plane=packet"],
                "count is there twice",
            ),
        ] {
            let cause = of(words).unwrap_err();
            assert_eq!(cause.why, why);
            assert!(cause.hint.is_some());
        }
    }
}
