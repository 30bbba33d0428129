//! The service of `docs/write-a-service.md`.

use dysco_service::{Event, Flow};

use super::Bench;
use super::redact::Redact;

#[test]
fn the_service_of_the_tutorial_works() {
    let mut bench = Bench::new();
    let layer = bench.stack.put(0, Box::new(Redact::default())).unwrap();
    bench.data(Flow::Forward, b"card 1234");
    bench.data(Flow::Back, b"card 1234");
    assert_eq!(bench.out, [b"card 1234".to_vec(), b"card xxxx".to_vec()]);
    bench.to(layer, Event::Leave);
    bench.data(Flow::Back, b"card 1234");
    assert!(bench.out[1].ends_with(b"card 1234"));
}

#[test]
fn the_page_has_the_code_that_is_tested() {
    let page = include_str!("../../../../docs/write-a-service.md");
    assert!(page.contains(include_str!("redact.rs")));
}
