//! A pod's quality-of-service class.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::quantity::Quantity;

const COUNTED: [&str; 2] = ["cpu", "memory"];

type Sums = BTreeMap<&'static str, Quantity>;

/// `Guaranteed`, `Burstable` or `BestEffort`, from requests and limits of cpu and memory.
pub fn qos_class(pod: &Value) -> &'static str {
    let (mut requests, mut limits) = (Sums::new(), Sums::new());
    let mut guaranteed = true;
    let spec = &pod["spec"];
    if spec["resources"].as_object().is_some_and(|r| !r.is_empty()) {
        add(&mut requests, &spec["resources"]["requests"]);
        guaranteed = add(&mut limits, &spec["resources"]["limits"]) == COUNTED.len();
    } else {
        for list in ["containers", "initContainers"] {
            for container in spec[list].as_array().into_iter().flatten() {
                add(&mut requests, &container["resources"]["requests"]);
                guaranteed &= add(&mut limits, &container["resources"]["limits"]) == COUNTED.len();
            }
        }
    }
    if requests.is_empty() && limits.is_empty() {
        "BestEffort"
    } else if guaranteed && requests == limits {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// Adds the positive quantities and says how many there were.
fn add(sums: &mut Sums, list: &Value) -> usize {
    let mut n = 0;
    for name in COUNTED {
        let Some(q) = list.get(name).and_then(|v| Quantity::from_value(v).ok()).filter(|q| q.sign() > 0) else {
            continue;
        };
        n += 1;
        let sum = match sums.remove(name) {
            Some(sum) => sum.add(q),
            None => q,
        };
        sums.insert(name, sum);
    }
    n
}
