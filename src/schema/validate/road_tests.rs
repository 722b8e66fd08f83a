//! Plain manifests through decode, default, strategy, validate and tracking, as the server does it.

use model::meta;
use serde_json::{Value, json};

use crate::apply::versions::Only;
use crate::catalog::Catalog;
use crate::decode::{FieldValidation, conform};
use crate::table::Resource;
use crate::{apply, defaults, patch, strategy, validate};

/// What `kubectl create --dry-run=client` and the documentation's first pages send.
const MANIFESTS: &str = r#"
{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"web","creationTimestamp":null,"labels":{"app":"web"}},"spec":{"replicas":3,"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"creationTimestamp":null,"labels":{"app":"web"}},"spec":{"containers":[{"name":"nginx","image":"nginx","ports":[{"containerPort":80}],"resources":{}}]}},"strategy":{}},"status":{}}
{"kind":"Job","apiVersion":"batch/v1","metadata":{"name":"j","creationTimestamp":null},"spec":{"template":{"metadata":{"creationTimestamp":null},"spec":{"containers":[{"name":"j","image":"busybox","command":["echo","hi"],"resources":{}}],"restartPolicy":"Never"}}},"status":{}}
{"kind":"CronJob","apiVersion":"batch/v1","metadata":{"name":"c","creationTimestamp":null},"spec":{"schedule":"*/5 * * * *","jobTemplate":{"metadata":{"name":"c","creationTimestamp":null},"spec":{"template":{"metadata":{"creationTimestamp":null},"spec":{"containers":[{"name":"c","image":"busybox","command":["date"],"resources":{}}],"restartPolicy":"OnFailure"}}}}},"status":{}}
{"kind":"Service","apiVersion":"v1","metadata":{"name":"s","creationTimestamp":null,"labels":{"app":"s"}},"spec":{"ports":[{"name":"80-8080","protocol":"TCP","port":80,"targetPort":8080}],"selector":{"app":"s"},"type":"ClusterIP"},"status":{"loadBalancer":{}}}
{"kind":"Service","apiVersion":"v1","metadata":{"name":"np","creationTimestamp":null,"labels":{"app":"np"}},"spec":{"ports":[{"name":"80-8080","protocol":"TCP","port":80,"targetPort":8080,"nodePort":30080}],"selector":{"app":"np"},"type":"NodePort"},"status":{"loadBalancer":{}}}
{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"cm","creationTimestamp":null},"data":{"a":"b"}}
{"kind":"Secret","apiVersion":"v1","metadata":{"name":"sec","creationTimestamp":null},"data":{"a":"Yg=="}}
{"kind":"RoleBinding","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"rb","creationTimestamp":null},"subjects":[{"kind":"ServiceAccount","name":"default","namespace":"default"}],"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"r"}}
{"kind":"ClusterRoleBinding","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"crb","creationTimestamp":null},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"me"}],"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"}}
{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"foo","creationTimestamp":null},"spec":{},"status":{}}
{"kind":"Ingress","apiVersion":"networking.k8s.io/v1","metadata":{"name":"ing","creationTimestamp":null},"spec":{"rules":[{"host":"a.com","http":{"paths":[{"path":"/","pathType":"Prefix","backend":{"service":{"name":"svc","port":{"number":80}}}}]}}]},"status":{"loadBalancer":{}}}
{"kind":"PodDisruptionBudget","apiVersion":"policy/v1","metadata":{"name":"p","creationTimestamp":null},"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"b"}}},"status":{"disruptionsAllowed":0,"currentHealthy":0,"desiredHealthy":0,"expectedPods":0}}
{"kind":"ResourceQuota","apiVersion":"v1","metadata":{"name":"q","creationTimestamp":null},"spec":{"hard":{"cpu":"1","pods":"2"}},"status":{}}
{"kind":"PriorityClass","apiVersion":"scheduling.k8s.io/v1","metadata":{"name":"pc","creationTimestamp":null},"value":100,"preemptionPolicy":"PreemptLowerPriority"}
{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"p","image":"nginx","env":[{"name":"X","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}],"livenessProbe":{"httpGet":{"path":"/","port":80}},"resources":{"requests":{"cpu":"100m"}},"volumeMounts":[{"name":"d","mountPath":"/d"}]}],"initContainers":[{"name":"s","image":"x","restartPolicy":"Always"}],"tolerations":[{"operator":"Exists"}],"volumes":[{"name":"d"},{"name":"c","configMap":{"name":"x"}}]}}
{"apiVersion":"apps/v1","kind":"DaemonSet","metadata":{"name":"ds"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"hostNetwork":true,"containers":[{"name":"p","image":"nginx","ports":[{"containerPort":80}]}]}}}}
{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"ss"},"spec":{"serviceName":"ss","selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"p","image":"nginx"}]}},"volumeClaimTemplates":[{"metadata":{"name":"d"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}]}}
{"apiVersion":"autoscaling/v2","kind":"HorizontalPodAutoscaler","metadata":{"name":"h"},"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"web"}}}
{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"n"},"spec":{"podSelector":{},"ingress":[{"from":[{"podSelector":{}}],"ports":[{"port":80}]}]}}
{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"n"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}
{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":"n"},"provisioner":"x/y"}
{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"n"},"spec":{"holderIdentity":"x","leaseDurationSeconds":15,"renewTime":"2026-11-21T04:12:00.123456Z"}}
{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"n"},"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"]}],"ports":[{"name":"","port":80}]}
{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"},"spec":{"podCIDR":"10.42.0.0/24","podCIDRs":["10.42.0.0/24"],"taints":[{"key":"a","effect":"NoSchedule"}]}}
{"apiVersion":"v1","kind":"LimitRange","metadata":{"name":"n"},"spec":{"limits":[{"type":"Container","default":{"cpu":"1"},"defaultRequest":{"cpu":"500m"}}]}}
{"apiVersion":"v1","kind":"Event","metadata":{"name":"n"},"involvedObject":{"kind":"Pod","name":"x","namespace":"default"},"reason":"r","type":"Normal"}
"#;

fn resource(object: &Value) -> &'static Resource {
    Catalog::builtin().by_api_version(meta::api_version(object), meta::kind(object)).unwrap()
}

/// The object as the server stores it on create.
fn stored(manifest: &Value) -> Value {
    let r = resource(manifest);
    let mut object = conform(manifest.clone(), r.type_def(), FieldValidation::Ignore).unwrap().value;
    if r.namespaced {
        meta::set_namespace(&mut object, "default");
    }
    defaults::apply(r, &mut object);
    strategy::prepare_for_create(r, &mut object);
    if meta::kind(&object) == "Job" {
        // The server generates a job's selector from its uid.
        object["spec"]["selector"] = json!({"matchLabels": {"controller-uid": "u"}});
        object["spec"]["template"]["metadata"]["labels"] = json!({"controller-uid": "u"});
    }
    object
}

fn request<'a>(r: &'a Resource, api_version: &'a str) -> apply::Request<'a> {
    apply::Request {
        type_def: r.type_def(),
        api_version,
        subresource: "",
        manager: "kubectl-create",
        now: "2026-11-21T05:00:00Z",
        reset: r.behaviour.owners.update,
        only: &[],
    }
}

#[test]
fn plain_manifests_are_accepted() {
    let mut bad = Vec::new();
    for line in MANIFESTS.lines().filter(|l| !l.is_empty()) {
        let object = stored(&serde_json::from_str(line).unwrap());
        let errors = validate::create(resource(&object), &object);
        bad.extend(errors.iter().map(|e| format!("{}: {e}", meta::kind(&object))));
        let mut again = object.clone();
        meta::set_resource_version(&mut again, "1");
        let errors = validate::update(resource(&object), &again, &again);
        bad.extend(errors.iter().map(|e| format!("{} again: {e}", meta::kind(&object))));
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

fn deployment() -> Value {
    let line = MANIFESTS.lines().find(|l| l.contains("\"kind\":\"Deployment\",") && l.contains("apps/v1")).unwrap();
    stored(&serde_json::from_str(line).unwrap())
}

#[test]
fn a_created_deployment_is_owned_as_upstream_shows_it() {
    let mut object = deployment();
    let r = resource(&object);
    apply::track_update(&request(r, "apps/v1"), &mut Only, None, &mut object);
    let want = json!({
        "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
        "f:spec": {
            "f:progressDeadlineSeconds": {}, "f:replicas": {}, "f:revisionHistoryLimit": {}, "f:selector": {},
            "f:strategy": {"f:rollingUpdate": {".": {}, "f:maxSurge": {}, "f:maxUnavailable": {}}, "f:type": {}},
            "f:template": {
                "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                "f:spec": {
                    "f:containers": {"k:{\"name\":\"nginx\"}": {".": {}, "f:image": {}, "f:imagePullPolicy": {}, "f:name": {},
                        "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:protocol": {}}},
                        "f:resources": {}, "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {}}},
                    "f:dnsPolicy": {}, "f:restartPolicy": {}, "f:schedulerName": {}, "f:securityContext": {}, "f:terminationGracePeriodSeconds": {}
                }
            }
        }
    });
    assert_eq!(meta::managed_fields(&object)[0]["fieldsV1"], want);
}

#[test]
fn a_strategic_patch_of_a_deployment_merges_containers_and_ports() {
    let object = deployment();
    let change = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "nginx", "image": "nginx:2"}, {"name": "side", "image": "s"}]}}, "strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
    let out = patch::strategic(resource(&object).type_def(), &object, &change).unwrap();
    let containers = &out["spec"]["template"]["spec"]["containers"];
    assert_eq!((&containers[0]["image"], &containers[1]["name"]), (&json!("nginx:2"), &json!("side")));
    assert_eq!(containers[0]["ports"][0]["containerPort"], 80);
    assert_eq!(out["spec"]["strategy"], json!({"type": "Recreate"}));
}

#[test]
fn status_writes_are_owned_apart_from_the_spec() {
    let mut object = deployment();
    let r = resource(&object);
    apply::track_update(&request(r, "apps/v1"), &mut Only, None, &mut object);
    let mut new = object.clone();
    new["status"]["replicas"] = json!(3);
    let of_status = apply::Request {
        subresource: "status",
        manager: "controller",
        now: "2026-11-21T05:00:01Z",
        reset: &[&["spec"]],
        ..request(r, "apps/v1")
    };
    apply::track_update(&of_status, &mut Only, Some(&object), &mut new);
    let entry = &meta::managed_fields(&new)[1];
    assert_eq!(
        (&entry["subresource"], &entry["fieldsV1"]),
        (&json!("status"), &json!({"f:status": {"f:replicas": {}}}))
    );
}
