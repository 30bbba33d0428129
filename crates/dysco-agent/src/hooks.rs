//! The programs of an interface, with the side that each is on.

use aya::programs::TcAttachType;

/// The programs that see every packet.
pub(crate) const HOOKS: [(&str, TcAttachType); 2] = [
    ("dysco_ingress", TcAttachType::Ingress),
    ("dysco_egress", TcAttachType::Egress),
];

/// The programs of the packet plane's services. They run before the others.
pub(crate) const SERVED_HOOKS: [(&str, TcAttachType); 2] = [
    ("dysco_serve_in", TcAttachType::Ingress),
    ("dysco_serve_out", TcAttachType::Egress),
];

/// The program for packets of handlers, on this host's end of the link to their namespace.
pub(crate) const HANDLER: [(&str, TcAttachType); 1] = [("dysco_handler", TcAttachType::Ingress)];
