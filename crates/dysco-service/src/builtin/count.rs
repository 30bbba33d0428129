//! `count`: counts bytes.

use dysco_explain::Cause;

use super::no_operation;
use crate::{Event, Flow, Needs, Out, Service, Session};

/// Counts the bytes of each direction. A call returns the counts as JSON.
#[derive(Debug, Default)]
pub struct Count {
    forward: u64,
    back: u64,
}

impl Service for Count {
    fn name(&self) -> &'static str {
        "count"
    }

    fn needs(&self, _: &Session) -> Result<Needs, Cause> {
        Ok(Needs::of_observer())
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        match &event {
            Event::Data { flow, bytes } => match flow {
                Flow::Forward => self.forward += bytes.len() as u64,
                Flow::Back => self.back += bytes.len() as u64,
                Flow::Own(_) => {}
            },
            Event::Call(question) if question[..] == *b"read" => {
                let Count { forward, back } = self;
                out.answer(format!("{{\"forward\":{forward},\"back\":{back}}}"));
            }
            Event::Call(question) => out.refuse(no_operation("count", question, "read")),
            _ => {}
        }
        event.pass_on(out);
    }
}
