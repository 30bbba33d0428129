//! Elements of chains: their texts and their form on the wire.

use std::net::IpAddr;

use dysco_common::Element;
use dysco_common::chain::{WireElement, path_number};
use proptest::prelude::*;

fn element() -> impl Strategy<Value = Element> {
    any::<IpAddr>().prop_map(|host| Element::Host(host.to_canonical()))
}

proptest! {
    #[test]
    fn an_element_is_the_same_after_its_text_and_its_form_on_the_wire(element in element()) {
        prop_assert_eq!(element.to_string().parse(), Ok(element));
        prop_assert_eq!(Element::of_wire(&element.into()), Some(element));
    }

    #[test]
    fn the_text_of_a_host_is_its_address(host in any::<IpAddr>()) {
        let element = Element::Host(host);
        prop_assert_eq!(element.to_string(), host.to_string());
        prop_assert_eq!(element.host(), host);
        // An IPv4 address within an IPv6 one is the IPv4 address.
        prop_assert_eq!(host.to_string().parse(), Ok(Element::Host(host.to_canonical())));
    }

    #[test]
    fn an_element_keeps_its_kind_at_another_address(element in element(), host in any::<IpAddr>()) {
        let moved = element.at(host);
        prop_assert_eq!(moved.host(), host);
        prop_assert_eq!(moved.at(element.host()), element);
    }

    #[test]
    fn a_text_that_is_no_address_names_no_element(text in "\\PC*") {
        prop_assert_eq!(text.parse::<Element>().is_ok(), text.parse::<IpAddr>().is_ok());
    }
}

#[test]
fn the_error_for_an_unknown_kind_names_what_is_accepted() {
    for text in ["fw1", "other:web@10.0.2.1", "10.0.2.1/24", ""] {
        let error = text.parse::<Element>().unwrap_err().to_string();
        assert!(error.contains("a host's address, like 10.0.2.1"), "{error}");
    }
}

#[test]
fn neither_a_live_session_nor_a_later_kind_is_an_element() {
    let live = WireElement::live([1, 2]);
    assert_eq!(path_number(&live.token()), 2);
    let later = WireElement { kind: 9, ..live };
    for element in [WireElement::default(), live, later] {
        assert_eq!(Element::of_wire(&element), None);
    }
}
