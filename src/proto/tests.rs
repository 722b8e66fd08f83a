//! Messages against their protocols: each field is written by its number and wire type as the protocol's own
//! definition gives them, with a writer that knows nothing of the structs.
//!
//! Spec: etcd's `api/etcdserverpb/rpc.proto` and `api/mvccpb/kv.proto` (v3.6), CSI's `csi.proto` (v1.12), the kubelet's
//! `deviceplugin/v1beta1`, `pluginregistration/v1` and `kms/v2` (v1.36).

use std::collections::HashMap;

use prost::Message;

use crate::{csi, etcd, kms, plugins};

/// A field's value, by its wire type.
enum Field {
    /// Wire type 0.
    Number(u64),
    /// Wire type 2.
    Bytes(Vec<u8>),
}

fn text(text: &str) -> Field {
    Field::Bytes(text.as_bytes().to_vec())
}

fn message(fields: &[(u64, Field)]) -> Field {
    Field::Bytes(written(fields))
}

fn varint(mut number: u64, out: &mut Vec<u8>) {
    while number > 0x7f {
        out.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
        number >>= 7;
    }
    out.push(u8::try_from(number).unwrap());
}

/// Fields one after the other, as the wire has them.
fn written(fields: &[(u64, Field)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, field) in fields {
        match field {
            Field::Number(value) => {
                varint(number << 3, &mut out);
                varint(*value, &mut out);
            }
            Field::Bytes(bytes) => {
                varint(number << 3 | 2, &mut out);
                varint(bytes.len() as u64, &mut out);
                out.extend_from_slice(bytes);
            }
        }
    }
    out
}

/// Both directions.
fn is_on_the_wire<M: Message + Default + PartialEq + std::fmt::Debug>(wanted: &M, fields: &[(u64, Field)]) {
    let bytes = written(fields);
    assert_eq!(wanted.encode_to_vec(), bytes, "{wanted:?}");
    assert!(M::decode(bytes.as_slice()).unwrap() == *wanted, "{wanted:?}");
}

use Field::Number;

#[test]
fn a_range_of_etcd_has_its_numbers() {
    let request = etcd::RangeRequest {
        key: "a".into(),
        range_end: "b".into(),
        limit: 300,
        revision: 7,
        sort_order: etcd::SortOrder::Descend.into(),
        sort_target: etcd::SortTarget::Mod.into(),
        serializable: true,
        keys_only: true,
        count_only: true,
        min_mod_revision: 1,
        max_mod_revision: 2,
        min_create_revision: 3,
        max_create_revision: 4,
    };
    let flags = [(7, Number(1)), (8, Number(1)), (9, Number(1))];
    let bounds = [(10, Number(1)), (11, Number(2)), (12, Number(3)), (13, Number(4))];
    let head = [(1, text("a")), (2, text("b")), (3, Number(300)), (4, Number(7)), (5, Number(2)), (6, Number(3))];
    let all: Vec<(u64, Field)> = head.into_iter().chain(flags).chain(bounds).collect();
    is_on_the_wire(&request, &all);
}

#[test]
fn a_key_of_etcd_and_the_answer_that_holds_it_have_their_numbers() {
    let kv = etcd::KeyValue {
        key: "k".into(),
        create_revision: 1,
        mod_revision: 2,
        version: 3,
        value: "v".into(),
        lease: 4,
    };
    let fields = || {
        let numbers = [(2, Number(1)), (3, Number(2)), (4, Number(3)), (5, text("v")), (6, Number(4))];
        std::iter::once((1, text("k"))).chain(numbers).collect::<Vec<_>>()
    };
    is_on_the_wire(&kv, &fields());
    let header = etcd::ResponseHeader { cluster_id: 1, member_id: 2, revision: 3, raft_term: 4 };
    let answer = etcd::RangeResponse { header: Some(header), kvs: vec![kv], more: true, count: 9 };
    let header = message(&[(1, Number(1)), (2, Number(2)), (3, Number(3)), (4, Number(4))]);
    is_on_the_wire(&answer, &[(1, header), (2, message(&fields())), (3, Number(1)), (4, Number(9))]);
}

#[test]
fn conditions_of_etcd_have_the_numbers_of_their_targets() {
    use etcd::compare::TargetUnion;
    let rows: [(TargetUnion, etcd::CompareTarget, u64, (u64, Field)); 5] = [
        (TargetUnion::Version(5), etcd::CompareTarget::Version, 0, (4, Number(5))),
        (TargetUnion::CreateRevision(5), etcd::CompareTarget::Create, 1, (5, Number(5))),
        (TargetUnion::ModRevision(5), etcd::CompareTarget::Mod, 2, (6, Number(5))),
        (TargetUnion::Value("x".into()), etcd::CompareTarget::Value, 3, (7, text("x"))),
        (TargetUnion::Lease(5), etcd::CompareTarget::Lease, 4, (8, Number(5))),
    ];
    for (union, target, number, field) in rows {
        let compare = etcd::Compare {
            result: etcd::CompareResult::NotEqual.into(),
            target: target.into(),
            key: "k".into(),
            range_end: "l".into(),
            target_union: Some(union),
        };
        let bytes = compare.encode_to_vec();
        // The range's end has number 64, and prost writes it in the order of the struct.
        let target = (number > 0).then_some((2, Number(number)));
        let head = std::iter::once((1, Number(3))).chain(target);
        let fields: Vec<(u64, Field)> = head.chain([(3, text("k")), field, (64, text("l"))]).collect();
        assert!(etcd::Compare::decode(written(&fields).as_slice()).unwrap() == compare, "{compare:?}");
        assert_eq!(bytes.len(), written(&fields).len(), "{compare:?}");
    }
}

#[test]
fn a_transaction_of_etcd_has_its_numbers() {
    let step = |request| etcd::RequestOp { request: Some(request) };
    let put = etcd::PutRequest { key: "k".into(), value: "v".into(), lease: 7, prev_kv: true, ..Default::default() };
    let delete = etcd::DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: true };
    let txn = etcd::TxnRequest {
        compare: Vec::new(),
        success: vec![step(etcd::request_op::Request::Put(put))],
        failure: vec![step(etcd::request_op::Request::DeleteRange(delete))],
    };
    let put = message(&[(1, text("k")), (2, text("v")), (3, Number(7)), (4, Number(1))]);
    let delete = message(&[(1, text("k")), (2, text("l")), (3, Number(1))]);
    is_on_the_wire(&txn, &[(2, message(&[(2, put)])), (3, message(&[(3, delete)]))]);
}

#[test]
fn watches_of_etcd_have_their_numbers() {
    let create = etcd::WatchCreateRequest {
        key: "k".into(),
        range_end: "l".into(),
        start_revision: 5,
        progress_notify: true,
        filters: vec![1],
        prev_kv: true,
        watch_id: 6,
        fragment: true,
    };
    let request = etcd::WatchRequest { request: Some(etcd::watch_request::Request::Create(create)) };
    let create = message(&[
        (1, text("k")),
        (2, text("l")),
        (3, Number(5)),
        (4, Number(1)),
        (5, Field::Bytes(vec![1])),
        (6, Number(1)),
        (7, Number(6)),
        (8, Number(1)),
    ]);
    is_on_the_wire(&request, &[(1, create)]);
    let event = etcd::Event { r#type: etcd::EventType::Delete.into(), kv: None, prev_kv: None };
    let answer = etcd::WatchResponse {
        header: None,
        watch_id: 6,
        created: true,
        canceled: true,
        compact_revision: 4,
        cancel_reason: "r".into(),
        fragment: true,
        events: vec![event],
    };
    let fields = [(2, Number(6)), (3, Number(1)), (4, Number(1)), (5, Number(4)), (6, text("r")), (7, Number(1))];
    let all: Vec<(u64, Field)> = fields.into_iter().chain([(11, message(&[(1, Number(1))]))]).collect();
    is_on_the_wire(&answer, &all);
}

#[test]
fn leases_of_etcd_have_their_numbers() {
    is_on_the_wire(&etcd::LeaseGrantRequest { ttl: 15, id: 8 }, &[(1, Number(15)), (2, Number(8))]);
    let granted = etcd::LeaseGrantResponse { header: None, id: 8, ttl: 15, error: "e".into() };
    is_on_the_wire(&granted, &[(2, Number(8)), (3, Number(15)), (4, text("e"))]);
    let left = etcd::LeaseTimeToLiveResponse { header: None, id: 8, ttl: 3, granted_ttl: 15, keys: vec!["k".into()] };
    is_on_the_wire(&left, &[(2, Number(8)), (3, Number(3)), (4, Number(15)), (5, text("k"))]);
}

#[test]
fn a_negative_number_of_etcd_takes_ten_bytes() {
    let gone = etcd::LeaseTimeToLiveResponse { ttl: -1, ..Default::default() };
    is_on_the_wire(&gone, &[(3, Number(u64::MAX))]);
}

#[test]
fn calls_of_key_plugins_have_their_numbers() {
    is_on_the_wire(
        &kms::StatusResponse { version: "v2".into(), healthz: "ok".into(), key_id: "1".into() },
        &[(1, text("v2")), (2, text("ok")), (3, text("1"))],
    );
    is_on_the_wire(
        &kms::EncryptRequest { plaintext: b"p".to_vec(), uid: "u".into() },
        &[(1, text("p")), (2, text("u"))],
    );
    let annotations = HashMap::from([("a".to_owned(), b"b".to_vec())]);
    let entry = || message(&[(1, text("a")), (2, text("b"))]);
    is_on_the_wire(
        &kms::EncryptResponse { ciphertext: b"c".to_vec(), key_id: "1".into(), annotations: annotations.clone() },
        &[(1, text("c")), (2, text("1")), (3, entry())],
    );
    is_on_the_wire(
        &kms::DecryptRequest { ciphertext: b"c".to_vec(), uid: "u".into(), key_id: "1".into(), annotations },
        &[(1, text("c")), (2, text("u")), (3, text("1")), (4, entry())],
    );
}

#[test]
fn mounts_of_drivers_have_their_numbers() {
    let capability = csi::VolumeCapability {
        block: None,
        mount: Some(csi::MountVolume {
            fs_type: "ext4".into(),
            mount_flags: vec!["ro".into()],
            volume_mount_group: "7".into(),
        }),
        access_mode: Some(csi::AccessMode { mode: csi::access::MULTI_NODE_MULTI_WRITER }),
    };
    let on_wire = || {
        let mount = message(&[(1, text("ext4")), (2, text("ro")), (3, text("7"))]);
        message(&[(2, mount), (3, message(&[(1, Number(5))]))])
    };
    let pair = |key: &str| HashMap::from([(key.to_owned(), "v".to_owned())]);
    let entry = |key: &str| message(&[(1, text(key)), (2, text("v"))]);
    let stage = csi::StageRequest {
        volume_id: "vol".into(),
        publish_context: pair("p"),
        staging_target_path: "/s".into(),
        volume_capability: Some(capability.clone()),
        secrets: pair("s"),
        volume_context: pair("c"),
    };
    let fields = [(1, text("vol")), (2, entry("p")), (3, text("/s")), (4, on_wire()), (5, entry("s")), (6, entry("c"))];
    is_on_the_wire(&stage, &fields);
    let publish = csi::PublishRequest {
        volume_id: "vol".into(),
        publish_context: pair("p"),
        staging_target_path: "/s".into(),
        target_path: "/t".into(),
        volume_capability: Some(capability),
        readonly: true,
        secrets: pair("s"),
        volume_context: pair("c"),
    };
    let head = [(1, text("vol")), (2, entry("p")), (3, text("/s")), (4, text("/t")), (5, on_wire())];
    let all: Vec<(u64, Field)> = head.into_iter().chain([(6, Number(1)), (7, entry("s")), (8, entry("c"))]).collect();
    is_on_the_wire(&publish, &all);
}

#[test]
fn registrations_of_device_plugins_have_their_numbers() {
    let options = plugins::DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true };
    let request = plugins::RegisterRequest {
        version: "v1beta1".into(),
        endpoint: "gpu.sock".into(),
        resource_name: "vendor.example/gpu".into(),
        options: Some(options),
    };
    let options = message(&[(1, Number(1)), (2, Number(1))]);
    let fields = [(1, text("v1beta1")), (2, text("gpu.sock")), (3, text("vendor.example/gpu")), (4, options)];
    is_on_the_wire(&request, &fields);
}

#[test]
fn a_field_of_a_later_protocol_is_passed_over() {
    let fields = [(1, text("v2")), (2, text("ok")), (99, text("new")), (3, text("1"))];
    let read = kms::StatusResponse::decode(written(&fields).as_slice()).unwrap();
    assert_eq!((read.version.as_str(), read.key_id.as_str()), ("v2", "1"));
}
