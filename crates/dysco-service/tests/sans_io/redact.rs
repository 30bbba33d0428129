use bytes::Bytes;
use dysco_service::{Event, Flow, Out, Service};

/// Replaces every digit that the server sends by `x`, and counts the digits.
#[derive(Default)]
pub struct Redact {
    digits: u64,
}

impl Service for Redact {
    fn name(&self) -> &str {
        "redact"
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        match event {
            Event::Data {
                flow: Flow::Back,
                bytes,
            } => {
                let hidden = bytes.iter().map(|byte| match byte {
                    b'0'..=b'9' => b'x',
                    other => *other,
                });
                self.digits += bytes.iter().filter(|byte| byte.is_ascii_digit()).count() as u64;
                out.send(Flow::Back, hidden.collect::<Bytes>());
            }
            Event::Call(_) => out.answer(self.digits.to_string()),
            other => other.pass_on(out),
        }
    }
}
