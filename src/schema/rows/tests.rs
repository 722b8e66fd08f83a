//! Claims about the table that is built in.

use crate::catalog::Catalog;
use crate::table::{Empty, GroupVersion, ListType, Shape};

#[test]
fn every_type_parses_and_its_fields_are_sorted() {
    for t in Catalog::builtin().types() {
        let fields = &t.get().fields;
        assert!(fields.windows(2).all(|w| w[0].name < w[1].name), "{}", t.name());
        assert!(!t.get().open, "{}", t.name());
    }
}

#[test]
fn a_deployment_leads_to_its_container_ports() {
    let catalog = Catalog::builtin();
    let r = catalog.resource(GroupVersion::parse("apps/v1"), "deployments").expect("row");
    assert_eq!((r.kind.as_ref(), r.namespaced, r.short_names[0].as_ref()), ("Deployment", true, "deploy"));
    assert!(
        r.has_status()
            && r.subresource("scale").is_some_and(|s| s.kind.kind == "Scale" && s.kind.group == "autoscaling")
    );
    let spec = r.type_def().field("spec").and_then(|f| f.shape.as_struct()).expect("spec");
    let pod = spec
        .field("template")
        .and_then(|f| f.shape.as_struct())
        .and_then(|t| t.field("spec"))
        .and_then(|f| f.shape.as_struct());
    let containers = pod.and_then(|p| p.field("containers")).expect("containers");
    assert_eq!(containers.list, ListType::Map(vec!["name".into()]));
    assert_eq!(containers.merge_key.as_deref(), Some("name"));
    let ports = containers.shape.element().and_then(Shape::as_struct).and_then(|c| c.field("ports")).expect("ports");
    assert_eq!(ports.list, ListType::Map(vec!["containerPort".into(), "protocol".into()]));
    assert_eq!((ports.tag, ports.empty), (6, Empty::Drop));
}

#[test]
fn groups_keep_upstreams_order() {
    let groups: Vec<&str> = Catalog::builtin().groups().iter().map(|g| g.name.as_str()).collect();
    assert_eq!(&groups[..4], &["", "apiregistration.k8s.io", "apps", "events.k8s.io"]);
    let autoscaling = Catalog::builtin().groups().iter().find(|g| g.name == "autoscaling").expect("group");
    assert_eq!(autoscaling.versions, ["v2", "v1"]);
}
