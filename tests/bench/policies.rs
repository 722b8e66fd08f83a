//! A policy that lets a thousand pods in: until the kernel has all of them, and until it has one change.

use std::time::Duration;

use anyhow::Result;
use base::time::Stopwatch;
use http::Method;
use serde_json::{Value, json};

use crate::Bench;
use crate::api::Connection;
use crate::node::Node;
use crate::objects::make_namespace;
use crate::process::{output, wait_for};
use crate::report::{Row, ms, p50, percentile};

const PODS: usize = 1_000;
const CHANGES: usize = 20;
const LIMIT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(2);
const PATH: &str = "/api/v1/namespaces/bench-policy/pods";

/// Addresses of nobody, no two of them neighbours: the kernel would tell those as a range.
fn ip(n: usize) -> String {
    format!("10.200.{}.{}", n / 100, n % 100 * 2 + 1)
}

/// A pod that no scheduler takes, with an address all the same.
async fn make(connection: &mut Connection, n: usize) -> Result<()> {
    let name = format!("pod-{n}");
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "let": "in" } },
        "spec": { "schedulerName": "nobody", "automountServiceAccountToken": false,
            "containers": [{ "name": "c", "image": "kedge.local/none:1" }] } });
    connection.create(PATH, &pod).await?;
    let status = json!({ "status": { "phase": "Running", "podIP": ip(n), "podIPs": [{ "ip": ip(n) }] } });
    connection
        .call(Method::PATCH, &format!("{PATH}/{name}/status"), serde_json::to_vec(&status)?.into())
        .await
        .map(drop)
}

/// Waits until the kernel's table shows `n` of the addresses.
async fn until(n: usize) -> Result<Duration> {
    let clock = Stopwatch::start();
    let look = async || {
        let table = output("nft", &["list", "table", "inet", "kedge-policy"]).ok()?;
        (table.matches("10.200.").count() == n).then(|| clock.elapsed())
    };
    wait_for(&format!("{n} addresses in the policy's table"), LIMIT, LOOK, look).await
}

/// DNS is the one pod of the node's own: the policy is for it.
pub(crate) async fn measure(bench: &mut Bench, node: &Node) -> Result<()> {
    make_namespace(&node.api, "bench-policy").await?;
    let mut connection = node.api.connect().await?;
    for n in 0..PODS {
        make(&mut connection, n).await?;
    }
    let policy = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "bench" },
        "spec": { "podSelector": { "matchLabels": { "k8s-app": "kube-dns" } }, "ingress": [{ "from": [
            { "namespaceSelector": {}, "podSelector": { "matchLabels": { "let": "in" } } },
            { "ipBlock": { "cidr": "10.99.0.0/16" } }] }] } });
    let policies = "/apis/networking.k8s.io/v1/namespaces/kube-system/networkpolicies";
    connection.create(policies, &policy).await?;
    let all = until(PODS).await?;
    bench.report.add(
        Row::of(format!("a policy that lets {PODS} pods in: in the kernel after its create"), ms(all))
            .budget("≤ 500 ms", all <= Duration::from_millis(500)),
    );
    let mut times = Vec::new();
    for n in 0..CHANGES {
        let (label, wanted): (Value, usize) = if n % 2 == 0 { (json!("not"), PODS - 1) } else { (json!("in"), PODS) };
        let change = json!({ "metadata": { "labels": { "let": label } } });
        connection.call(Method::PATCH, &format!("{PATH}/pod-0"), serde_json::to_vec(&change)?.into()).await?;
        times.push(until(wanted).await?);
    }
    bench.report.add(
        Row::of(
            format!("one pod's label changed beside {PODS}: in the kernel, p50 of {CHANGES}"),
            format!("{} (p99 {})", ms(p50(&times)), ms(percentile(&times, 99))),
        )
        .budget("≤ 100 ms", p50(&times) <= Duration::from_millis(100)),
    );
    connection.delete(&format!("{policies}/bench")).await?;
    connection.delete(PATH).await.map(drop)
}
