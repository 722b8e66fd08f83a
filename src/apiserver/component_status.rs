//! ComponentStatuses: nobody stores them, they are made when somebody asks.

use futures_util::future::BoxFuture;
use registry::objects::Objects;
use serde_json::{Value, json};

/// Makes all objects of a resource.
pub(crate) type Make = for<'s> fn(&'s Objects) -> BoxFuture<'s, Vec<Value>>;

/// The parts of the control plane. Controllers and scheduler are tasks of this process, which ends when one of them
/// does; the store is asked.
pub(crate) fn components(objects: &Objects) -> BoxFuture<'_, Vec<Value>> {
    Box::pin(async move {
        let store = objects.cache.wait_for_now().await.map_err(|err| base::chain::Chain(&err).to_string());
        vec![component("scheduler", Ok(())), component("controller-manager", Ok(())), component("etcd-0", store)]
    })
}

fn component(name: &str, health: Result<(), String>) -> Value {
    let condition = match health {
        Ok(()) => json!({ "type": "Healthy", "status": "True", "message": "ok" }),
        Err(why) => json!({ "type": "Healthy", "status": "False", "message": why }),
    };
    json!({ "kind": "ComponentStatus", "apiVersion": "v1", "metadata": { "name": name }, "conditions": [condition] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_fails_says_why() {
        assert_eq!(component("etcd-0", Ok(()))["conditions"][0]["message"], "ok");
        assert_eq!(
            component("etcd-0", Err("no leader".into()))["conditions"][0],
            json!({"type": "Healthy", "status": "False", "message": "no leader"})
        );
    }
}
