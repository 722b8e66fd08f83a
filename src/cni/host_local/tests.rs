//! Claims about address allocation, on a real directory.

use serde_json::json;

use super::*;
use crate::request::{Command, for_test};

fn request(dir: &Path, container: &str, subnet: &str) -> Request {
    let config = json!({
        "cniVersion": "1.0.0", "name": "n",
        "ipam": { "type": "host-local", "dataDir": dir, "ranges": [[{ "subnet": subnet }]],
        "routes": [{ "dst": "0.0.0.0/0" }] },
    });
    for_test(Command::Add, container, config)
}

fn address(dir: &Path, container: &str, subnet: &str) -> String {
    add(&request(dir, container, subnet)).unwrap().ips[0].address.to_string()
}

#[test]
fn addresses_skip_the_gateway_and_rest_after_release() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(address(dir.path(), "a", "10.1.0.0/29"), "10.1.0.2/29");
    assert_eq!(address(dir.path(), "b", "10.1.0.0/29"), "10.1.0.3/29");
    del(&request(dir.path(), "a", "10.1.0.0/29")).unwrap();
    assert_eq!(address(dir.path(), "c", "10.1.0.0/29"), "10.1.0.4/29");
}

#[test]
fn a_full_range_is_an_error_until_one_is_released() {
    let dir = tempfile::tempdir().unwrap();
    address(dir.path(), "a", "10.1.0.0/30");
    let err = add(&request(dir.path(), "b", "10.1.0.0/30")).unwrap_err();
    assert_eq!(err.msg, "no IP addresses available in range set: 10.1.0.1-10.1.0.2");
    del(&request(dir.path(), "a", "10.1.0.0/30")).unwrap();
    assert_eq!(address(dir.path(), "b", "10.1.0.0/30"), "10.1.0.2/30");
}

#[test]
fn a_repeated_add_gets_the_same_address() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(address(dir.path(), "a", "10.1.0.0/24"), address(dir.path(), "a", "10.1.0.0/24"));
}

#[test]
fn a_file_emptied_by_a_power_cut_is_free() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("n")).unwrap();
    fs::write(dir.path().join("n/10.1.0.2"), "").unwrap();
    assert_eq!(address(dir.path(), "a", "10.1.0.0/24"), "10.1.0.2/24");
}

#[test]
fn a_delete_of_the_unknown_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    del(&request(dir.path(), "nobody", "10.1.0.0/24")).unwrap();
}

#[test]
fn candidates_wrap_around_once() {
    let set = [Range::new(&RangeConfig {
        subnet: "fd00::/125".parse().unwrap(),
        range_start: None,
        range_end: None,
        gateway: None,
    })
    .unwrap()];
    let all: Vec<String> = candidates(&set, Some("fd00::5".parse().unwrap())).map(|ip| ip.to_string()).collect();
    assert_eq!(all, ["fd00::6", "fd00::7", "fd00::2", "fd00::3", "fd00::4", "fd00::5"]);
}
