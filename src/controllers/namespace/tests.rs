//! Claims about the conditions of a namespace on its way out.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::plan::{self, Findings};

#[test]
fn what_is_left_is_named_with_upstreams_words() {
    let mut found = Findings::default();
    assert!(found.is_empty());
    found.remaining.insert("pods.".to_owned(), 2);
    found.finalizers.insert("example.com/hold".to_owned(), 1);
    let conditions = plan::conditions(&found, &[], &Time(jiff::Timestamp::UNIX_EPOCH));
    let texts: Vec<&str> =
        conditions.iter().filter(|c| c.status == "True").filter_map(|c| c.message.as_deref()).collect();
    assert_eq!(
        texts,
        [
            "Some resources are remaining: pods. has 2 resource instances",
            "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances",
        ]
    );
    assert!(!found.is_empty());
}

#[test]
fn a_condition_that_stays_keeps_its_time() {
    let first = plan::conditions(&Findings::default(), &[], &Time(jiff::Timestamp::UNIX_EPOCH));
    let again = plan::conditions(&Findings::default(), &first, &Time(jiff::Timestamp::MAX));
    assert_eq!(first, again);
}
