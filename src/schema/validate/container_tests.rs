//! Containers right and wrong, as `validation_test.go` of upstream v1.36 has them (`pkg/apis/core/validation`).

use serde_json::{Value, json};

use crate::validate::path::Path;
use crate::validate::pod;

/// The errors of a pod's spec; the path of its first container is left out.
fn wrong(spec: Value) -> Vec<String> {
    let mut errors = Vec::new();
    pod::pod_spec(&spec, Path("spec"), &mut errors);
    errors.iter().map(|error| error.to_string().replace("spec.containers[0]", "")).collect()
}

/// A container with these fields beside its name and image.
fn with(fields: Value) -> Value {
    let mut container = json!({"name": "c", "image": "i"});
    container.as_object_mut().unwrap().append(fields.clone().as_object_mut().unwrap());
    container
}

/// The errors of a pod of one such container.
fn wrong_with(fields: Value) -> Vec<String> {
    wrong(json!({"containers": [with(fields)]}))
}

/// `TestValidateContainers`
#[test]
fn containers_have_names_and_images() {
    assert_eq!(wrong_with(json!({})), [""; 0]);
    assert_eq!(wrong(json!({"containers": [{"name": "", "image": "i"}]})), [".name: Required value"]);
    assert_eq!(wrong(json!({"containers": [{"name": "c"}]})), [".image: Required value"]);
    let space = "must not have leading or trailing whitespace";
    assert_eq!(wrong_with(json!({"image": " i"})), [format!(".image: Invalid value: \" i\": {space}")]);
    let twice = json!({"containers": [with(json!({}))], "initContainers": [with(json!({}))]});
    assert_eq!(wrong(twice), ["spec.initContainers[0].name: Duplicate value: \"c\""]);
    let policy = wrong_with(json!({"imagePullPolicy": "Odd"}));
    assert_eq!(
        policy,
        [".imagePullPolicy: Unsupported value: \"Odd\": supported values: \"Always\", \"IfNotPresent\", \"Never\""]
    );
}

/// `TestValidateContainerPorts`
#[test]
fn ports_have_numbers_names_and_protocols() {
    let range = "must be between 1 and 65535, inclusive";
    for (port, said) in [
        (json!({"name": "abc", "containerPort": 80, "hostPort": 80, "protocol": "TCP"}), vec![]),
        (json!({"containerPort": 85, "protocol": "SCTP"}), vec![]),
        (json!({"containerPort": 0}), vec![".ports[0].containerPort: Required value".to_owned()]),
        (json!({"containerPort": 65536}), vec![format!(".ports[0].containerPort: Invalid value: 65536: {range}")]),
        (
            json!({"containerPort": 80, "hostPort": 65536}),
            vec![format!(".ports[0].hostPort: Invalid value: 65536: {range}")],
        ),
        (
            json!({"containerPort": 80, "protocol": "ICMP"}),
            vec![
                ".ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\""
                    .to_owned(),
            ],
        ),
        (
            json!({"name": "a-very-long-name", "containerPort": 80}),
            vec![".ports[0].name: Invalid value: \"a-very-long-name\": must be no more than 15 characters".to_owned()],
        ),
    ] {
        assert_eq!(wrong_with(json!({"ports": [port]})), said, "{port}");
    }
    let same = json!({"ports": [{"name": "a", "containerPort": 1}, {"name": "a", "containerPort": 2}]});
    assert_eq!(wrong_with(same), [".ports[1].name: Duplicate value: \"a\""]);
    let host = json!({"containerPort": 80, "hostPort": 81, "protocol": "TCP"});
    assert_eq!(
        wrong(json!({"hostNetwork": true, "containers": [with(json!({"ports": [host]}))]})),
        [".ports[0].hostPort: Invalid value: 81: must match `containerPort` when `hostNetwork` is true"]
    );
    let twice = json!({"ports": [host, host]});
    assert_eq!(wrong_with(twice.clone()), [".ports[1].hostPort: Duplicate value: \"TCP//81\""]);
    // Those of init containers are free again when the next one starts.
    let inits: Vec<Value> = ["x", "y"].map(|name| with(json!({"name": name, "ports": [host]}))).into();
    assert_eq!(wrong(json!({"initContainers": inits, "containers": [with(json!({}))]})), [""; 0]);
}

/// `TestValidateVolumeMounts`
#[test]
fn mounts_name_volumes_and_places() {
    let volumes = json!([{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}},
        {"name": "b", "persistentVolumeClaim": {"claimName": "c"}}]);
    let mounted = |mount: Value| {
        wrong(json!({"volumes": volumes,
        "containers": [with(json!({"volumeMounts": [mount]}))]}))
    };
    let propagation = ".volumeMounts.mountPropagation";
    for (mount, said) in [
        (json!({"name": "v", "mountPath": "/v", "subPath": "a..b/c"}), &[][..]),
        (
            json!({"mountPath": "/v"}),
            &[".volumeMounts[0].name: Required value", ".volumeMounts[0].name: Not found: \"\""],
        ),
        (json!({"name": "x", "mountPath": "/v"}), &[".volumeMounts[0].name: Not found: \"x\""]),
        (json!({"name": "v", "mountPath": ""}), &[".volumeMounts[0].mountPath: Required value"]),
        (
            json!({"name": "v", "mountPath": "/v", "subPath": "/a"}),
            &[".volumeMounts.subPath: Invalid value: \"/a\": must be a relative path"],
        ),
        (
            json!({"name": "v", "mountPath": "/v", "subPath": "a/../b"}),
            &[".volumeMounts.subPath: Invalid value: \"a/../b\": must not contain '..'"],
        ),
        (
            json!({"name": "v", "mountPath": "/v", "subPath": "a", "subPathExpr": "$(A)"}),
            &[".volumeMounts[0].subPathExpr: Invalid value: \"$(A)\": subPathExpr and subPath are mutually exclusive"],
        ),
        (
            json!({"name": "v", "mountPath": "/v", "recursiveReadOnly": "Enabled"}),
            &[".volumeMounts.recursiveReadOnly: Forbidden: may only be specified when readOnly is true"],
        ),
        (
            json!({"name": "v", "mountPath": "/v", "recursiveReadOnly": "Enabled", "readOnly": true,
                "mountPropagation": "HostToContainer"}),
            &[".volumeMounts.recursiveReadOnly: Forbidden: may only be specified when mountPropagation is None or \
               not specified"],
        ),
    ] {
        assert_eq!(mounted(mount.clone()), said, "{mount}");
    }
    assert_eq!(
        mounted(json!({"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"})),
        [format!(
            "{propagation}: Forbidden: Bidirectional mount propagation is available only to privileged \
            containers"
        )]
    );
    assert_eq!(
        mounted(json!({"name": "v", "mountPath": "/v", "mountPropagation": "Odd"})),
        [format!(
            "{propagation}: Unsupported value: \"Odd\": supported values: \"Bidirectional\", \"HostToContainer\", \
            \"None\""
        )]
    );
}

/// `TestValidateVolumeMounts`
#[test]
fn places_of_mounts_and_devices_are_told_apart() {
    let volumes = json!([{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}},
        {"name": "b", "persistentVolumeClaim": {"claimName": "c"}}]);
    let both = |mounts: Value, devices: Value| {
        let container = with(json!({"volumeMounts": mounts, "volumeDevices": devices}));
        wrong(json!({"volumes": volumes, "containers": [container]}))
    };
    let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
    let device = |name: &str, path: &str| json!({"name": name, "devicePath": path});
    assert_eq!(
        both(json!([mount("v", "/v"), mount("w", "/v")]), json!([])),
        [".volumeMounts[1].mountPath: Invalid value: \"/v\": must be unique"]
    );
    assert_eq!(both(json!([mount("v", "/v")]), json!([device("b", "/dev/x")])), [""; 0]);
    assert_eq!(
        both(json!([mount("b", "/dev/x")]), json!([device("b", "/dev/x")])),
        [
            ".volumeMounts[0].name: Invalid value: \"b\": must not already exist in volumeDevices",
            ".volumeMounts[0].mountPath: Invalid value: \"/dev/x\": must not already exist as a path in volumeDevices",
            ".volumeDevices[0].name: Invalid value: \"b\": must not already exist in volumeMounts",
            ".volumeDevices[0].devicePath: Invalid value: \"/dev/x\": must not already exist as a path in volumeMounts",
        ]
    );
}

/// `TestAlphaValidateVolumeDevices`
#[test]
fn devices_are_claims() {
    let volumes = json!([{"name": "v", "emptyDir": {}}, {"name": "b", "persistentVolumeClaim": {"claimName": "c"}}]);
    let devices =
        |devices: Value| wrong(json!({"volumes": volumes, "containers": [with(json!({"volumeDevices": devices}))]}));
    let at = ".volumeDevices[0]";
    for (device, said) in [
        (json!({"name": "b", "devicePath": "/x"}), vec![]),
        (
            json!({"name": "v", "devicePath": "/x"}),
            vec![format!(
                "{at}.name: Invalid value: \"v\": can only use volume source type of PersistentVolumeClaim or \
                Ephemeral \
                 for block mode"
            )],
        ),
        (json!({"name": "x", "devicePath": "/x"}), vec![format!("{at}.name: Not found: \"x\"")]),
        (json!({"name": "b", "devicePath": ""}), vec![format!("{at}.devicePath: Required value")]),
        (
            json!({"name": "b", "devicePath": "/x/../y"}),
            vec![format!("{at}.devicePath: Invalid value: \"/x/../y\": can not contain backsteps ('..')")],
        ),
    ] {
        assert_eq!(devices(json!([device])), said, "{device}");
    }
    assert_eq!(
        devices(json!([{"name": "b", "devicePath": "/x"}, {"name": "b", "devicePath": "/x"}])),
        [
            ".volumeDevices[1].name: Invalid value: \"b\": must be unique",
            ".volumeDevices[1].devicePath: Invalid value: \"/x\": must be unique",
        ]
    );
}

/// `TestValidateProbe`, `TestValidateHandler`
#[test]
fn probes_ask_in_one_way() {
    let probe = |kind: &str, probe: Value| wrong_with(json!({kind: probe}));
    for (given, said) in [
        (json!({"exec": {"command": ["true"]}}), &[][..]),
        (json!({"grpc": {"port": 80}}), &[]),
        (json!({"tcpSocket": {"port": "web"}}), &[]),
        (json!({}), &[".livenessProbe: Required value: must specify a handler type"]),
        (json!({"exec": {"command": []}}), &[".livenessProbe.exec.command: Required value"]),
        (
            json!({"exec": {"command": ["a"]}, "tcpSocket": {"port": 0}}),
            &[".livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type"],
        ),
        (
            json!({"httpGet": {"path": "", "port": 0, "scheme": "FTP"}}),
            &[
                ".livenessProbe.httpGet.path: Required value",
                ".livenessProbe.httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive",
                ".livenessProbe.httpGet.scheme: Unsupported value: \"FTP\": supported values: \"HTTP\", \"HTTPS\"",
            ],
        ),
        (
            json!({"exec": {"command": ["a"]}, "periodSeconds": -1, "successThreshold": 2}),
            &[
                ".livenessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0",
                ".livenessProbe.successThreshold: Invalid value: 2: must be 1",
            ],
        ),
        (
            json!({"exec": {"command": ["a"]}, "terminationGracePeriodSeconds": 0}),
            &[".livenessProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0"],
        ),
    ] {
        assert_eq!(probe("livenessProbe", given.clone()), said, "{given}");
    }
    let ready = json!({"exec": {"command": ["a"]}, "successThreshold": 2, "terminationGracePeriodSeconds": 5});
    assert_eq!(
        probe("readinessProbe", ready),
        [".readinessProbe.terminationGracePeriodSeconds: Invalid value: 5: must not be set for readinessProbes"]
    );
    let header = json!({"httpGet": {"path": "/", "port": 80, "httpHeaders": [{"name": "a b", "value": "c"}]}});
    let said = probe("startupProbe", header);
    assert!(
        said[0].starts_with(
            ".startupProbe.httpGet.httpHeaders: Invalid value: \"a b\": a valid HTTP \
        header"
        ),
        "{said:?}"
    );
}

#[test]
fn hooks_sleep_no_longer_than_the_pod_has() {
    let sleep = |secs: i64| {
        let hook = json!({"lifecycle": {"preStop": {"sleep": {"seconds": secs}}}});
        wrong(json!({"terminationGracePeriodSeconds": 30, "containers": [with(hook)]}))
    };
    assert_eq!((sleep(0), sleep(30)), (Vec::new(), Vec::new()));
    for secs in [-1, 31] {
        let why = "must be non-negative and less than terminationGracePeriodSeconds (30)";
        assert_eq!(sleep(secs), [format!(".lifecycle.preStop.sleep: Invalid value: {secs}: {why}")]);
    }
    assert_eq!(
        wrong_with(json!({"lifecycle": {"postStart": {}}})),
        [".lifecycle.postStart: Required value: must specify a handler type"]
    );
}

/// `TestValidateInitContainers`, `TestValidateEphemeralContainers`
#[test]
fn containers_that_end_have_no_probes() {
    let init = |fields: Value| {
        let container = with(json!({"name": "i"}));
        let mut container = container;
        container.as_object_mut().unwrap().append(fields.clone().as_object_mut().unwrap());
        wrong(json!({"initContainers": [container], "containers": [with(json!({}))]}))
    };
    let probe = json!({"tcpSocket": {"port": 80}});
    assert_eq!(init(json!({"restartPolicy": "Always", "startupProbe": probe})), [""; 0]);
    for field in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let why = "may not be set for init containers without restartPolicy=Always";
        assert_eq!(init(json!({field: probe})), [format!("spec.initContainers[0].{field}: Forbidden: {why}")]);
    }
    let debugger = |fields: Value| {
        let mut container = with(json!({"name": "d"}));
        container.as_object_mut().unwrap().append(fields.clone().as_object_mut().unwrap());
        wrong(json!({"ephemeralContainers": [container], "containers": [with(json!({}))]}))
    };
    assert_eq!(debugger(json!({"targetContainerName": "c"})), [""; 0]);
    assert_eq!(
        debugger(json!({"targetContainerName": "x"})),
        ["spec.ephemeralContainers[0].targetContainerName: Not found: \"x\""]
    );
    for (field, value) in [("ports", json!([{"containerPort": 1}])), ("resources", json!({"limits": {"cpu": "1"}}))] {
        let why = "cannot be set for an Ephemeral Container";
        assert_eq!(debugger(json!({field: value})), [format!("spec.ephemeralContainers[0].{field}: Forbidden: {why}")]);
    }
}

/// `TestValidateResourceRequirements`
#[test]
fn limits_are_not_below_requests() {
    for (resources, said) in [
        (json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}), &[][..]),
        (json!({"requests": {"memory": "1Gi"}}), &[]),
        (
            json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
            &[".resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1"],
        ),
        (
            json!({"limits": {"memory": "-1"}}),
            &[".resources.limits[memory]: Invalid value: \"-1\": must be greater than or equal to 0"],
        ),
        (
            json!({"requests": {"odd": "1"}, "limits": {"odd": "1"}}),
            &[
                ".resources.limits: Invalid value: \"odd\": must be a standard resource for containers",
                ".resources.requests: Invalid value: \"odd\": must be a standard resource for containers",
            ],
        ),
        (
            json!({"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "2"}}),
            &[".resources.requests: Invalid value: \"1\": must be equal to example.com/gpu limit of 2"],
        ),
        (
            json!({"limits": {"example.com/gpu": "500m"}}),
            &[".resources.limits[example.com/gpu]: Invalid value: \"500m\": must be an integer"],
        ),
        (
            json!({"requests": {"hugepages-2Mi": "2Mi"}}),
            &[".resources.limits: Required value: Limit must be set for non overcommitable resources"],
        ),
    ] {
        assert_eq!(wrong_with(json!({"resources": resources})), said, "{resources}");
    }
}

/// `TestValidateContainerRestartPolicy`
#[test]
fn rules_of_restarts_need_a_policy() {
    let rule = |action: &str, operator: &str| {
        json!({"action": action,
        "exitCodes": {"operator": operator, "values": [1]}})
    };
    let good = rule("Restart", "In");
    assert_eq!(wrong_with(json!({"restartPolicy": "Never", "restartPolicyRules": [good]})), [""; 0]);
    assert_eq!(
        wrong_with(json!({"restartPolicyRules": [good]})),
        [".restartPolicy: Required value: must specify restartPolicy when restart rules are used"]
    );
    assert_eq!(
        wrong_with(json!({"restartPolicy": "Odd"})),
        [".restartPolicy: Unsupported value: \"Odd\": supported values: \"Always\", \"Never\", \"OnFailure\""]
    );
    assert_eq!(
        wrong_with(json!({"restartPolicy": "Never", "restartPolicyRules": vec![good.clone(); 21]})),
        [".restartPolicyRules: Too many: 21: must have at most 20 items"]
    );
    assert_eq!(
        wrong_with(json!({"restartPolicy": "Never", "restartPolicyRules": [rule("Odd", "Is"), {"action": "Restart"}]})),
        [
            ".restartPolicyRules[0].action: Unsupported value: \"Odd\": supported values: \"Restart\", \
             \"RestartAllContainers\"",
            ".restartPolicyRules[0].exitCodes.operator: Unsupported value: \"Is\": supported values: \"In\", \"NotIn\"",
            ".restartPolicyRules[1].exitCodes: Required value: must be specified",
        ]
    );
}

/// `TestValidateResizePolicy`
#[test]
fn a_resize_policy_is_said_once_for_each_resource() {
    let policy = |resource: &str, restart: &str| json!({"resourceName": resource, "restartPolicy": restart});
    let of = |restart: &str, policies: Value| {
        wrong(json!({"restartPolicy": restart, "containers": [with(json!({"resizePolicy": policies}))]}))
    };
    let (cpu, memory) = (policy("cpu", "NotRequired"), policy("memory", "RestartContainer"));
    assert_eq!(of("Always", json!([cpu, memory])), [""; 0]);
    assert_eq!(of("Always", json!([cpu, cpu])), [".resizePolicy[1]: Duplicate value: \"cpu\""]);
    assert_eq!(
        of("Always", json!([policy("disk", "")])),
        [
            ".resizePolicy: Unsupported value: \"disk\": supported values: \"cpu\", \"memory\"",
            ".resizePolicy: Required value",
        ]
    );
    assert_eq!(
        of("Never", json!([memory])),
        [".resizePolicy: Invalid value: \"RestartContainer\": must be 'NotRequired' when pod `restartPolicy` is \
            'Never'"]
    );
}

/// `TestValidateTolerations`
#[test]
fn tolerations_fit_their_operators() {
    let tolerated = |toleration: Value| wrong(json!({"containers": [with(json!({}))], "tolerations": [toleration]}));
    let at = "spec.tolerations[0]";
    for (toleration, said) in [
        (json!({"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}), vec![]),
        (json!({"operator": "Exists"}), vec![]),
        (json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}), vec![]),
        (
            json!({"operator": "Equal", "value": "b"}),
            vec![format!(
                "{at}.operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty, which means \
                \"match \
                 all values and all keys\""
            )],
        ),
        (
            json!({"key": "a", "operator": "Exists", "value": "b"}),
            vec![format!("{at}.operator: Invalid value: \"b\": value must be empty when `operator` is 'Exists'")],
        ),
        (
            json!({"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 60}),
            vec![format!(
                "{at}.effect: Invalid value: \"NoSchedule\": effect must be 'NoExecute' when `tolerationSeconds` is set"
            )],
        ),
        (
            json!({"key": "a", "operator": "In"}),
            vec![format!("{at}.operator: Unsupported value: \"In\": supported values: \"Equal\", \"Exists\"")],
        ),
        (
            json!({"key": "a", "operator": "Exists", "effect": "Odd"}),
            vec![format!(
                "{at}.effect: Unsupported value: \"Odd\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \
                 \"NoExecute\""
            )],
        ),
    ] {
        assert_eq!(tolerated(toleration.clone()), said, "{toleration}");
    }
}

/// `TestValidatePodSpec`
#[test]
fn scalars_of_a_pod_are_judged() {
    let of = |fields: Value| {
        let mut spec = json!({"containers": [with(json!({}))]});
        spec.as_object_mut().unwrap().append(fields.clone().as_object_mut().unwrap());
        wrong(spec)
    };
    for (fields, said) in [
        (json!({"activeDeadlineSeconds": 1, "hostUsers": false}), &[][..]),
        (
            json!({"activeDeadlineSeconds": 0}),
            &["spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"],
        ),
        (
            json!({"restartPolicy": "Odd"}),
            &["spec.restartPolicy: Unsupported value: \"Odd\": supported values: \"Always\", \"OnFailure\", \"Never\""],
        ),
        (
            json!({"dnsPolicy": "Odd"}),
            &["spec.dnsPolicy: Unsupported value: \"Odd\": supported values: \"ClusterFirst\", \
               \"ClusterFirstWithHostNet\", \"Default\", \"None\""],
        ),
        (
            json!({"hostUsers": false, "hostNetwork": true, "hostPID": true, "hostIPC": true}),
            &[
                "spec.hostNetwork: Forbidden: when `hostUsers` is false",
                "spec.HostPID: Forbidden: when `hostUsers` is false",
                "spec.HostIPC: Forbidden: when `hostUsers` is false",
            ],
        ),
        (
            json!({"shareProcessNamespace": true, "hostPID": true}),
            &["spec.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot both be \
                enabled"],
        ),
        (json!({"os": {"name": ""}}), &["spec.os.name: Required value"]),
        (
            json!({"os": {"name": "dos"}}),
            &["spec.os: Unsupported value: \"dos\": supported values: \"linux\", \
            \"windows\""],
        ),
        (
            json!({"schedulingGates": [{"name": "a/b"}, {"name": "a/b"}]}),
            &["spec.schedulingGates[1]: Duplicate value: \"a/b\""],
        ),
        (
            json!({"securityContext": {"sysctls": [{"name": "net.a/b-c_d"}, {"name": ""}, {"name": "net.a/b-c_d"}]}}),
            &[
                "spec.securityContext.sysctls[1].name: Required value",
                "spec.securityContext.sysctls[2].name: Duplicate value: \"net.a/b-c_d\"",
            ],
        ),
        (
            json!({"resourceClaims": [{"name": "a"}, {"name": "a", "resourceClaimName": "x"}]}),
            &[
                "spec.resourceClaims[0]: Invalid value: {\"name\":\"a\"}: must specify one of: `resourceClaimName`, \
                 `resourceClaimTemplateName`",
                "spec.resourceClaims[1].name: Duplicate value: \"a\"",
            ],
        ),
    ] {
        assert_eq!(of(fields.clone()), said, "{fields}");
    }
}
