//! Changing one object in the store: read, change, judge, compare and put; again if somebody was faster.

use base::time::Stopwatch;
use bytes::Bytes;
use model::meta;
use schema::apply::versions::Versions;
use schema::table::Resource;
use serde_json::Value;
use store::{Compare, CompareOp, Op, Revision, Txn};

use super::again::Again;
use super::{Call, get, scale, versions};
use crate::admission::charges::Charge;
use crate::admission::timing::Round;
use crate::admission::{Operation, Plugin, Review};
use crate::attributes::Attributes;
use crate::custom::conversion;
use crate::pipeline::require;
use crate::serve::ApiServer;
use crate::status::{Cause, Status};
use crate::turn::Turn;
use crate::{hooks, keys, kinds, services, trusted};

/// Which half of an object a request may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything but `status` (where `status` is a subresource).
    Main,
    /// `status` and metadata.
    Status,
    /// What a special subresource itself takes care of.
    Special,
    /// The server's own change after a judged request (a Binding): the rules for clients' updates do not apply.
    Bound,
}

/// How an update ended.
pub enum Written {
    /// The object is new.
    Created(Value),
    /// It was changed (or was so already).
    Updated(Value),
    /// The update took the last finalizer away: the object is gone.
    Deleted(Value),
}

impl Written {
    /// The object, whatever happened.
    pub fn into_object(self) -> Value {
        match self {
            Written::Created(v) | Written::Updated(v) | Written::Deleted(v) => v,
        }
    }
}

/// Makes the new object (storage version) from the stored one; `None`: there is none and it may be created.
pub type Make<'m> = dyn FnMut(Option<&Value>) -> Result<Value, Status> + Send + 'm;

/// In which version the new object is made.
pub enum Maker<'m> {
    /// From the stored version into it.
    Stored(&'m mut Make<'m>),
    /// From the version of the request into it, for what the client wrote with that one in mind: a patch.
    Requested(&'m mut Make<'m>),
    /// The same, by who looks at managers of fields, too: an apply.
    Applied(&'m mut Apply<'m>),
}

/// Makes the new object as [`Make`] does, with its forms in other versions at hand.
pub type Apply<'m> = dyn FnMut(Option<&Value>, &mut dyn Versions) -> Result<Value, Status> + Send + 'm;

impl Maker<'_> {
    async fn make(&mut self, call: &Call<'_, '_>, old: Option<&Value>) -> Result<Value, Status> {
        if let Maker::Stored(make) = self {
            return make(old);
        }
        let shown = match old {
            Some(old) => Some(call.to_requested(old.clone()).await?),
            None => None,
        };
        let made = match self {
            Maker::Stored(make) | Maker::Requested(make) => make(shown.as_ref())?,
            Maker::Applied(apply) => versions::with(call, &mut |versions| apply(shown.as_ref(), versions)).await??,
        };
        call.to_stored(made).await
    }
}

/// Runs admission: `admit` of every plugin, or `validate` of every plugin.
pub async fn admission(server: &ApiServer, review: &mut Review<'_>, mutate: bool) -> Result<(), Status> {
    let (round, whole) = (if mutate { Round::Admit } else { Round::Validate }, Stopwatch::start());
    let outcome = run_plugins(server, review, round).await;
    server.admission_times.step(round, review.operation, outcome.is_err(), whole.elapsed());
    outcome
}

async fn run_plugins(server: &ApiServer, review: &mut Review<'_>, round: Round) -> Result<(), Status> {
    loop {
        for plugin in handling(server, review) {
            let own = Stopwatch::start();
            let outcome = match round {
                Round::Admit => plugin.admit(review).await,
                Round::Validate => plugin.validate(review).await,
            };
            server.admission_times.plugin(plugin.name(), round, review.operation, outcome.is_err(), own.elapsed());
            outcome?;
        }
        if round == Round::Validate {
            return Ok(());
        }
        if !review.again.wanted() {
            return Ok(());
        }
        review.again.begin_second();
    }
}

fn handling<'s>(server: &'s ApiServer, review: &Review<'_>) -> Vec<&'s dyn Plugin> {
    let plugins = server.guards.plugins.iter().map(AsRef::as_ref);
    plugins.filter(|plugin| plugin.handles(review.operation, review.attributes)).collect()
}

/// The manager of written fields: `fieldManager`, else the first part of the user agent.
pub fn manager(call: &Call<'_, '_>) -> Result<String, Status> {
    let given = call.x.query.text("fieldManager");
    if given.len() > 128 {
        let kind = match call.x.attributes.verb.as_str() {
            "create" => "CreateOptions",
            "patch" => "PatchOptions",
            _ => "UpdateOptions",
        };
        return Err(Status::options(kind, schema::validate::error::FieldError::too_long("fieldManager", 128)));
    }
    if !given.is_empty() {
        return Ok(given.to_owned());
    }
    let agent = call.x.parts.headers.get(http::header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("unknown");
    Ok(agent.split('/').next().unwrap_or_default().chars().take(128).collect())
}

/// Records who wrote which field of `new`, in the version of the request.
///
/// Errors: the objects have no form in that version.
pub async fn track(call: &Call<'_, '_>, manager: &str, old: Option<&Value>, new: &mut Value) -> Result<(), Status> {
    let now = base::time::rfc3339_secs(call.x.server.config.clock.now());
    let subresource = call.x.attributes.subresource.clone();
    let owners = schema::strategy::owners::of(&call.stored);
    let request = schema::apply::Request {
        type_def: call.resource.type_def(),
        api_version: &call.resource.api_version(),
        subresource: &subresource,
        manager,
        now: &now,
        reset: &owners.not_written(&subresource),
        only: owners.of_subresource(&subresource).unwrap_or_default(),
    };
    if request.api_version == call.stored.api_version() {
        return track_in(call, &request, old, new).await;
    }
    let shown = match old {
        Some(old) => Some(call.to_requested(old.clone()).await?),
        None => None,
    };
    let mut made = call.to_requested(new.clone()).await?;
    track_in(call, &request, shown.as_ref(), &mut made).await?;
    meta::set_managed_fields(new, meta::managed_fields(&made).to_vec());
    Ok(())
}

async fn track_in(
    call: &Call<'_, '_>,
    request: &schema::apply::Request<'_>,
    old: Option<&Value>,
    new: &mut Value,
) -> Result<(), Status> {
    let sent = meta::managed_fields(new).to_vec();
    let mut track = |versions: &mut dyn Versions| {
        meta::set_managed_fields(new, sent.clone());
        schema::apply::track_update(request, versions, old, new);
    };
    versions::with(call, &mut track).await
}

/// Changes the object `name` by `make` and stores it. `tracked` is the manager to record, `None` if `make` did that.
pub async fn update(
    call: &mut Call<'_, '_>,
    name: &str,
    part: Part,
    create: bool,
    tracked: Option<&str>,
    mut maker: Maker<'_>,
) -> Result<Written, Status> {
    let dry_run = call.dry_run()?;
    let mut again = Again::new(&call.x.server.config.rng);
    loop {
        let old = get::read(call.x.server, &call.stored, call.namespace(), name).await?;
        let Some(old) = old else {
            if !create {
                return Err(call.not_found(name));
            }
            may_create(call, name).await?;
            let new = maker.make(call, None).await?;
            match super::create::store(call, new, tracked, dry_run).await {
                // Somebody made it meanwhile: now it is there to be changed.
                Err(status) if status.reason == "AlreadyExists" => again.pause().await,
                made => return made.map(Written::Created),
            }
            continue;
        };
        let rv = old.rv;
        call.x.weight.add(old.json.len()).await;
        // What an older definition stored may be in another version.
        let old = conversion::one(call.x.server.cache.converter(), old.value(), &call.stored, &call.stored).await?;
        let mut new = maker.make(call, Some(&old)).await?;
        // Addresses are given out one service at a time, until they are stored.
        let gives = part == Part::Main && hooks::of(&call.stored.group, &call.stored.plural).addresses;
        let turn = if gives { Some(call.x.server.turn().await?) } else { None };
        if call.x.attributes.verb == "update"
            && meta::resource_version(&new).is_empty()
            && !schema::strategy::owners::of(&call.stored).unconditional
        {
            return Err(unversioned(&call.resource, name));
        }
        unmoved(&call.resource, name, &new, &old, call.x.attributes.verb == "update")?;
        let charge = judge(call, part, &mut new, &old, dry_run).await?;
        let beside = Beside { turn: turn.as_ref(), charge: charge.as_ref() };
        if let Some(manager) = tracked {
            track(call, manager, Some(&old), &mut new).await?;
        }
        if ends(&call.stored, &new, &old) {
            if dry_run || remove(call.x.server, &call.stored, call.namespace(), name, rv).await?.is_some() {
                return Ok(Written::Deleted(new));
            }
        } else if dry_run || unchanged(&new, &old) {
            return Ok(Written::Updated(if dry_run { new } else { old }));
        } else if let Some(at) =
            put_beside(call.x.server, &call.stored, call.namespace(), name, &mut new, rv, beside).await?
        {
            meta::set_resource_version(&mut new, &at.to_string());
            return Ok(Written::Updated(new));
        }
        // Somebody was faster. A version that the client named no longer fits and ends the next round; a patch is laid
        // on what is there now.
        drop((turn, charge));
        again.pause().await;
    }
}

/// Whoever creates an object by an update or an apply needs the right to create it as well.
///
/// Errors: 403. Spec: `withAuthorization` of upstream's apiserver/pkg/endpoints/handlers/update.go (v1.36.2); asked
/// earlier than there, before any plugin of admission.
async fn may_create(call: &Call<'_, '_>, name: &str) -> Result<(), Status> {
    let attributes =
        Attributes { verb: "create".to_owned(), ..attributes_for(&call.x.attributes, name, call.namespace()) };
    require(call.x.server, &attributes).await
}

/// Upstream names the resource here, not the kind.
fn unversioned(resource: &Resource, name: &str) -> Status {
    let cause = Cause {
        reason: "FieldValueInvalid".to_owned(),
        message: "Invalid value: 0: must be specified for an update".to_owned(),
        field: "metadata.resourceVersion".to_owned(),
    };
    Status::invalid(&resource.group, &resource.plural, name, vec![cause])
}

/// Checks the version that the client may have sent, and the uid if it sent the whole object: a patch of it is refused
/// as a change.
fn unmoved(resource: &Resource, name: &str, new: &Value, old: &Value, is_update: bool) -> Result<(), Status> {
    let (sent, have) = (meta::uid(new), meta::uid(old));
    if is_update && !sent.is_empty() && sent != have {
        let why = format!("Precondition failed: UID in precondition: {sent}, UID in object meta: {have}");
        return Err(Status::conflict(&resource.group, &resource.plural, name, &why));
    }
    let (sent, have) = (meta::resource_version(new), meta::resource_version(old));
    if sent.is_empty() || sent == "0" || sent == have {
        Ok(())
    } else {
        Err(Status::modified(&resource.group, &resource.plural, name))
    }
}

/// Defaults, admission, strategy, validation. Answers with what a quota charged.
async fn judge(
    call: &mut Call<'_, '_>,
    part: Part,
    new: &mut Value,
    old: &Value,
    dry_run: bool,
) -> Result<Option<Charge>, Status> {
    keep_system_fields(new, old);
    if part == Part::Bound {
        let violations = trusted::violations(&call.stored, &call.x.attributes.user, new, Some(old));
        return kinds::verdict(&call.resource, meta::name(old), violations).map(|()| None);
    }
    let catalog = std::sync::Arc::clone(&call.x.catalog);
    schema::defaults::apply(&catalog, &call.stored, new);
    prepare(call, part, new, old);
    let name = meta::name(old).to_owned();
    ask_plugins(call, new, old, dry_run, true).await?;
    prepare(call, part, new, old);
    if part == Part::Main && hooks::of(&call.stored.group, &call.stored.plural).addresses {
        services::on_update(call.x.server, new, old)?;
    }
    kinds::verdict(&call.resource, &name, faults(call, part, new, old))?;
    ask_plugins(call, new, old, dry_run, false).await
}

/// One round of admission of a change. Who is asked about a scale is shown scales, as it would be upstream.
async fn ask_plugins(
    call: &mut Call<'_, '_>,
    new: &mut Value,
    old: &Value,
    dry_run: bool,
    mutate: bool,
) -> Result<Option<Charge>, Status> {
    let attributes = call.x.attributes.clone();
    let (catalog, lookup) = (std::sync::Arc::clone(&call.x.catalog), call.x.server.lookup());
    let definition = call.resource.definition.clone();
    let scales = (attributes.subresource == "scale")
        .then(|| (scale::of(definition.as_deref(), new), scale::of(definition.as_deref(), old)));
    let mut warnings = Vec::new();
    let mut scaled = None;
    let (kind, object, old) = match &scales {
        Some((new, old)) => ("Scale", scaled.insert(new.clone()), old),
        None => (call.stored.kind.as_ref(), &mut *new, old),
    };
    let mut review = Review {
        operation: Operation::Update,
        attributes: &attributes,
        kind,
        object,
        old: Some(old),
        dry_run,
        catalog: &catalog,
        lookup: lookup.as_ref(),
        warnings: &mut warnings,
        again: Default::default(),
        charge: Default::default(),
    };
    admission(call.x.server, &mut review, mutate).await?;
    let charge = review.charge.take();
    if let Some(scaled) = scaled.filter(|_| mutate) {
        scale::put_replicas(definition.as_deref(), new, scaled["spec"]["replicas"].as_i64().unwrap_or(0));
    }
    call.x.warnings.extend(warnings);
    Ok(charge)
}

/// Everything wrong with a change, by the road on which it comes.
fn faults(call: &Call<'_, '_>, part: Part, new: &Value, old: &Value) -> Vec<schema::validate::error::FieldError> {
    let subresource = call.x.attributes.subresource.as_str();
    let mut errors = match part {
        // What a running pod may not change otherwise, these may.
        Part::Special if subresource == "ephemeralcontainers" => {
            schema::validate::update_ephemeral_containers(&call.stored, new, old)
        }
        Part::Special if subresource == "approval" => schema::validate::update_approval(&call.stored, new, old),
        Part::Special if subresource == "resize" => schema::validate::update_resize(&call.stored, new, old),
        Part::Status => schema::validate::update_status(&call.stored, new, old),
        Part::Main | Part::Special | Part::Bound => schema::validate::update(&call.stored, new, old),
    };
    errors.extend(trusted::violations(&call.stored, &call.x.attributes.user, new, Some(old)));
    if part == Part::Main {
        let judge = hooks::of(&call.stored.group, &call.stored.plural).judge;
        errors.extend(judge.into_iter().flat_map(|judge| judge(new, Some(old))));
        schema::validate::asked(&call.resource, new, Some(old), &mut errors);
    }
    errors
}

fn prepare(call: &Call<'_, '_>, part: Part, new: &mut Value, old: &Value) {
    let now = base::time::rfc3339_secs(call.x.server.config.clock.now());
    match part {
        Part::Main => schema::strategy::prepare_for_update(&call.stored, new, old),
        Part::Status => schema::strategy::prepare_for_status_update(&call.stored, new, old, &now),
        Part::Bound => {}
        Part::Special => {
            let _known = schema::strategy::prepare_for_subresource_update(
                &call.stored,
                &call.x.attributes.subresource,
                new,
                old,
                &now,
            );
        }
    }
}

/// What only the server writes stays as it is.
fn keep_system_fields(new: &mut Value, old: &Value) {
    // What is said of these and is not so is refused by validation; upstream's `rest.BeforeUpdate` fills in the same.
    if meta::uid(new).is_empty() {
        meta::set_uid(new, meta::uid(old));
    }
    if let Some(end) = meta::deletion_timestamp(old) {
        meta::set_deletion_timestamp(new, Some(end));
    }
    if meta::deletion_grace_period_seconds(new).is_none() {
        meta::set_deletion_grace_period_seconds(new, meta::deletion_grace_period_seconds(old));
    }
    meta::set_creation_timestamp(new, meta::creation_timestamp(old).unwrap_or_default());
    meta::set_resource_version(new, meta::resource_version(old));
    let generation = meta::generation(old);
    if generation != 0 {
        meta::set_generation(new, generation);
    }
    if meta::metadata(new).is_some_and(|m| m.contains_key("selfLink")) {
        meta::set_text(new, "selfLink", "");
    }
}

/// Whether the update takes away the last thing that holds a dying object.
fn ends(stored: &Resource, new: &Value, old: &Value) -> bool {
    meta::deletion_timestamp(old).is_some()
        && meta::deletion_grace_period_seconds(old).unwrap_or(0) == 0
        && !is_held(stored, new)
}

/// Whether finalizers hold the object.
pub fn is_held(stored: &Resource, object: &Value) -> bool {
    let spec_holds = || object["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
    !meta::finalizers(object).is_empty() || (hooks::of(&stored.group, &stored.plural).spec_finalizers && spec_holds())
}

/// Equal but for the times in managedFields: writing it would only wake everybody.
fn unchanged(new: &Value, old: &Value) -> bool {
    if new == old {
        return true;
    }
    let timeless = |v: &Value| -> Vec<Value> {
        let strip = |entry: &Value| {
            let mut entry = entry.clone();
            if let Value::Object(map) = &mut entry {
                map.remove("time");
            }
            entry
        };
        meta::managed_fields(v).iter().map(strip).collect()
    };
    if timeless(new) != timeless(old) {
        return false;
    }
    let bare = |v: &Value| {
        let mut v = v.clone();
        meta::set_managed_fields(&mut v, Vec::new());
        v
    };
    bare(new) == bare(old)
}

fn encoded(object: &mut Value) -> Result<Bytes, Status> {
    meta::set_resource_version(object, "");
    serde_json::to_vec(object).map(Bytes::from).map_err(Status::internal)
}

/// The condition that a key was last changed at `rv` (0: is not there).
pub fn unchanged_since(key: &Bytes, rv: u64) -> Compare {
    Compare::ModRevision { key: key.clone(), op: CompareOp::Equal, revision: Revision(rv) }
}

/// Stores the object if its key still is at `rv` (0: is not there). `None`: somebody was faster.
pub async fn put(
    server: &ApiServer,
    stored: &Resource,
    namespace: &str,
    name: &str,
    object: &mut Value,
    rv: u64,
) -> Result<Option<u64>, Status> {
    put_beside(server, stored, namespace, name, object, rv, Beside::default()).await
}

/// What else must hold when an object is stored, and what is told to the other servers.
#[derive(Clone, Copy, Default)]
pub struct Beside<'a> {
    /// Addresses are given out.
    pub turn: Option<&'a Turn<'a>>,
    /// A quota charged it.
    pub charge: Option<&'a Charge>,
}

/// The same; `None` also if another server gave out addresses since the turn began, or charged a quota since this was
/// judged.
pub async fn put_beside(
    server: &ApiServer,
    stored: &Resource,
    namespace: &str,
    name: &str,
    object: &mut Value,
    rv: u64,
    beside: Beside<'_>,
) -> Result<Option<u64>, Status> {
    let key = Bytes::from(keys::object(&stored.group, &stored.plural, namespace, name));
    let value = encoded(object)?;
    let mut txn = Txn { compare: vec![unchanged_since(&key, rv)], ..Txn::default() };
    txn.success.push(Op::Put { key, value, lease: 0, prev_kv: false });
    if let Some(turn) = beside.turn {
        txn.compare.push(turn.still_ours());
        txn.success.push(turn.taken());
    }
    let Some(charge) = beside.charge else { return run(server, txn).await };
    charge.join(&mut txn);
    let done = run(server, txn).await?;
    charge.settle(done);
    Ok(done)
}

/// Writes a stored value anew, unchanged, if nobody has changed it since it was read.
pub async fn put_as_it_is(server: &ApiServer, kv: store::KeyValue) -> Result<bool, Status> {
    let put = Op::Put { key: kv.key.clone(), value: kv.value, lease: kv.lease, prev_kv: false };
    let done = run(
        server,
        Txn { compare: vec![unchanged_since(&kv.key, kv.mod_revision.0)], success: vec![put], failure: Vec::new() },
    )
    .await?;
    Ok(done.is_some())
}

/// Deletes the object if its key still is at `rv`. `None`: somebody was faster.
pub async fn remove(
    server: &ApiServer,
    stored: &Resource,
    namespace: &str,
    name: &str,
    rv: u64,
) -> Result<Option<u64>, Status> {
    let key = Bytes::from(keys::object(&stored.group, &stored.plural, namespace, name));
    let delete = Op::Delete { key: key.clone(), range_end: Bytes::new(), prev_kv: false };
    run(server, Txn { compare: vec![unchanged_since(&key, rv)], success: vec![delete], failure: Vec::new() }).await
}

async fn run(server: &ApiServer, txn: Txn) -> Result<Option<u64>, Status> {
    let operation = if txn.compare.iter().any(|c| matches!(c, Compare::ModRevision { revision: Revision(0), .. })) {
        "create"
    } else {
        "update"
    };
    let watch = Stopwatch::start();
    let reply = server.cache.storage().txn(txn).await;
    crate::metrics::stored(operation, watch.elapsed());
    let reply = reply?;
    if !reply.succeeded {
        return Ok(None);
    }
    // The writer and everybody it tells must find the write in the cache.
    server.cache.wait_for(reply.revision.0).await;
    Ok(Some(reply.revision.0))
}

/// The attributes of a request that this server makes for one object of a collection.
pub fn attributes_for(base: &Attributes, name: &str, namespace: &str) -> Attributes {
    Attributes { name: name.to_owned(), namespace: namespace.to_owned(), ..base.clone() }
}

/// The metadata that every new object gets.
pub fn stamp(server: &ApiServer, object: &mut Value) {
    meta::set_uid(object, &server.config.rng.uuid());
    meta::set_creation_timestamp(object, &base::time::rfc3339_secs(server.config.clock.now()));
    for field in ["resourceVersion", "selfLink", "deletionTimestamp"] {
        meta::set_text(object, field, "");
    }
    meta::set_deletion_grace_period_seconds(object, None);
}
