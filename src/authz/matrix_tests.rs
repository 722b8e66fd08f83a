//! Matrix of rights: every identity of the system, every resource and verb, as a genuine kube-apiserver 1.36.2 with
//! `--authorization-mode=Node,RBAC` answered it, given the objects of `matrix_objects.json` (asked by
//! SubjectAccessReviews).
//!
//! `matrix.tsv`: user, groups, API group, resource, subresource, namespace, name, field selector, and the verbs that
//! are allowed; `-` is nothing. What has no line is allowed nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::reference::GroupResource;
use registry::attributes::Attributes;
use registry::memory::Objects;
use registry::user::UserInfo;
use schema::catalog::Catalog;
use schema::table::GroupVersion;
use serde_json::Value;

use super::node::Node;
use super::rbac::Rbac;
use super::union::Masters;
use super::{Authorizer, Decision, bootstrap};

const GOLDEN: &str = include_str!("matrix.tsv");
const OBJECTS: &str = include_str!("matrix_objects.json");
const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
const SPECIAL: [&str; 6] = ["approve", "sign", "attest", "escalate", "bind", "impersonate"];
/// Resources about which the special verbs are asked.
const SPECIAL_OF: [&str; 5] = ["signers", "users", "roles", "clusterroles", "clustertrustbundles"];

/// API group, resource, subresource, namespace, name, field selector.
type Thing = [&'static str; 6];
/// Name and groups.
type Identity = (&'static str, &'static str);

fn objects() -> Objects {
    let mut objects = Objects::default();
    // Ours, which upstream has not.
    let upstreams =
        bootstrap::objects().into_iter().filter(|(.., object)| !model::meta::name(object).starts_with("kedge:"));
    for (group, resource, object) in upstreams {
        objects.put(GroupResource { group, resource }, object);
    }
    for object in serde_json::from_str::<Vec<Value>>(OBJECTS).unwrap() {
        let (api_version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        let row = Catalog::builtin().by_kind(GroupVersion::parse(api_version), kind).unwrap();
        objects.put(row.group_resource(), object);
    }
    objects
}

fn golden() -> (BTreeMap<(Identity, Thing), BTreeSet<&'static str>>, BTreeSet<Thing>) {
    let (mut allowed, mut things) = (BTreeMap::new(), BTreeSet::new());
    for line in GOLDEN.lines() {
        let fields: Vec<&'static str> = line.split('\t').collect();
        let [user, groups, thing @ .., verbs] = fields.as_slice() else { panic!("{line}") };
        let thing: Thing =
            thing.iter().map(|part| if *part == "-" { "" } else { *part }).collect::<Vec<_>>().try_into().unwrap();
        if *user == "system:anonymous" {
            things.insert(thing);
        }
        allowed.insert(((*user, *groups), thing), verbs.split(',').filter(|verb| *verb != "-").collect());
    }
    (allowed, things)
}

fn request(
    (user, groups): Identity,
    [group, resource, subresource, namespace, name, selector]: Thing,
    verb: &str,
) -> Attributes {
    let user = UserInfo {
        name: user.to_owned(),
        groups: groups.split(',').map(str::to_owned).collect(),
        ..UserInfo::default()
    };
    Attributes {
        user: Arc::new(user),
        verb: verb.to_owned(),
        group: group.to_owned(),
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        subresource: subresource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        field_selector: selector.to_owned(),
        is_resource: true,
        ..Attributes::default()
    }
}

#[tokio::test]
async fn every_identity_may_what_upstream_lets_it() {
    let objects: Arc<Objects> = Arc::new(objects());
    let authorizers: [Arc<dyn Authorizer>; 3] =
        [Arc::new(Masters), Arc::new(Node::new(objects.clone())), Arc::new(Rbac::new(objects.clone()))];
    let (allowed, everywhere) = golden();
    let identities: BTreeSet<Identity> = allowed.keys().map(|(identity, _)| *identity).collect();
    let mut questions: BTreeSet<(Identity, Thing)> = allowed.keys().copied().collect();
    questions.extend(identities.iter().flat_map(|identity| everywhere.iter().map(move |thing| (*identity, *thing))));
    let (mut wrong, mut n_asked) = (Vec::new(), 0);
    for (identity, thing) in questions {
        let special = SPECIAL.iter().filter(|_| SPECIAL_OF.contains(&thing[1]));
        for verb in VERBS.iter().chain(special) {
            let asked = request(identity, thing, verb);
            let mut ours = false;
            for authorizer in &authorizers {
                ours |= matches!(authorizer.authorize(&asked).await, Decision::Allow { .. });
            }
            let theirs = allowed.get(&(identity, thing)).is_some_and(|verbs| verbs.contains(verb));
            n_asked += 1;
            if ours != theirs {
                wrong.push(format!("{identity:?} {verb} {thing:?}: upstream {theirs}, we {ours}"));
            }
        }
    }
    assert!(n_asked > 40_000, "{n_asked}");
    assert!(wrong.is_empty(), "{} of {n_asked}:\n{}", wrong.len(), wrong.join("\n"));
}
