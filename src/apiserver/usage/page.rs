//! A kubelet's `/metrics/resource`, in Prometheus's text form, down to the four counters and gauges that matter. Pure.

use std::collections::BTreeMap;

/// Counters of one thing: CPU since it began, memory now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Nanoseconds of CPU.
    pub cpu_nanos: Option<u64>,
    /// Bytes of the working set.
    pub memory: Option<u64>,
    /// Nanoseconds since 1970 at which it started.
    pub started_nanos: Option<u64>,
}

/// A container of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerKey {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Name of the container.
    pub container: String,
}

/// One look at a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The machine.
    pub node: Counters,
    /// Its containers.
    pub containers: BTreeMap<ContainerKey, Counters>,
}

/// Reads the page; lines that are not understood are not ours.
pub fn parse(text: &str) -> Page {
    let mut page = Page::default();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, labels, value)) = split(line) else { continue };
        match name {
            "node_cpu_usage_seconds_total" => page.node.cpu_nanos = nanos(value),
            "node_memory_working_set_bytes" => page.node.memory = whole(value),
            "container_cpu_usage_seconds_total" => container(&mut page, labels, |c| c.cpu_nanos = nanos(value)),
            "container_memory_working_set_bytes" => container(&mut page, labels, |c| c.memory = whole(value)),
            "container_start_time_seconds" => container(&mut page, labels, |c| c.started_nanos = nanos(value)),
            _ => {}
        }
    }
    page
}

/// `name{labels} value [timestamp]`. A closing brace may stand in a label's value.
fn split(line: &str) -> Option<(&str, &str, &str)> {
    let (head, rest) = match line.split_once('{') {
        Some((name, rest)) => {
            let end = rest.rfind('}')?;
            ((name, &rest[..end]), &rest[end + 1..])
        }
        None => {
            let (name, rest) = line.split_once(' ')?;
            ((name, ""), rest)
        }
    };
    Some((head.0, head.1, rest.split_whitespace().next()?))
}

fn container(page: &mut Page, labels: &str, set: impl FnOnce(&mut Counters)) {
    let mut labels = read_labels(labels);
    let mut take = |name: &str| labels.remove(name).unwrap_or_default();
    let key = ContainerKey { namespace: take("namespace"), pod: take("pod"), container: take("container") };
    if !key.container.is_empty() {
        set(page.containers.entry(key).or_default());
    }
}

/// `a="x",b="y"`; names of Kubernetes need no escapes, others are nobody we know.
fn read_labels(text: &str) -> BTreeMap<&str, String> {
    let mut out = BTreeMap::new();
    let mut rest = text;
    while let Some((name, behind)) = rest.split_once("=\"") {
        let Some((value, behind)) = behind.split_once('"') else { break };
        out.insert(name.trim_start_matches(',').trim(), value.to_owned());
        rest = behind;
    }
    out
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be in range; fractions are cut off"
)]
fn whole(text: &str) -> Option<u64> {
    let number: f64 = text.parse().ok()?;
    (0.0..9e18).contains(&number).then_some(number as u64)
}

/// Seconds with a fraction, or in Go's short form `1.5e+09`, as nanoseconds.
fn nanos(text: &str) -> Option<u64> {
    match text.split_once('.') {
        Some((secs, fraction))
            if !fraction.is_empty() && fraction.len() <= 9 && fraction.bytes().all(|b| b.is_ascii_digit()) =>
        {
            let fraction: u64 = format!("{fraction:0<9}").parse().ok()?;
            secs.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction)
        }
        _ => {
            let secs: f64 = text.parse().ok()?;
            whole(&(secs * 1e9).to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_a_kubelet_is_read() {
        let page = parse(concat!(
            "# HELP container_cpu_usage_seconds_total x\n",
            "container_cpu_usage_seconds_total{container=\"c\",namespace=\"ns\",pod=\"p\"} 1.500000001 1395066363000\n",
            "container_memory_working_set_bytes{container=\"c\",namespace=\"ns\",pod=\"p\"} 4096\n",
            "container_start_time_seconds{container=\"c\",namespace=\"ns\",pod=\"p\"} 1.79e+09\n",
            "node_cpu_usage_seconds_total 12\n",
            "node_memory_working_set_bytes 1.5e+09\n",
            "pod_cpu_usage_seconds_total{namespace=\"ns\",pod=\"p\"} 9\n",
        ));
        let key = ContainerKey { namespace: "ns".into(), pod: "p".into(), container: "c".into() };
        assert_eq!(
            page.node,
            Counters { cpu_nanos: Some(12_000_000_000), memory: Some(1_500_000_000), started_nanos: None }
        );
        let one = Counters {
            cpu_nanos: Some(1_500_000_001),
            memory: Some(4096),
            started_nanos: Some(1_790_000_000_000_000_000),
        };
        assert_eq!(page.containers, [(key, one)].into());
    }
}
