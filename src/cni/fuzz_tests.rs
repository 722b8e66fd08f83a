//! Seeded fuzzing of the configuration that comes from containerd, with a pod author's words in it.

use base::fuzz::{self, mutated_text, rounds};
use serde_json::Value;

use crate::request::{Command, Env, Request, version_of};

#[test]
fn configurations_of_any_bytes_are_read_or_refused() {
    let rng = fuzz::rng(12);
    let whole = concat!(
        r#"{"cniVersion":"1.0.0","name":"kedge","socket":"/x","runtimeConfig":{"portMappings":[{"hostPort":80,"#,
        r#""containerPort":8080,"protocol":"tcp","hostIP":"10.0.0.1"}],"bandwidth":{"ingressRate":8000000}},"#,
        r#""prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"cni0"}],"#,
        r#""ips":[{"interface":0,"address":"10.42.0.5/24","gateway":"10.42.0.1"}]}}"#
    );
    for _ in rounds(20_000) {
        let bytes =
            mutated_text(&rng, whole, &["null", "-1", "\"", "{", "[", "]", "1e999", "\u{fffd}", "0"]).into_bytes();
        let env = Env {
            container_id: Some("c1".into()),
            netns: Some("/run/netns/x".into()),
            ifname: Some("eth0".into()),
            args: Some(mutated_text(&rng, "K8S_POD_NAME=p;K8S_POD_UID=u", &[";", "=", "K8S_POD_NAMESPACE"])),
            ..Env::default()
        };
        let _version = version_of(&bytes);
        if let Ok(request) = Request::new(Command::Add, env, &bytes) {
            crate::portmap::tests::script_is_plain(&request);
            let _any = (request.prev_result().is_ok(), request.parse::<Value>().is_ok());
        }
    }
}
