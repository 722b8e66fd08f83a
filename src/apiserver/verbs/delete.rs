//! `delete`: an object goes, now or when its finalizers and its grace period allow.

use admission::{Operation, Review};
use base::url::Query;
use http::{Response, StatusCode};
use jiff::{SignedDuration, Timestamp};
use model::reference::NamespacedName;
use model::{grace, meta};
use registry::negotiate::{self, Format};
use registry::status::Status;
use schema::behaviour::{DeleteAnswer, Deletion, Dependents, Grace, Holds};
use schema::table::{GroupVersion, Resource};
use schema::validate::error::FieldError;
use serde_json::{Value, json};
use wire::Body;

use super::Call;
use super::judge::attributes_for;
use super::retry::Retry;
use crate::respond;

/// The two finalizers of the garbage collector.
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// Options of a delete.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `gracePeriodSeconds`
    pub grace: Option<i64>,
    /// `propagationPolicy`, or what `orphanDependents` means.
    pub policy: Option<String>,
    /// `preconditions.uid`
    pub uid: Option<String>,
    /// `preconditions.resourceVersion`
    pub rv: Option<String>,
    /// Store nothing.
    pub dry_run: bool,
}

/// How a delete ended.
pub enum Outcome {
    /// The object is gone; its last state.
    Gone(Value),
    /// It waits for finalizers or its grace period; its present state.
    Pending(Value),
}

/// Answers with a Status, or with the object where upstream does.
pub async fn run(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let options = options(call).await?;
    let named = NamespacedName { namespace: call.namespace(), name: &call.x.attributes.name };
    let mut warnings = Vec::new();
    let outcome = delete(call, named, &options, &mut warnings).await?;
    call.x.warnings.extend(warnings);
    let row = &call.stored.behaviour.deletion;
    let body = match outcome {
        Outcome::Gone(object) if row.answer == DeleteAnswer::Status => {
            Status::deleted(call.resource.group_resource(), &object)
        }
        Outcome::Gone(object) | Outcome::Pending(object) => call.to_requested(object).await?,
    };
    Ok(respond::value(StatusCode::OK, &body, call.output, &call.x.parts.headers))
}

impl Options {
    /// As admission is shown them.
    fn to_value(&self) -> Value {
        let mut out = json!({ "kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1" });
        if let Some(grace) = self.grace {
            out["gracePeriodSeconds"] = json!(grace);
        }
        if let Some(policy) = &self.policy {
            out["propagationPolicy"] = json!(policy);
        }
        for (field, value) in [("uid", &self.uid), ("resourceVersion", &self.rv)] {
            if let Some(value) = value {
                out["preconditions"][field] = json!(value);
            }
        }
        if self.dry_run {
            out["dryRun"] = json!(["All"]);
        }
        out
    }
}

/// Reads DeleteOptions from the body and the query.
///
/// Errors: 400 for what cannot be read.
pub async fn options(call: &mut Call<'_, '_>) -> Result<Options, Status> {
    let bytes = call.body().await?;
    let body: Value = if bytes.is_empty() {
        json!({})
    } else {
        let read = |format| schema::decode::untyped(&bytes, format).map_err(|err| Status::bad_request(err.to_string()));
        match negotiate::input(&call.x.parts.headers)? {
            Format::Json => read(schema::decode::Format::Json)?,
            Format::Yaml => read(schema::decode::Format::Yaml)?,
            Format::Protobuf => {
                let of = call.x.catalog.type_of_kind(GroupVersion::CORE, "DeleteOptions");
                registry::forms::from_protobuf(
                    &bytes,
                    of.ok_or_else(|| Status::internal("the table has no DeleteOptions"))?,
                )?
            }
        }
    };
    let kind = meta::kind(&body);
    if !kind.is_empty() && kind != "DeleteOptions" {
        return Err(Status::bad_request(format!(
            "{kind} in version {:?} cannot be handled as a DeleteOptions",
            meta::api_version(&body)
        )));
    }
    parse_options(&body, &call.x.query)
}

/// Reads DeleteOptions from an object and the query.
pub fn parse_options(body: &Value, query: &Query) -> Result<Options, Status> {
    let text = |v: &Value| v.as_str().map(str::to_owned);
    let in_body = body["dryRun"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let orphan =
        body["orphanDependents"].as_bool().or(query.get("orphanDependents").map(|_| query.flag("orphanDependents")));
    let policy = text(&body["propagationPolicy"]).or(query.get("propagationPolicy").map(str::to_owned));
    if policy.is_some() && orphan.is_some() {
        let detail = "orphanDependents and deletionPropagation cannot be both set";
        return Err(Status::options("DeleteOptions", FieldError::invalid("propagationPolicy", json!(policy), detail)));
    }
    if let Some(policy) = policy.as_deref().filter(|p| !matches!(*p, "Orphan" | "Background" | "Foreground")) {
        let supported = ["Foreground", "Background", "Orphan", "nil"];
        return Err(Status::options(
            "DeleteOptions",
            FieldError::not_supported("propagationPolicy", json!(policy), &supported),
        ));
    }
    Ok(Options {
        grace: body["gracePeriodSeconds"].as_i64().or(query.number("gracePeriodSeconds")),
        policy: policy.or(orphan.map(|o| if o { "Orphan" } else { "Background" }.to_owned())),
        uid: text(&body["preconditions"]["uid"]),
        rv: text(&body["preconditions"]["resourceVersion"]),
        dry_run: super::dry_run(in_body.chain(query.all("dryRun")))?,
    })
}

/// Deletes one object.
///
/// Errors: 404; 409 when a precondition fails; whatever admission says.
pub async fn delete(
    call: &Call<'_, '_>,
    named: NamespacedName<'_>,
    options: &Options,
    warnings: &mut Vec<String>,
) -> Result<Outcome, Status> {
    let server = call.x.server;
    let row = &call.stored.behaviour.deletion;
    let mut retry = Retry::new(&server.objects.rng);
    let said_before = warnings.len();
    loop {
        let entry = server.objects.read(&call.stored, named).await?.ok_or_else(|| call.not_found(named.name))?;
        call.x.weight.add(entry.json.len()).await;
        let (old, rv) = (entry.value(), entry.rv);
        check(&call.resource, named.name, &old, options)?;
        // Again after each lost race, as upstream: what is there now may be another object, or one that a policy keeps.
        warnings.truncate(said_before);
        admit(call, named, &old, options, warnings).await?;
        let now = server.objects.clock.now();
        match plan(row, &call.stored, &old, options, now) {
            Plan::Wait => return Ok(Outcome::Pending(old)),
            Plan::Remove => {
                if options.dry_run {
                    return Ok(Outcome::Gone(old));
                }
                if let Some(at) = server.objects.remove(&call.stored, named, rv).await? {
                    let mut gone = old;
                    meta::set_resource_version(&mut gone, &at.to_string());
                    return Ok(Outcome::Gone(gone));
                }
            }
            Plan::Mark(mut new) => {
                if options.dry_run {
                    return Ok(Outcome::Pending(new));
                }
                if let Some(at) = server.objects.put(&call.stored, named, &mut new, rv).await? {
                    meta::set_resource_version(&mut new, &at.to_string());
                    return Ok(Outcome::Pending(new));
                }
            }
        }
        retry.pause().await;
    }
}

/// Whether the object is the one that the client means.
///
/// Errors: 409 naming the precondition that does not hold.
pub fn check(resource: &Resource, name: &str, old: &Value, options: &Options) -> Result<(), Status> {
    let refuse = |what: &str, wanted: &str, have: &str, whose: &str| {
        let why =
            format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {have}{whose}");
        Err(Status::conflict(resource.group_resource(), name, &why))
    };
    if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != meta::uid(old)) {
        return refuse("UID", uid, meta::uid(old), "");
    }
    if let Some(rv) = options.rv.as_deref().filter(|rv| *rv != meta::resource_version(old)) {
        return refuse("ResourceVersion", rv, meta::resource_version(old), "");
    }
    Ok(())
}

async fn admit(
    call: &Call<'_, '_>,
    named: NamespacedName<'_>,
    old: &Value,
    options: &Options,
    warnings: &mut Vec<String>,
) -> Result<(), Status> {
    let mut attributes = attributes_for(&call.x.attributes, named);
    "delete".clone_into(&mut attributes.verb);
    attributes.options = std::sync::Arc::new(options.to_value());
    let server = call.x.server;
    let mut nothing = Value::Null;
    let mut review = Review {
        operation: Operation::Delete,
        attributes: &attributes,
        kind: &call.stored.kind,
        object: &mut nothing,
        old: Some(old),
        dry_run: options.dry_run,
        catalog: &call.x.catalog,
        lookup: server.objects.cache.as_ref(),
        versions: server.objects.as_ref(),
        warnings,
        reinvocation: Default::default(),
        charge: Default::default(),
    };
    server.admission.both(&mut review).await
}

/// Effect of a delete on an object.
#[derive(Debug, PartialEq)]
enum Plan {
    Remove,
    Mark(Value),
    /// It is on its way out already and nothing changes.
    Wait,
}

fn plan(row: &Deletion, stored: &Resource, old: &Value, options: &Options, now: Timestamp) -> Plan {
    let mut new = old.clone();
    let finalizers = finalizers(row, old, options);
    meta::set_finalizers(&mut new, &finalizers.iter().map(String::as_str).collect::<Vec<_>>());
    let held = is_held(stored, &new);
    if let Some(end) = meta::deletion_timestamp(old) {
        return hasten(end, old, new, options.grace, held);
    }
    let secs = if row.grace == Grace::Spec { grace::of_pod(old, options.grace) } else { 0 };
    if secs == 0 && !held {
        return Plan::Remove;
    }
    let generation = meta::generation(old);
    if generation > 0 {
        meta::set_generation(&mut new, generation + 1);
    }
    let at = now.checked_add(SignedDuration::from_secs(secs)).unwrap_or(now);
    meta::set_deletion_timestamp(&mut new, Some(&base::time::rfc3339_secs(at)));
    meta::set_deletion_grace_period_seconds(&mut new, Some(secs));
    if row.holds == Holds::Spec {
        new["status"]["phase"] = json!("Terminating");
    }
    Plan::Mark(new)
}

/// A second delete, of what ends at `end`: it may only shorten the time, counted from the first one, and only if it
/// says so.
///
/// Spec: upstream v1.36 `rest.BeforeDelete`.
fn hasten(end: &str, old: &Value, mut new: Value, asked: Option<i64>, held: bool) -> Plan {
    let before = meta::deletion_grace_period_seconds(old).unwrap_or(0);
    let asked = asked.map(grace::read);
    let left = asked.filter(|seconds| *seconds < before).unwrap_or(before);
    if left == 0 && !held {
        return Plan::Remove;
    }
    if left < before {
        let sooner = end.parse::<Timestamp>().and_then(|end| end.checked_sub(SignedDuration::from_secs(before - left)));
        if let Ok(sooner) = sooner {
            meta::set_deletion_timestamp(&mut new, Some(&base::time::rfc3339_secs(sooner)));
        }
        meta::set_deletion_grace_period_seconds(&mut new, Some(left));
    }
    if new == *old { Plan::Wait } else { Plan::Mark(new) }
}

/// Finalizers after the policy has been written into them.
fn finalizers(row: &Deletion, old: &Value, options: &Options) -> Vec<String> {
    let mut list: Vec<String> = meta::finalizers(old).into_iter().map(str::to_owned).collect();
    let has = |list: &[String], what: &str| list.iter().any(|f| f == what);
    let policy = options.policy.as_deref().unwrap_or({
        if has(&list, ORPHAN) || (row.dependents == Dependents::Orphaned && !has(&list, FOREGROUND)) {
            "Orphan"
        } else if has(&list, FOREGROUND) {
            "Foreground"
        } else {
            "Background"
        }
    });
    let wanted = match policy {
        "Orphan" => Some(ORPHAN),
        "Foreground" => Some(FOREGROUND),
        _ => None,
    };
    if !row.cleanup.is_empty() && meta::deletion_timestamp(old).is_none() && !has(&list, row.cleanup) {
        list.push(row.cleanup.to_owned());
    }
    list.retain(|f| (f != ORPHAN && f != FOREGROUND) || Some(f.as_str()) == wanted);
    if let Some(wanted) = wanted.filter(|w| !has(&list, w)) {
        list.push(wanted.to_owned());
    }
    list
}

/// Whether finalizers hold the object.
pub fn is_held(stored: &Resource, object: &Value) -> bool {
    let spec_holds = || object["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
    !meta::finalizers(object).is_empty() || (stored.behaviour.deletion.holds == Holds::Spec && spec_holds())
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::reference::GroupResource;

    fn pod() -> Value {
        json!({ "metadata": { "name": "x" }, "spec": { "nodeName": "n", "terminationGracePeriodSeconds": 30 },
            "status": { "phase": "Running" } })
    }

    fn planned(old: &Value, options: &Options) -> Plan {
        let pods = registry::forms::stored(GroupResource::core("pods")).unwrap();
        plan(&pods.behaviour.deletion, &pods, old, options, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_running_pod_gets_its_grace_period_and_force_takes_it_away() {
        let Plan::Mark(dying) = planned(&pod(), &Options::default()) else { panic!("not marked") };
        assert_eq!(meta::deletion_timestamp(&dying), Some("1970-01-01T00:00:30Z"));
        assert_eq!(planned(&dying, &Options::default()), Plan::Wait);
        assert_eq!(planned(&dying, &Options { grace: Some(0), ..Options::default() }), Plan::Remove);
        let Plan::Mark(shorter) = planned(&dying, &Options { grace: Some(5), ..Options::default() }) else {
            panic!("not marked")
        };
        assert_eq!(meta::deletion_grace_period_seconds(&shorter), Some(5));
    }

    #[test]
    fn a_second_delete_that_names_no_time_changes_nothing_and_a_shorter_one_counts_from_the_first() {
        let Plan::Mark(dying) = planned(&pod(), &Options { grace: Some(300), ..Options::default() }) else {
            panic!("not marked")
        };
        assert_eq!(planned(&dying, &Options::default()), Plan::Wait);
        let Plan::Mark(sooner) = planned(&dying, &Options { grace: Some(100), ..Options::default() }) else {
            panic!("not marked")
        };
        assert_eq!(meta::deletion_timestamp(&sooner), Some("1970-01-01T00:01:40Z"));
        assert_eq!(planned(&sooner, &Options { grace: Some(200), ..Options::default() }), Plan::Wait);
    }

    #[test]
    fn the_policy_becomes_a_finalizer_and_replaces_the_other_one() {
        let foreground = Options { policy: Some("Foreground".into()), ..Options::default() };
        let old = json!({ "metadata": { "finalizers": ["a", ORPHAN] } });
        assert_eq!(finalizers(&Deletion::PLAIN, &old, &foreground), ["a", FOREGROUND]);
        assert_eq!(finalizers(&Deletion::PLAIN, &old, &Options::default()), ["a", ORPHAN]);
        let background = Options { policy: Some("Background".into()), ..Options::default() };
        assert_eq!(finalizers(&Deletion::PLAIN, &old, &background), ["a"]);
    }

    #[test]
    fn options_of_a_delete_come_from_the_body_and_from_the_query() {
        let read = |body: Value, query: &str| parse_options(&body, &Query::parse(query)).unwrap().to_value();
        let options = |more: Value| {
            let mut all = json!({ "kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1" });
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            all
        };
        for (body, query, expected) in [
            (json!({}), "", json!({})),
            (json!({}), "gracePeriodSeconds=5", json!({ "gracePeriodSeconds": 5 })),
            (json!({ "gracePeriodSeconds": 0 }), "gracePeriodSeconds=5", json!({ "gracePeriodSeconds": 0 })),
            (json!({}), "propagationPolicy=Orphan", json!({ "propagationPolicy": "Orphan" })),
            (json!({ "orphanDependents": true }), "", json!({ "propagationPolicy": "Orphan" })),
            (json!({}), "orphanDependents=false", json!({ "propagationPolicy": "Background" })),
            (json!({ "dryRun": ["All"] }), "", json!({ "dryRun": ["All"] })),
            (json!({}), "dryRun=All", json!({ "dryRun": ["All"] })),
            (
                json!({ "preconditions": { "uid": "u", "resourceVersion": "7" } }),
                "",
                json!({ "preconditions": { "uid": "u", "resourceVersion": "7" } }),
            ),
        ] {
            assert_eq!(read(body.clone(), query), options(expected), "{body} {query}");
        }
    }

    #[test]
    fn options_of_a_delete_that_contradict_each_other_are_refused() {
        for (body, query, expected) in [
            (
                json!({ "orphanDependents": true, "propagationPolicy": "Orphan" }),
                "",
                "orphanDependents and deletionPropagation cannot be both set",
            ),
            (json!({ "propagationPolicy": "Orphan" }), "orphanDependents=true", "cannot be both set"),
            (
                json!({ "propagationPolicy": "Later" }),
                "",
                "propagationPolicy: Unsupported value: \"Later\": supported values: ",
            ),
        ] {
            let status = parse_options(&body, &Query::parse(query)).err().unwrap();
            assert_eq!(status.code, 422, "{body}");
            assert!(status.message.contains(expected), "{}", status.message);
        }
    }

    #[test]
    fn a_delete_of_another_object_than_the_one_meant_is_a_conflict() {
        let pods = registry::forms::stored(GroupResource::core("pods")).unwrap();
        let old = json!({ "metadata": { "name": "x", "uid": "u", "resourceVersion": "7" } });
        let wants = |uid: Option<&str>, rv: Option<&str>| {
            let (uid, rv) = (uid.map(str::to_owned), rv.map(str::to_owned));
            let options = Options { uid, rv, ..Options::default() };
            check(&pods, "x", &old, &options).err().map(|status| (status.code, status.message.clone()))
        };
        assert_eq!(wants(None, None), None);
        assert_eq!(wants(Some("u"), Some("7")), None);
        let about = "Operation cannot be fulfilled on pods \"x\": Precondition failed: ";
        assert_eq!(
            wants(Some("v"), None),
            Some((409, format!("{about}UID in precondition: v, UID in object meta: u")))
        );
        assert_eq!(
            wants(Some("u"), Some("8")),
            Some((409, format!("{about}ResourceVersion in precondition: 8, ResourceVersion in object meta: 7")))
        );
    }

    #[test]
    fn finalizers_hold_and_a_pod_without_a_node_goes_at_once() {
        let mut held = pod();
        held["metadata"]["finalizers"] = json!(["a"]);
        let now = Options { grace: Some(0), ..Options::default() };
        assert!(matches!(planned(&held, &now), Plan::Mark(_)), "a finalizer holds it however short its time");
        let mut waiting = pod();
        waiting["spec"]["nodeName"] = json!("");
        waiting["status"]["phase"] = json!("Pending");
        assert_eq!(planned(&waiting, &Options::default()), Plan::Remove);
        let mut over = pod();
        over["status"]["phase"] = json!("Succeeded");
        assert_eq!(planned(&over, &Options::default()), Plan::Remove);
    }
}
