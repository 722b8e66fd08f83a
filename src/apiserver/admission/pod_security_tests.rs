//! Upstream's published cases, where they are present, and texts.

use serde_json::json;

use super::*;

fn cases(level: &str, verdict: &str) -> Vec<(String, Value)> {
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/upstream-v1.36");
    let dir = format!("{}/pod-security/{level}-v1.35/{verdict}", option_env!("KEDGE_UPSTREAM_DATA").unwrap_or(here));
    let Ok(files) = std::fs::read_dir(&dir) else {
        eprintln!("skipped: {dir} is not on this machine");
        return Vec::new();
    };
    let read = |path: std::path::PathBuf| {
        let pod = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        (path.display().to_string(), pod)
    };
    files.map(|file| read(file.unwrap().path())).collect()
}

#[test]
fn every_published_case_is_judged_as_published() {
    for level in [Level::Baseline, Level::Restricted] {
        for (name, pod) in cases(level.as_str(), "pass") {
            assert_eq!(violations(level, &pod["metadata"], &pod["spec"]), None, "{name}");
        }
        for (name, pod) in cases(level.as_str(), "fail") {
            assert!(violations(level, &pod["metadata"], &pod["spec"]).is_some(), "{name}");
        }
    }
}

#[test]
fn texts_are_those_that_people_search_for() {
    let spec = json!({"containers": [{"name": "nginx"}]});
    let text = "allowPrivilegeEscalation != false (container \"nginx\" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities \
                (container \"nginx\" must set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"nginx\" must set \
                securityContext.runAsNonRoot=true), seccompProfile (pod or container \"nginx\" must set securityContext.seccompProfile.type to \
                \"RuntimeDefault\" or \"Localhost\")";
    assert_eq!(violations(Level::Restricted, &Value::Null, &spec).unwrap(), text);
    assert_eq!(violations(Level::Baseline, &Value::Null, &spec), None);
}
