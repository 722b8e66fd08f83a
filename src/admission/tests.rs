//! The plugins one by one, on the cases most likely to be wrong.

#[path = "node_restriction_tests.rs"]
mod node_restriction_tests;

use std::sync::Arc;

use base::rng::Rng;
use model::reference::GroupResource;
use registry::memory::Objects;
use registry::user::UserInfo;
use serde_json::{Value, json};

use super::*;

struct Case {
    operation: Operation,
    attributes: Attributes,
    object: Value,
    old: Option<Value>,
    objects: Objects,
}

fn case(operation: Operation, resource: &str, name: &str, object: Value) -> Case {
    let attributes = Attributes {
        user: UserInfo::new("bob", &[]).into(),
        resource: resource.into(),
        namespace: "default".into(),
        name: name.into(),
        is_resource: true,
        ..Attributes::default()
    };
    Case { operation, attributes, object, old: None, objects: Objects::default() }
}

impl Case {
    fn with(mut self, group: &'static str, resource: &'static str, object: Value) -> Case {
        self.objects.put(GroupResource { group, resource }, object);
        self
    }

    fn by(mut self, node: &str) -> Case {
        self.attributes.user = UserInfo::new(format!("system:node:{node}"), &["system:nodes"]).into();
        self
    }

    fn over(mut self, old: Value) -> Case {
        self.old = Some(old);
        self
    }

    /// Both rounds of one plugin: the object it leaves, or the text of its refusal.
    async fn run(mut self, plugin: &dyn Plugin) -> Result<Value, String> {
        let mut warnings = Vec::new();
        if !plugin.handles(self.operation, &self.attributes) {
            return Ok(self.object);
        }
        let mut review = Review {
            operation: self.operation,
            attributes: &self.attributes,
            kind: "",
            object: &mut self.object,
            old: self.old.as_ref(),
            dry_run: false,
            catalog: schema::catalog::Catalog::builtin(),
            lookup: &self.objects,
            versions: &self.objects,
            warnings: &mut warnings,
            reinvocation: Default::default(),
            charge: Default::default(),
        };
        plugin.admit(&mut review).await.map_err(|status| status.message.clone())?;
        plugin.validate(&review).await.map_err(|status| status.message.clone())?;
        Ok(self.object)
    }
}

fn namespace(phase: &str) -> Value {
    json!({"metadata": {"name": "default"}, "status": {"phase": phase}})
}

#[tokio::test]
async fn nothing_is_created_in_a_namespace_that_goes_or_is_not_there() {
    let plugin = namespace_lifecycle::NamespaceLifecycle;
    let create = || case(Operation::Create, "pods", "p", json!({}));
    assert_eq!(create().run(&plugin).await.unwrap_err(), "namespaces \"default\" not found");
    let text =
        "pods \"p\" is forbidden: unable to create new content in namespace default because it is being terminated";
    assert_eq!(create().with("", "namespaces", namespace("Terminating")).run(&plugin).await.unwrap_err(), text);
    create().with("", "namespaces", namespace("Active")).run(&plugin).await.unwrap();
    let mut delete = case(Operation::Delete, "namespaces", "kube-system", Value::Null);
    delete.attributes.namespace = "kube-system".into();
    assert_eq!(
        delete.run(&plugin).await.unwrap_err(),
        "namespaces \"kube-system\" is forbidden: this namespace may not be deleted"
    );
}

#[tokio::test]
async fn a_pod_finds_its_accounts_token_in_the_usual_place() {
    let plugin = service_account::ServiceAccount { rng: Rng::from_seed(1) };
    let account = |automount: bool| {
        json!({"metadata": {"name": "default", "namespace": "default"},
        "automountServiceAccountToken": automount})
    };
    let pod = || {
        json!({"spec": {"containers": [{"name": "a"}, {"name": "b", "volumeMounts": [
        {"name": "own", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]}]}})
    };
    let made = case(Operation::Create, "pods", "p", pod())
        .with("", "serviceaccounts", account(true))
        .run(&plugin)
        .await
        .unwrap();
    assert_eq!(made["spec"]["serviceAccountName"], "default");
    assert!(made["spec"].get("initContainers").is_none());
    let volume = made["spec"]["volumes"][0]["name"].as_str().unwrap();
    assert!(volume.starts_with("kube-api-access-") && volume.len() == 21, "{volume}");
    assert_eq!(made["spec"]["containers"][0]["volumeMounts"][0]["name"], volume);
    assert_eq!(made["spec"]["containers"][1]["volumeMounts"].as_array().unwrap().len(), 1);
    assert_eq!(
        made["spec"]["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"],
        json!({"expirationSeconds": 3607, "path": "token"})
    );
    let made = case(Operation::Create, "pods", "p", pod())
        .with("", "serviceaccounts", account(false))
        .run(&plugin)
        .await
        .unwrap();
    assert!(made["spec"]["volumes"].is_null());
    let text =
        "pods \"p\" is forbidden: error looking up service account default/gone: serviceaccount \"gone\" not found";
    let pod = json!({"spec": {"serviceAccountName": "gone"}});
    assert_eq!(case(Operation::Create, "pods", "p", pod).run(&plugin).await.unwrap_err(), text);
}

#[tokio::test]
async fn priority_is_the_classs_and_nobody_elses() {
    let class = |name: &str, value: i64, default: bool| {
        json!({"metadata": {"name": name}, "value": value,
        "globalDefault": default})
    };
    let create = |spec: Value| {
        let pod = case(Operation::Create, "pods", "p", json!({ "spec": spec }));
        pod.with("scheduling.k8s.io", "priorityclasses", class("high", 1000, false)).with(
            "scheduling.k8s.io",
            "priorityclasses",
            class("usual", 7, true),
        )
    };
    let made = create(json!({"priorityClassName": "high"})).run(&priority::Priority).await.unwrap();
    assert_eq!(
        (&made["spec"]["priority"], &made["spec"]["preemptionPolicy"]),
        (&json!(1000), &json!("PreemptLowerPriority"))
    );
    let made = create(json!({})).run(&priority::Priority).await.unwrap();
    assert_eq!((&made["spec"]["priority"], &made["spec"]["priorityClassName"]), (&json!(7), &json!("usual")));
    let text = "pods \"p\" is forbidden: no PriorityClass with name none was found";
    assert_eq!(create(json!({"priorityClassName": "none"})).run(&priority::Priority).await.unwrap_err(), text);
    assert!(create(json!({"priorityClassName": "high", "priority": 5})).run(&priority::Priority).await.is_err());
}

#[tokio::test]
async fn an_account_that_limits_secrets_limits_every_way_to_name_one() {
    let plugin = service_account::ServiceAccount { rng: Rng::from_seed(1) };
    let account = json!({"metadata": {"name": "sa", "namespace": "default",
        "annotations": {"kubernetes.io/enforce-mountable-secrets": "True"}},
        "secrets": [{"name": "mine"}], "automountServiceAccountToken": false});
    let pod = |list: &str, container: Value| {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"serviceAccountName": "sa"}});
        pod["spec"][list] = json!([container]);
        pod
    };
    let by_key =
        |name: &str| json!({"name": "c", "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": name}}}]});
    let whole = |name: &str| json!({"name": "c", "envFrom": [{"secretRef": {"name": name}}]});
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for (container, allowed) in
            [(by_key("mine"), true), (by_key("other"), false), (whole("mine"), true), (whole("other"), false)]
        {
            let mut made =
                case(Operation::Create, "pods", "p", pod(list, container)).with("", "serviceaccounts", account.clone());
            if list == "ephemeralContainers" {
                made.operation = Operation::Update;
                made.attributes.subresource = list.to_lowercase();
            }
            assert_eq!(made.run(&plugin).await.is_ok(), allowed, "{list}");
        }
    }
}

#[tokio::test]
async fn limit_ranges_fill_in_and_refuse() {
    let range = json!({"metadata": {"name": "r", "namespace": "default"}, "spec": {"limits": [
        {"type": "Container", "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "1"},
        "min": {"cpu": "50m"}}]}});
    let create = |resources: Value| {
        let pod = json!({"metadata": {}, "spec": {"containers": [{"name": "c", "resources": resources}]}});
        case(Operation::Create, "pods", "p", pod).with("", "limitranges", range.clone())
    };
    let made = create(json!({})).run(&limit_ranger::LimitRanger).await.unwrap();
    assert_eq!(
        made["spec"]["containers"][0]["resources"],
        json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "500m"}})
    );
    assert!(made["spec"].get("initContainers").is_none());
    let note = "LimitRanger plugin set: cpu request for container c; cpu limit for container c";
    assert_eq!(made["metadata"]["annotations"]["kubernetes.io/limit-ranger"], note);
    let text = "pods \"p\" is forbidden: maximum cpu usage per Container is 1, but limit is 2";
    assert_eq!(
        create(json!({"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}))
            .run(&limit_ranger::LimitRanger)
            .await
            .unwrap_err(),
        text
    );
}

/// Spec: upstream v1.36 `LimitRanger.SupportsAttributes`.
#[tokio::test]
async fn a_resize_keeps_the_range_and_what_is_dying_is_left_alone() {
    let range = json!({"metadata": {"name": "l", "namespace": "default"},
        "spec": {"limits": [{"type": "Container", "max": {"cpu": "500m"}}]}});
    let pod = |cpu: &str| {
        json!({"metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": cpu}}}]}})
    };
    let resize = |subresource: &str, old: Value| {
        let mut case = case(Operation::Update, "pods", "p", pod("1")).with("", "limitranges", range.clone()).over(old);
        case.attributes.subresource = subresource.into();
        case
    };
    let refused = resize("resize", pod("100m")).run(&limit_ranger::LimitRanger).await.unwrap_err();
    assert_eq!(refused, "pods \"p\" is forbidden: maximum cpu usage per Container is 500m, but limit is 1");
    resize("", pod("100m")).run(&limit_ranger::LimitRanger).await.unwrap();
    let mut dying = pod("100m");
    dying["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    resize("resize", dying).run(&limit_ranger::LimitRanger).await.unwrap();
}

#[tokio::test]
async fn quota_counts_what_is_there_and_names_what_is_missing() {
    let quota = json!({"metadata": {"name": "q", "namespace": "default"},
        "spec": {"hard": {"pods": "2", "requests.cpu": "1"}}});
    let pod = |name: &str, cpu: &str| {
        json!({"metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}})
    };
    let create = |cpu: &str| {
        case(Operation::Create, "pods", "new", pod("new", cpu)).with("", "resourcequotas", quota.clone()).with(
            "",
            "pods",
            pod("a", "600m"),
        )
    };
    create("400m").run(&resource_quota::ResourceQuota::new(None, base::time::Clock::system())).await.unwrap();
    let text = "pods \"new\" is forbidden: exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=600m, \
                limited: requests.cpu=1";
    assert_eq!(
        create("500m").run(&resource_quota::ResourceQuota::new(None, base::time::Clock::system())).await.unwrap_err(),
        text
    );
    let bare = json!({"spec": {"containers": [{"name": "c"}]}});
    let without = case(Operation::Create, "pods", "new", bare).with("", "resourcequotas", quota.clone());
    let text = "pods \"new\" is forbidden: failed quota: q: must specify requests.cpu for: c";
    assert_eq!(
        without.run(&resource_quota::ResourceQuota::new(None, base::time::Clock::system())).await.unwrap_err(),
        text
    );
    let full = create("100m").with("", "pods", pod("b", "100m"));
    assert!(
        full.run(&resource_quota::ResourceQuota::new(None, base::time::Clock::system()))
            .await
            .unwrap_err()
            .contains("requested: pods=1, used: pods=2, limited: pods=2")
    );
}

#[tokio::test]
async fn tolerations_are_added_once_and_only_where_missing() {
    let plugin = default_toleration_seconds::DefaultTolerationSeconds { secs: (300, 300) };
    let own = json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists"});
    let made =
        case(Operation::Create, "pods", "p", json!({"spec": {"tolerations": [own]}})).run(&plugin).await.unwrap();
    let keys: Vec<&str> =
        made["spec"]["tolerations"].as_array().unwrap().iter().filter_map(|t| t["key"].as_str()).collect();
    assert_eq!(keys, ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]);
    assert_eq!(case(Operation::Update, "pods", "p", made.clone()).run(&plugin).await.unwrap(), made);
}

#[tokio::test]
async fn the_plugins_that_must_be_enabled_do_as_upstreams() {
    let pod = |spec: Value| case(Operation::Create, "pods", "p", json!({ "spec": spec }));
    let made = pod(json!({"containers": [{"image": "a", "imagePullPolicy": "IfNotPresent"}]}))
        .run(&always_pull_images::AlwaysPullImages);
    assert_eq!(made.await.unwrap()["spec"]["containers"][0]["imagePullPolicy"], "Always");

    let service = |ips: Value| case(Operation::Create, "services", "s", json!({ "spec": { "externalIPs": ips } }));
    let text = "services \"s\" is forbidden: Use of external IPs is denied by admission control.";
    assert_eq!(service(json!(["192.0.2.1"])).run(&deny_external_ips::DenyServiceExternalIPs).await.unwrap_err(), text);
    service(json!([])).run(&deny_external_ips::DenyServiceExternalIPs).await.unwrap();
    let kept = service(json!(["192.0.2.1"])).over(json!({"spec": {"externalIPs": ["192.0.2.1"]}}));
    kept.run(&deny_external_ips::DenyServiceExternalIPs).await.unwrap();

    let asks = json!({"containers": [{"resources": {"requests": {"example.com/gpu": "1", "cpu": "1",
        "kubernetes.io/x": "1"}}}]});
    let made = pod(asks).run(&extended_resource_toleration::ExtendedResourceToleration).await.unwrap();
    assert_eq!(made["spec"]["tolerations"], json!([{"key": "example.com/gpu", "operator": "Exists"}]));

    let node = json!({"metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "z", "other": "x"}}});
    let mut binding = case(Operation::Create, "pods", "p", json!({"spec": {"nodeName": "n"}})).with("", "nodes", node);
    binding.attributes.namespace = "default".into();
    let made = binding.run(&pod_topology_labels::PodTopologyLabels).await.unwrap();
    assert_eq!(made["metadata"]["labels"], json!({"topology.kubernetes.io/zone": "z"}));
}

#[tokio::test]
async fn a_namespaces_node_selector_joins_its_pods_and_conflicts_are_refused() {
    let config = json!({"podNodeSelectorPluginConfig": {"clusterDefaultNodeSelector": "disk=ssd",
        "default": "disk=ssd,team=a"}});
    let plugin = pod_node_selector::PodNodeSelector(pod_node_selector::Selectors::of(&config, "").unwrap());
    let pod = |selector: Value, annotation: Option<&str>| {
        let mut namespace = namespace("Active");
        if let Some(text) = annotation {
            namespace["metadata"]["annotations"] = json!({"scheduler.alpha.kubernetes.io/node-selector": text});
        }
        case(Operation::Create, "pods", "p", json!({"spec": {"nodeSelector": selector}})).with(
            "",
            "namespaces",
            namespace,
        )
    };
    let made = pod(Value::Null, None).run(&plugin).await.unwrap();
    assert_eq!(made["spec"]["nodeSelector"], json!({"disk": "ssd"}));
    let made = pod(json!({"team": "a"}), Some("disk=ssd")).run(&plugin).await.unwrap();
    assert_eq!(made["spec"]["nodeSelector"], json!({"disk": "ssd", "team": "a"}));
    let text = pod(json!({"disk": "hdd"}), None).run(&plugin).await.unwrap_err();
    assert_eq!(
        text,
        "pods \"p\" is forbidden: pod node label selector conflicts with its namespace node label selector"
    );
    let text = pod(json!({"team": "b"}), None).run(&plugin).await.unwrap_err();
    assert_eq!(text, "pods \"p\" is forbidden: pod node label selector labels conflict with its namespace whitelist");
}

#[tokio::test]
async fn events_beyond_the_rate_are_refused() {
    let config = json!({"apiVersion": "eventratelimit.admission.k8s.io/v1alpha1", "kind": "Configuration",
        "limits": [{"type": "User", "qps": 1, "burst": 2}, {"type": "Server", "qps": 1, "burst": 50}]});
    let plugin = event_rate_limit::EventRateLimit::new(&event_rate_limit::Limit::all_of(&config, "").unwrap());
    let event = || case(Operation::Create, "events", "e", json!({}));
    // A slow machine may earn some back on the way: the bucket is empty soon nevertheless.
    let mut refused = None;
    for _ in 0..40 {
        if let Err(text) = event().run(&plugin).await {
            refused = Some(text);
            break;
        }
    }
    assert_eq!(refused.unwrap(), "Too many requests: Too many requests: limit reached on type User for key bob");
    event().by("n1").run(&plugin).await.unwrap();
}

#[tokio::test]
async fn an_owner_is_named_by_who_may_delete_the_object_and_blocked_by_who_may_finalize_the_owner() {
    struct May(&'static [(&'static str, &'static str)]);
    #[async_trait]
    impl authz::Authorizer for May {
        async fn authorize(&self, a: &Attributes) -> authz::Decision {
            let reason = String::new();
            match self.0.contains(&(a.verb.as_str(), a.resource_path().as_str())) {
                true => authz::Decision::Allow { reason },
                false => authz::Decision::NoOpinion { reason },
            }
        }
    }
    let owned = || {
        let owner =
            json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "blockOwnerDeletion": true});
        case(Operation::Create, "pods", "p", json!({"metadata": {"ownerReferences": [owner]}}))
    };
    let plugin = |may| owner_references::OwnerReferencesPermissionEnforcement(std::sync::Arc::new(May(may)));
    let text = owned().run(&plugin(&[])).await.unwrap_err();
    assert_eq!(text, "pods \"p\" is forbidden: cannot set an ownerRef on a resource you can't delete: , <nil>");
    let text = owned().run(&plugin(&[("delete", "pods")])).await.unwrap_err();
    assert!(text.contains("refers to a resource you can't set finalizers on"), "{text}");
    owned().run(&plugin(&[("delete", "pods"), ("update", "replicasets/finalizers")])).await.unwrap();
}

#[tokio::test]
async fn a_namespaces_tolerations_join_its_pods_and_a_list_bounds_them() {
    let config = json!({"apiVersion": "podtolerationrestriction.admission.k8s.io/v1alpha1", "kind": "Configuration",
        "default": [{"key": "cluster", "operator": "Exists"}],
        "whitelist": [{"key": "cluster", "operator": "Exists"}]});
    let plugin = pod_toleration_restriction::PodTolerationRestriction(
        pod_toleration_restriction::Tolerations::of(&config, "").unwrap(),
    );
    let pod = |annotations: Value, tolerations: Value| {
        let mut namespace = namespace("Active");
        namespace["metadata"]["annotations"] = annotations;
        case(Operation::Create, "pods", "p", json!({"spec": {"tolerations": tolerations}})).with(
            "",
            "namespaces",
            namespace,
        )
    };
    let made = pod(Value::Null, Value::Null).run(&plugin).await.unwrap();
    assert_eq!(made["spec"]["tolerations"], config["default"]);
    let own = json!({"scheduler.alpha.kubernetes.io/defaultTolerations": "[{\"key\":\"a\",\"operator\":\"Exists\"}]",
                     "scheduler.alpha.kubernetes.io/tolerationsWhitelist": r#"[{"key":"a","operator":"Exists"}]"#});
    let made = pod(own.clone(), Value::Null).run(&plugin).await.unwrap();
    assert_eq!(made["spec"]["tolerations"], json!([{"key": "a", "operator": "Exists"}]));
    let text =
        "pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist";
    assert_eq!(pod(own, json!([{"key": "b", "operator": "Exists"}])).run(&plugin).await.unwrap_err(), text);
    let empty = json!({"scheduler.alpha.kubernetes.io/defaultTolerations": "",
        "scheduler.alpha.kubernetes.io/tolerationsWhitelist": ""});
    assert!(
        pod(empty, json!([{"key": "b", "operator": "Exists"}])).run(&plugin).await.is_ok(),
        "an empty list bounds nothing"
    );
    let broken = json!({"scheduler.alpha.kubernetes.io/defaultTolerations": "{"});
    assert!(pod(broken, Value::Null).run(&plugin).await.is_err());
}

#[tokio::test]
async fn what_is_asked_of_a_namespace_that_is_not_there_is_refused_also_when_deleting() {
    let plugin = namespaces::NamespaceExists;
    let delete = || case(Operation::Delete, "pods", "p", Value::Null);
    assert_eq!(delete().run(&plugin).await.unwrap_err(), "namespaces \"default\" not found");
    delete().with("", "namespaces", namespace("Terminating")).run(&plugin).await.unwrap();
    let itself = case(Operation::Create, "namespaces", "default", json!({}));
    itself.run(&plugin).await.unwrap();
}

#[tokio::test]
async fn who_vouches_for_a_signer_may_attest() {
    struct May(bool);
    #[async_trait]
    impl authz::Authorizer for May {
        async fn authorize(&self, a: &Attributes) -> authz::Decision {
            assert_eq!((a.verb.as_str(), a.resource.as_str()), ("attest", "signers"));
            let reason = String::new();
            if self.0 { authz::Decision::Allow { reason } } else { authz::Decision::NoOpinion { reason } }
        }
    }
    let bundle = |signer: &str| {
        let mut case = case(Operation::Create, "clustertrustbundles", "b", json!({"spec": {"signerName": signer}}));
        case.attributes.group = "certificates.k8s.io".into();
        case
    };
    let plugin = |may: bool| certificates::Attest(std::sync::Arc::new(May(may)));
    let text = bundle("a.b/c").run(&plugin(false)).await.unwrap_err();
    assert_eq!(
        text,
        "clustertrustbundles.certificates.k8s.io \"b\" is forbidden: user not permitted to attest for signerName \
         \"a.b/c\""
    );
    bundle("a.b/c").run(&plugin(true)).await.unwrap();
    bundle("").run(&plugin(false)).await.unwrap();
    let mut touched = bundle("a.b/c").over(json!({"spec": {"signerName": "a.b/c"}}));
    touched.operation = Operation::Update;
    touched.object["metadata"] = json!({"finalizers": ["x"]});
    touched.old.as_mut().unwrap()["metadata"] = json!({});
    touched.run(&plugin(false)).await.unwrap();
}

#[tokio::test]
async fn a_pod_is_not_resized_beyond_what_its_node_can() {
    let pod = |cpu: &str, whole: Value| {
        json!({"spec": {"nodeName": "n", "resources": whole,
        "containers": [{"resources": {"requests": {"cpu": cpu}}}]}})
    };
    let node = |features: Value| {
        let status = json!({"allocatable": {"cpu": "2", "memory": "1Gi"}, "declaredFeatures": features});
        json!({"metadata": {"name": "n", "namespace": ""}, "status": status})
    };
    let resize = |new: Value, features: Value| {
        let mut case =
            case(Operation::Update, "pods", "p", new).over(pod("1", Value::Null)).with("", "nodes", node(features));
        case.attributes.subresource = "resize".into();
        case
    };
    let capacity = pod_resize::PodResizeValidator;
    resize(pod("2", Value::Null), json!([])).run(&capacity).await.unwrap();
    let text = resize(pod("3", Value::Null), json!([])).run(&capacity).await.unwrap_err();
    let wanted = "pods \"p\" is forbidden: node didn't have enough allocatable resources: cpu, requested: 3000, \
                  allocatable: 2000";
    assert_eq!(text, wanted);
    let features = node_declared_features::NodeDeclaredFeatureValidator;
    let whole = json!({"limits": {"cpu": "2"}});
    resize(pod("2", Value::Null), json!([])).run(&features).await.unwrap();
    let text = resize(pod("1", whole.clone()), json!(["Other"])).run(&features).await.unwrap_err();
    let wanted = "pods \"p\" is forbidden: pod update requires features InPlacePodLevelResourcesVerticalScaling which \
                  are not available on node \"n\"";
    assert_eq!(text, wanted);
    resize(pod("1", whole), json!(["InPlacePodLevelResourcesVerticalScaling"])).run(&features).await.unwrap();
}

#[tokio::test]
async fn hard_anti_affinity_reaches_no_further_than_a_node() {
    let plugin = anti_affinity::LimitPodHardAntiAffinityTopology;
    let pod = |topology: &str| {
        let terms = json!([{"topologyKey": topology}]);
        let affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
        case(Operation::Create, "pods", "p", json!({"spec": {"affinity": affinity}}))
    };
    pod("kubernetes.io/hostname").run(&plugin).await.unwrap();
    let text = pod("zone").run(&plugin).await.unwrap_err();
    assert!(
        text.contains(
            "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey zone but only key \
             kubernetes.io/hostname is allowed"
        ),
        "{text}"
    );
}
