//! Promises of a server's certificate directory over starts, changes and years.

use std::os::unix::fs::PermissionsExt as _;

use jiff::SignedDuration;

use super::*;

fn options(clock: &Clock) -> Options {
    Options {
        clock: clock.clone(),
        leaf_life: crate::authority::LEAF_LIFE,
        node_name: "n1".to_owned(),
        node_ips: vec!["192.0.2.7".parse().unwrap()],
        service_ips: vec!["10.43.0.1".parse().unwrap()],
        cluster_domain: "cluster.local".to_owned(),
        tls_sans: vec!["api.example.org".to_owned(), "2001:db8:0::1".to_owned()],
    }
}

fn clock() -> Clock {
    Clock::fixed("2026-11-21T04:00:00Z".parse().unwrap())
}

#[test]
fn a_second_start_changes_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let clock = clock();
    let first = Pki::load_or_create(dir.path(), options(&clock)).unwrap();
    let second = Pki::load_or_create(dir.path(), options(&clock)).unwrap();
    for leaf in Leaf::ALL {
        assert_eq!(first.leaf(leaf).current().cert_pem, second.leaf(leaf).current().cert_pem, "{leaf:?}");
    }
    for ca in Ca::ALL {
        assert_eq!(first.authority(ca).bundle(), second.authority(ca).bundle());
    }
    assert_eq!(first.signer().unwrap().kid(), second.signer().unwrap().kid());
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let meta = entry.unwrap().metadata().unwrap();
        assert_eq!(meta.permissions().mode() & 0o077, 0);
    }
}

#[test]
fn the_serving_certificate_covers_every_name() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::load_or_create(dir.path(), options(&clock())).unwrap();
    let serving = crate::identity::parse(&pki.leaf(Leaf::ServingApiserver).current().chain()[0]).unwrap();
    for name in [
        "kubernetes.default.svc.cluster.local",
        "n1",
        "192.0.2.7",
        "10.43.0.1",
        "::1",
        "api.example.org",
        "2001:db8::1",
    ] {
        assert!(serving.sans.contains(name), "{name} not in {:?}", serving.sans);
    }
}

#[test]
fn a_new_san_reissues_only_the_serving_leaf() {
    let dir = tempfile::tempdir().unwrap();
    let clock = clock();
    let first = Pki::load_or_create(dir.path(), options(&clock)).unwrap();
    let mut changed = options(&clock);
    changed.tls_sans.push("more.example.org".to_owned());
    let second = Pki::load_or_create(dir.path(), changed).unwrap();
    for leaf in Leaf::ALL {
        let same = first.leaf(leaf).current().cert_pem == second.leaf(leaf).current().cert_pem;
        assert_eq!(same, leaf != Leaf::ServingApiserver, "{leaf:?}");
    }
}

#[test]
fn leaves_renew_when_a_third_of_their_life_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let clock = clock();
    let pki = Pki::load_or_create(dir.path(), options(&clock)).unwrap();
    clock.advance(SignedDuration::from_hours(24 * 240));
    assert_eq!(pki.renew().unwrap(), []);
    let before = pki.leaf(Leaf::ClientAdmin).current().cert_pem.clone();
    clock.advance(SignedDuration::from_hours(24 * 5));
    assert_eq!(pki.renew().unwrap().len(), Leaf::ALL.len());
    assert_ne!(before, pki.leaf(Leaf::ClientAdmin).current().cert_pem);
    let reread = Pki::load_or_create(dir.path(), options(&clock)).unwrap();
    assert_eq!(reread.leaf(Leaf::ClientAdmin).current().cert_pem, pki.leaf(Leaf::ClientAdmin).current().cert_pem);
}

#[test]
fn certificates_made_in_1970_still_serve_after_the_clock_is_set() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::fixed(Timestamp::from_second(60).unwrap());
    let pki = Pki::load_or_create(dir.path(), options(&clock)).unwrap();
    let later: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
    let admin = pki.leaf(Leaf::ClientAdmin).current();
    pki.client_bundle().unwrap().verify_client(admin.chain(), later).unwrap();
}

#[test]
fn a_front_proxy_certificate_is_no_user_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let clock = clock();
    let pki = Pki::load_or_create(dir.path(), options(&clock)).unwrap();
    let users = Bundle::from_pem(pki.authority(Ca::Client).bundle()).unwrap();
    let proxy = pki.leaf(Leaf::ClientAuthProxy).current();
    assert!(users.verify_client(proxy.chain(), clock.now()).is_err());
    assert!(pki.client_bundle().unwrap().verify_client(proxy.chain(), clock.now()).is_ok());
    let serving = pki.leaf(Leaf::ServingKubelet).current();
    assert!(pki.client_bundle().unwrap().verify_client(serving.chain(), clock.now()).is_err());
}

#[test]
fn a_broken_authority_is_named_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    drop(Pki::load_or_create(dir.path(), options(&clock())).unwrap());
    std::fs::write(dir.path().join("client-ca.key"), "nonsense").unwrap();
    let err = Pki::load_or_create(dir.path(), options(&clock())).err().unwrap().to_string();
    assert!(err.contains("client-ca.key holds no usable private key"), "{err}");
    std::fs::write(dir.path().join("server-ca.key"), std::fs::read(dir.path().join("request-header-ca.key")).unwrap())
        .unwrap();
    let err = Pki::load_or_create(dir.path(), options(&clock())).err().unwrap().to_string();
    assert!(err.contains("server-ca.key") && err.contains("does not belong"), "{err}");
}

#[test]
fn a_leaf_whose_files_are_taken_away_is_made_anew_while_the_server_runs() {
    let dir = tempfile::tempdir().unwrap();
    let clock = clock();
    let pki = Pki::load_or_create(dir.path(), options(&clock)).unwrap();
    let before = pki.leaf(Leaf::ClientAdmin).current().cert_pem.clone();
    assert!(pki.renew().unwrap().is_empty());
    std::fs::remove_file(dir.path().join("client-admin.crt")).unwrap();
    assert_eq!(pki.renew().unwrap(), [Leaf::ClientAdmin]);
    assert_ne!(pki.leaf(Leaf::ClientAdmin).current().cert_pem, before);
    assert!(pki.next_renewal() > clock.now());
}

#[test]
fn short_lives_are_renewed_at_two_thirds() {
    let dir = tempfile::tempdir().unwrap();
    let clock = clock();
    let pki =
        Pki::load_or_create(dir.path(), Options { leaf_life: Duration::from_secs(90), ..options(&clock) }).unwrap();
    clock.advance(SignedDuration::from_secs(55));
    assert!(pki.renew().unwrap().is_empty());
    clock.advance(SignedDuration::from_secs(10));
    assert_eq!(pki.renew().unwrap().len(), Leaf::ALL.len());
}
