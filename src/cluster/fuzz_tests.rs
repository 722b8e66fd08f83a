//! Seeded fuzzing of what joining machines send and of archives that are restored. Nothing may panic, and nothing may
//! be written but below the folder that was named.

use std::collections::BTreeMap;
use std::fs;

use base::fuzz::{self, mutated, mutated_text, rounds};
use base::layout::Layout;
use base::secret::Secret;
use base::time::Clock;

use crate::credentials::Shown;
use crate::protocol::{JoinRequest, NewMember, Role, Welcome};
use crate::refusal::Refusal;
use crate::s3::xml::{Xml, page};
use crate::snapshot::{self, Places};

const ROUNDS: u64 = 600;

#[test]
fn join_requests_of_any_bytes_are_read_or_refused() {
    let rng = fuzz::rng(1);
    let asked = JoinRequest {
        role: Role::Agent,
        check: false,
        node_name: "edge-1".to_owned(),
        node_ips: vec![[192, 0, 2, 1].into()],
        machine_id: "m".to_owned(),
        version: "v".to_owned(),
        minor: 36,
        unix_ms: 0,
        public_key: "BASE64".to_owned(),
        kubelet_client_csr: String::new(),
        kubelet_serving_csr: String::new(),
        proxy_client_csr: String::new(),
        flags: BTreeMap::from([("cluster-cidr".to_owned(), "10.42.0.0/16".to_owned())]),
    };
    let request = serde_json::to_vec(&asked).unwrap();
    let member =
        serde_json::to_vec(&NewMember { id: 7, name: "s2".to_owned(), address: "192.0.2.2:6443".to_owned() }).unwrap();
    let refusal = serde_json::to_vec(&Refusal::ClockSkew { ahead_secs: 4000 }).unwrap();
    for _ in rounds(ROUNDS) {
        let _refused = serde_json::from_slice::<JoinRequest>(&mutated(&rng, &request));
        let _refused = serde_json::from_slice::<NewMember>(&mutated(&rng, &member));
        let _refused = serde_json::from_slice::<Welcome>(&mutated(&rng, &request));
        if let Ok(read) = serde_json::from_slice::<Refusal>(&mutated(&rng, &refusal)) {
            assert!(!read.to_string().is_empty());
        }
        for header in [&b"Basic bm9kZTpodW50ZXIy"[..], b"Bearer abc123.0123456789abcdef"] {
            let header = String::from_utf8_lossy(&mutated(&rng, header)).into_owned();
            let _refused = Shown::parse(Some(&header));
        }
    }
}

#[test]
fn archives_of_any_bytes_are_refused_and_write_nothing_elsewhere() {
    let (rng, clock, root) = (fuzz::rng(2), Clock::system(), tempfile::tempdir().unwrap());
    let places = |name: &str| {
        let data_dir = root.path().join(name);
        Places {
            dir: data_dir.join("snapshots"),
            config: data_dir.join("etc/config.yaml"),
            layout: Layout::new(data_dir),
        }
    };
    // An archive as restore wants it, but for its store: damage is tried on the packing, the names, the sealed part.
    let tar = |entries: &[(&str, &[u8])]| {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, bytes) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            // The name as it is: the library refuses to write one that leads out.
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            archive.append(&header, *bytes).unwrap();
        }
        archive.into_inner().unwrap()
    };
    let manifest = br#"{"created":"2026-01-01T00:00:00Z","node":"n","version":"v","cluster_id":1,"revision":2}"#;
    let seeds = [
        tar(&[
            ("kedge-snapshot.json", manifest),
            ("server/db/state.db", b"x"),
            ("server/tls/a.key", b"k"),
            ("config.yaml", b"{}"),
        ]),
        tar(&[
            ("kedge-snapshot.json", manifest),
            ("../outside", b"x"),
            ("server/tls/../../../outside", b"x"),
            ("/outside", b"x"),
        ]),
        tar(&[("kedge-snapshot.json", manifest), ("sealed", &[7; 100]), ("server/db/state.db", b"x")]),
    ];
    let token = Secret::new("t".to_owned());
    for round in rounds(ROUNDS / 10) {
        for (n, seed) in seeds.iter().enumerate() {
            let plain = mutated(&rng, seed);
            let packed = zstd::encode_all(&plain[..], 1).unwrap();
            let bytes = if rng.below(2) == 0 { packed } else { mutated(&rng, &packed) };
            let archive = root.path().join("a.tar.zst");
            fs::write(&archive, bytes).unwrap();
            // The sealed part costs a key a try: seldom.
            let given = (n != 2 || round % 10 == 0).then_some(&token);
            let done = snapshot::restore(&places("there"), &archive, given, &clock, &rng);
            assert!(done.is_err(), "round {round}: an archive without a store was restored");
            assert!(
                !root.path().join("there/server").exists() && !root.path().join("outside").exists(),
                "round {round}"
            );
        }
    }
    let left: Vec<_> = fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

/// A bucket is another's: its answers are read, and what they say is a name, a number or nothing.
#[test]
fn pages_of_a_bucket_are_read_whatever_they_are() {
    let rng = fuzz::rng(3);
    let whole = "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>true</IsTruncated><Contents>\
                 <Key>a&amp;b&#x41;</Key><Size>7</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>\
                 <NextContinuationToken>t</NextContinuationToken></ListBucketResult>";
    let words =
        ["<", ">", "</", "/>", "&", ";", "&#", "&#x110000;", "<Contents>", "<![CDATA[", "]]>", "<!--", "é", "<Key/>"];
    for _ in rounds(ROUNDS * 4) {
        let text = mutated_text(&rng, whole, &words);
        let _any = (page(Xml(&text)), Xml(&text).text_of("Code"));
    }
}
