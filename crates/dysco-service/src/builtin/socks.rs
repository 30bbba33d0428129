//! `socks`: opens the session through a SOCKS5 proxy (RFC 1928).

use std::net::SocketAddr;

use bytes::{Buf, BufMut, BytesMut};

use dysco_explain::Cause;

use crate::{Event, Flow, Needs, Out, Service, Session};

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const CONNECT: u8 = 1;

/// Asks the proxy, to which the session leads, for a connection to the real destination. The
/// service leaves after the handshake, and costs nothing from then on.
#[derive(Debug)]
pub struct Socks {
    to: SocketAddr,
    step: Step,
    received: BytesMut,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Method,
    Reply,
}

impl Socks {
    /// Creates a service that asks for a connection to this address.
    pub fn new(to: SocketAddr) -> Socks {
        Socks {
            to,
            step: Step::Method,
            received: BytesMut::new(),
        }
    }

    /// The request, RFC 1928 section 4.
    fn request(&self) -> BytesMut {
        let mut request = BytesMut::from(&[VERSION, CONNECT, 0][..]);
        match self.to {
            SocketAddr::V4(to) => {
                request.put_u8(1);
                request.put_slice(&to.ip().octets());
            }
            SocketAddr::V6(to) => {
                request.put_u8(4);
                request.put_slice(&to.ip().octets());
            }
        }
        request.put_u16(self.to.port());
        request
    }

    /// Number of bytes of the reply, RFC 1928 section 6, once its length is known.
    fn reply_len(&self) -> Option<usize> {
        let address = match *self.received.get(3)? {
            1 => 4,
            3 => 1 + usize::from(*self.received.get(4)?),
            _ => 16,
        };
        Some(4 + address + 2)
    }

    fn answered(&mut self, out: &mut Out) {
        if self.step == Step::Method && self.received.len() >= 2 {
            if self.received[..2] != [VERSION, NO_AUTHENTICATION] {
                return out.fail("the SOCKS proxy wants a name and a password");
            }
            self.received.advance(2);
            self.step = Step::Reply;
            out.send(Flow::Forward, self.request());
        }
        let whole = |len: &usize| self.step == Step::Reply && self.received.len() >= *len;
        if let Some(len) = self.reply_len().filter(whole) {
            if self.received[..2] != [VERSION, 0] {
                let code = self.received[1];
                return out.fail(format!(
                    "the SOCKS proxy refused the connection: code {code}"
                ));
            }
            self.received.advance(len);
            out.send(Flow::Back, self.received.split());
            out.release(Flow::Forward);
            out.leave();
        }
    }
}

impl Service for Socks {
    fn name(&self) -> &'static str {
        "socks"
    }

    fn needs(&self, _: &Session) -> Result<Needs, Cause> {
        Ok(Needs {
            from_start: true,
            ..Needs::default()
        })
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        match event {
            Event::Open => {
                out.hold(Flow::Forward);
                out.send(Flow::Forward, &[VERSION, 1, NO_AUTHENTICATION][..]);
            }
            Event::Data {
                flow: Flow::Back,
                bytes,
            } => {
                self.received.extend_from_slice(&bytes);
                self.answered(out);
            }
            Event::Fin(Flow::Back) => out.fail("the SOCKS proxy closed the connection"),
            // The service leaves by itself, and soon.
            Event::Leave | Event::Full(_) | Event::Writable(_) => {}
            other => other.pass_on(out),
        }
    }
}
