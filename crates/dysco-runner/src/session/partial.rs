//! Services that come into a session among others, and leave others behind. The bytes that the
//! session's other services have in hand are not touched: a service begins with the next byte of each
//! direction that reaches its place.

use dysco_explain::Cause;
use dysco_service::{Event, LayerId, Service};

use super::Session;
use crate::host::Host;
use crate::protocol::{End, Reason, Report};

impl Session {
    /// Puts more services into the session, all or none: next to an end, or behind the service with
    /// this name. [`Session::settle`] carries out their first effects.
    ///
    /// # Errors
    /// If the session's services leave, or one of these cannot work in it.
    pub(crate) fn add(
        &mut self,
        next_to: End,
        behind: Option<&str>,
        services: Vec<Box<dyn Service>>,
        host: &mut Host,
    ) -> Result<(), Cause> {
        if self.taken || self.services.is_empty() {
            return Err(Cause::new("its services are leaving it").hint("ask again in a moment"));
        }
        services
            .iter()
            .try_for_each(|service| self.stack.check(&**service))?;
        let [mut listed, mut at] = match (behind, next_to) {
            (Some(name), _) => self.behind(name)?,
            (None, End::Opener) => [0, 0],
            (None, End::Other) => [self.services.len(), self.stack.len()],
        };
        self.stack.set_now(host.now());
        for service in services {
            let name = service.name().to_owned();
            let layer = self.stack.put(at, service)?;
            self.services.insert(listed, (layer, name));
            listed += 1;
            // The service may have left at once, and others with it.
            at = self.stack.place_of(layer).map_or(at, |place| place + 1);
        }
        Ok(())
    }

    /// Returns the places behind a service, among those that are listed and in the stack. Some that
    /// are listed may have left the stack.
    fn behind(&self, name: &str) -> Result<[usize; 2], Cause> {
        let missing = || Cause::new(format!("no service {name} is in the session"));
        let listed = self.services.iter().position(|(_, known)| known == name);
        let listed = listed.ok_or_else(missing)?;
        let (layer, _) = &self.services[listed];
        let at = self.stack.place_of(*layer).ok_or_else(missing)?;
        Ok([listed + 1, at + 1])
    }

    /// Asks the services with these names to leave. Halves of services that cannot leave stay, and so
    /// do the others; the report says why.
    pub(crate) fn part(&mut self, names: &[String], host: &mut Host) -> Result<(), Reason> {
        self.stack.set_now(host.now());
        let named = self.services.iter();
        let named = named.filter(|(_, name)| names.contains(name));
        let layers = named.map(|(layer, _)| *layer);
        let is_half = |layer: &LayerId| self.halves.is_some() && self.stack.is_half(*layer);
        let (halves, others): (Vec<_>, Vec<_>) = layers.partition(is_half);
        if !halves.is_empty()
            && let Err(cause) = self.part_halves(&halves)
        {
            host.report(Report::Added {
                session: self.id,
                result: Err(cause),
            });
            return Ok(());
        }
        for layer in others {
            self.stack.to(layer, Event::Leave);
        }
        self.settle(host)
    }
}
