//! Resources that nobody stores: their objects are made when somebody asks.

use futures_util::future::BoxFuture;
use http::{Response, StatusCode};
use model::meta;
use serde_json::{Value, json};
use wire::Body;

use super::Call;
use super::present::{self, ListMeta};
use crate::serve::ApiServer;
use crate::status::Status;

/// Makes all objects of a resource.
pub type Make = for<'s> fn(&'s ApiServer) -> BoxFuture<'s, Vec<Value>>;

/// Answers `get` and `list`.
pub async fn run(call: &mut Call<'_, '_>, make: Make) -> Result<Response<Body>, Status> {
    let selector = model::labels::Selector::parse(call.x.query.text("labelSelector"))
        .map_err(|e| Status::bad_request(e.to_string()))?;
    let objects = make(call.x.server).await;
    match call.x.attributes.verb.as_str() {
        "get" => {
            let name = &call.x.attributes.name;
            let found =
                objects.into_iter().find(|object| meta::name(object) == name).ok_or_else(|| call.not_found(name))?;
            present::object(call, StatusCode::OK, found)
        }
        "list" => {
            let rv = call.x.server.cache.seen();
            let wanted = objects.into_iter().filter(|object| selector.matches(meta::labels(object))).collect();
            present::list_of(call, wanted, &ListMeta { rv, next: String::new(), remaining: None }).await
        }
        _ => Err(Status::method_not_allowed()),
    }
}

/// The parts of the control plane. Controllers and scheduler are tasks of this process, which ends when one of them
/// does; the store is asked.
pub fn components(server: &ApiServer) -> BoxFuture<'_, Vec<Value>> {
    Box::pin(async move {
        let store = server.cache.wait_for_now().await.map_err(|err| base::chain::Chain(&err).to_string());
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
