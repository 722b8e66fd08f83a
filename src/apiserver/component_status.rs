//! ComponentStatuses: nobody stores them, they are made when somebody asks.

use base::chain::Chain;
use futures_util::future::BoxFuture;
use registry::objects::Objects;
use serde_json::{Value, json};
use store::error::Error;

/// Makes all objects of a resource.
pub(crate) type Make = for<'s> fn(&'s Objects) -> BoxFuture<'s, Vec<Value>>;

/// The parts of the control plane. Controllers and scheduler are tasks of this process, which ends when one of them
/// does; the store is asked.
pub(crate) fn components(objects: &Objects) -> BoxFuture<'_, Vec<Value>> {
    Box::pin(async move {
        let store = objects.cache.wait_for_now().await;
        vec![component("scheduler", Ok(())), component("controller-manager", Ok(())), component("etcd-0", store)]
    })
}

fn component(name: &str, health: Result<(), Error>) -> Value {
    let condition = match health {
        Ok(()) => json!({ "type": "Healthy", "status": "True", "message": "ok" }),
        Err(err) => json!({ "type": "Healthy", "status": "False", "message": Chain(&err).to_string() }),
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
            component("etcd-0", Err(Error::TimedOut))["conditions"][0],
            json!({"type": "Healthy", "status": "False", "message": Error::TimedOut.to_string()})
        );
    }
}
