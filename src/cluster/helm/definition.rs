//! The kinds HelmChart and HelmChartConfig (`helm.cattle.io/v1`), and the right of those who install what they ask for.

use kube::api::ApiResource;
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

use super::USER;

/// HelmChart.
pub fn charts() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("helm.cattle.io", "v1", "HelmChart"), "helmcharts")
}

/// HelmChartConfig.
pub fn configs() -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("helm.cattle.io", "v1", "HelmChartConfig"),
        "helmchartconfigs",
    )
}

/// Objects to apply before the first chart is looked at: resource, name, object.
pub fn all() -> [(ApiResource, &'static str, Value); 3] {
    let definitions = || {
        let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        ApiResource::from_gvk_with_plural(&kind, "customresourcedefinitions")
    };
    let bindings = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding"),
        "clusterrolebindings",
    );
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": USER },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER }],
    });
    [
        (bindings, USER, binding),
        (definitions(), "helmcharts.helm.cattle.io", chart_definition()),
        (definitions(), "helmchartconfigs.helm.cattle.io", config_definition()),
    ]
}

fn text(about: &str) -> Value {
    json!({ "type": "string", "description": about })
}

fn switch(about: &str) -> Value {
    json!({ "type": "boolean", "description": about })
}

fn named(about: &str) -> Value {
    json!({ "type": "object", "description": about, "properties": { "name": text("Its name.") } })
}

/// Without a schema: whatever is in it stays.
fn anything(about: &str) -> Value {
    json!({ "type": "object", "description": about, "x-kubernetes-preserve-unknown-fields": true })
}

fn values_secrets() -> Value {
    json!({
        "type": "array", "description": "Values in Secrets of the same namespace; a later one wins.",
        "items": { "type": "object", "properties": {
            "name": text("Name of the Secret."),
            "keys": {
                "type": "array", "items": { "type": "string" },
                "description": "Its keys, each a document of values; none: all.",
            },
            "ignoreUpdates": switch("A change of the Secret alone is no reason to upgrade."),
        } },
    })
}

fn failure_policy() -> Value {
    json!({
        "type": "string", "enum": ["abort", "reinstall"],
        "description": "What is done when the last installation or upgrade failed: reinstall (the default) or abort, \
                        which leaves it for a person.",
    })
}

fn chart_spec() -> Value {
    let number_or_text =
        json!({ "anyOf": [{ "type": "integer" }, { "type": "string" }], "x-kubernetes-int-or-string": true });
    json!({ "type": "object", "properties": {
        "chart": text("Name of the chart in the repository, URL of its archive (https:// or oci://), or absolute path \
                       of one on the servers."),
        "chartContent": text("The chart's archive (.tgz) in base64; wins over chart."),
        "version": text("Version of the chart."),
        "repo": text("URL of the repository."),
        "repoCA": text("Authorities of the repository's certificate, PEM."),
        "repoCAConfigMap": named("ConfigMap whose values are authorities of the repository's certificate, PEM."),
        "targetNamespace": text("Namespace of the release (default: the HelmChart's own)."),
        "createNamespace": switch("Make that namespace if there is none."),
        "helmVersion": json!({ "type": "string", "description": "Nothing or v3." }),
        "bootstrap": switch("The chart is needed by the cluster itself. Charts are installed by a server's own \
                             process, which waits for no node."),
        "failurePolicy": failure_policy(),
        "timeout": text("How long one operation of helm may take (default: 5m0s)."),
        "backOffLimit": {
            "type": "integer", "minimum": 0, "description": "How often it is tried (default: 1000).",
        },
        "authSecret": named("Secret of the type kubernetes.io/basic-auth with credentials for the repository."),
        "authPassCredentials": switch("Show these credentials to all hosts that the repository names."),
        "insecureSkipTLSVerify": switch("Take any certificate."),
        "plainHTTP": switch("Speak HTTP to OCI registries."),
        "dockerRegistrySecret": named(
            "Secret of the type kubernetes.io/dockerconfigjson with credentials for OCI registries."
        ),
        "set": {
            "type": "object", "additionalProperties": number_or_text,
            "description": "Single values; they win over all others.",
        },
        "values": anything("Values as an object."),
        "valuesContent": text("Values as YAML; wins over values."),
        "valuesSecrets": values_secrets(),
        "takeOwnership": switch("Take over objects that are there already."),
        "jobImage": text("Without effect here: charts are installed by the servers' own helm, not by a job."),
        "podSecurityContext": anything(
            "Without effect here: charts are installed by the servers' own helm, not by a job."
        ),
        "securityContext": anything(
            "Without effect here: charts are installed by the servers' own helm, not by a job."
        ),
    } })
}

fn chart_definition() -> Value {
    let condition = json!({ "type": "object", "required": ["type", "status"], "properties": {
        "type": text("Ready or Failed."), "status": text("True, False or Unknown."),
        "reason": text("One word."), "message": text("What helm said."),
        "lastTransitionTime": {
            "type": "string", "format": "date-time", "description": "When the status last changed.",
        },
    } });
    let status = json!({ "type": "object", "properties": {
        "conditions": {
            "type": "array", "items": condition,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
            "description": "Whether the chart is installed as asked for, and why not.",
        },
        "configHash": text("Names the content that is installed."),
        "revision": { "type": "integer", "description": "The release's revision in helm's history." },
    } });
    let schema = json!({
        "type": "object",
        "description": "HelmChart is a chart that the leading server installs with its program helm, and uninstalls \
                        when the HelmChart goes.",
        "properties": { "spec": chart_spec(), "status": status },
    });
    let column = |name: &str, kind: &str, path: &str| json!({ "name": name, "type": kind, "jsonPath": path });
    definition(
        &Names { kind: "HelmChart", plural: "helmcharts", singular: "helmchart" },
        &schema,
        &json!([
            column("Repo", "string", ".spec.repo"),
            column("Chart", "string", ".spec.chart"),
            column("Version", "string", ".spec.version"),
            column("TargetNamespace", "string", ".spec.targetNamespace"),
            column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
            column("Failed", "string", ".status.conditions[?(@.type=='Failed')].status"),
            column("Age", "date", ".metadata.creationTimestamp"),
        ]),
    )
}

fn config_definition() -> Value {
    let schema = json!({
        "type": "object",
        "description": "HelmChartConfig adds values to the HelmChart of the same namespace and name, and wins over \
                        the chart's own.",
        "properties": { "spec": { "type": "object", "properties": {
            "values": anything("Values as an object."), "valuesContent": text("Values as YAML; wins over values."),
            "valuesSecrets": values_secrets(), "failurePolicy": failure_policy(),
        } } },
    });
    let names = Names { kind: "HelmChartConfig", plural: "helmchartconfigs", singular: "helmchartconfig" };
    definition(&names, &schema, &json!([]))
}

struct Names {
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
}

fn definition(names: &Names, schema: &Value, columns: &Value) -> Value {
    let Names { kind, plural, singular } = names;
    let mut version = json!({ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } });
    if *kind == "HelmChart" {
        version["subresources"] = json!({ "status": {} });
        version["additionalPrinterColumns"] = columns.clone();
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.helm.cattle.io") },
        "spec": {
            "group": "helm.cattle.io", "scope": "Namespaced", "preserveUnknownFields": false,
            "names": { "kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": singular },
            "versions": [version],
        },
    })
}
