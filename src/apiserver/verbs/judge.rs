//! The one road of every write of an object, new or changed: defaults, admission, preparation, addresses, validation.

use std::sync::Arc;

use admission::charges::Charge;
use admission::timing::Round;
use admission::{Operation, Review};
use model::meta;
use model::reference::NamespacedName;
use registry::attributes::Attributes;
use registry::services::allocator::Turn;
use registry::status::Status;
use registry::{forms, trusted};
use schema::behaviour::ServerPart;
use serde_json::Value;
use store::Txn;

use super::{Call, managers, scale_view};
use crate::certificates;

/// Which half of an object a request may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything but `status` (where `status` is a subresource).
    Main,
    /// `status` and metadata.
    Status,
    /// The part that a special subresource takes care of.
    Subresource,
    /// The server's own change after a judged request (a Binding): the rules for clients' updates do not apply.
    Binding,
}

/// A write that is judged.
pub struct Change<'c> {
    /// Which half of the object it may change; of a new one, [`Part::Main`].
    pub part: Part,
    /// The stored object; `None`: the object is new.
    pub old: Option<&'c Value>,
    /// Whose fields those of a new object are. It owns what it sent, not what admission and strategy add.
    pub creator: Option<&'c str>,
    /// Nothing will be stored.
    pub dry_run: bool,
}

/// Conditions under which a judged object is stored.
#[derive(Default)]
pub struct Judged<'a> {
    /// Addresses were given out.
    turn: Option<Turn<'a>>,
    /// A quota charged it.
    charge: Option<Charge>,
}

impl Judged<'_> {
    /// Whether storing may fail because of another server and not because of the object.
    pub fn is_shared(&self) -> bool {
        self.turn.is_some() || self.charge.is_some()
    }

    /// Stores the object if its key still is at `rv` (0: is not there). `None`: somebody was faster, or another server
    /// gave out addresses since the turn began, or charged a quota since this was judged.
    ///
    /// Errors: the store fails.
    pub async fn put(
        &self,
        call: &Call<'_, '_>,
        name: &str,
        object: &mut Value,
        rv: u64,
    ) -> Result<Option<u64>, Status> {
        let mut txn = Txn::default();
        if let Some(turn) = &self.turn {
            turn.join(&mut txn);
        }
        let objects = &call.x.server.objects;
        let Some(charge) = &self.charge else {
            return objects
                .put_within(txn, &call.stored, NamespacedName { namespace: call.namespace(), name }, object, rv)
                .await;
        };
        charge.join(&mut txn);
        let done = objects
            .put_within(txn, &call.stored, NamespacedName { namespace: call.namespace(), name }, object, rv)
            .await?;
        charge.settle(done);
        Ok(done)
    }
}

/// Completes and judges an object of the storage version. Addresses that it was given are held until the answer is
/// dropped.
///
/// Errors: 403 of admission, 422 of validation.
pub async fn judge<'a>(call: &mut Call<'_, 'a>, change: &Change<'_>, new: &mut Value) -> Result<Judged<'a>, Status> {
    let (part, old) = (change.part, change.old);
    match old {
        Some(old) => keep_system_fields(new, old),
        None => call.x.server.objects.stamp(new),
    }
    let name = meta::name(old.unwrap_or(new)).to_owned();
    if part == Part::Binding {
        let violations = trusted::violations(&call.stored, &call.x.attributes.user, new, old);
        return forms::verdict(&call.resource, &name, violations).map(|()| Judged::default());
    }
    schema::defaults::apply(&call.stored, new);
    match (old, change.creator) {
        (Some(_), _) => prepare(call, part, new, old),
        (None, Some(creator)) => managers::track(call, creator, None, new).await?,
        (None, None) => {}
    }
    ask_plugins(call, change, &name, new, Round::Admit).await?;
    prepare(call, part, new, old);
    let by_server = call.stored.behaviour.server;
    if old.is_none() {
        certificates::sign(by_server, &call.x.attributes.user, new);
    }
    // Held until the addresses are stored: nobody else may be given the same.
    let turn = if part == Part::Main && by_server == ServerPart::Addresses {
        let allocator = &call.x.server.allocator;
        let turn = allocator.turn().await?;
        match old {
            None => allocator.on_create(new)?,
            Some(old) => allocator.on_update(new, old)?,
        }
        Some(turn)
    } else {
        None
    };
    forms::verdict(&call.resource, &name, faults(call, part, new, old))?;
    let charge = ask_plugins(call, change, &name, new, Round::Validate).await?;
    Ok(Judged { turn, charge })
}

/// One round of admission, about the name under which the object is stored. A plugin that is asked about a scale is
/// shown scales, as it would be upstream.
async fn ask_plugins(
    call: &mut Call<'_, '_>,
    change: &Change<'_>,
    name: &str,
    new: &mut Value,
    round: Round,
) -> Result<Option<Charge>, Status> {
    let attributes = match change.old {
        Some(_) => call.x.attributes.clone(),
        None => attributes_for(&call.x.attributes, NamespacedName { namespace: call.namespace(), name }),
    };
    let (server, catalog) = (call.x.server, Arc::clone(&call.x.catalog));
    let definition = call.resource.definition.clone();
    let scale_of = |object: &Value| scale_view::of(definition.as_deref(), object);
    let scales = change.old.filter(|_| attributes.subresource == "scale").map(|old| (scale_of(new), scale_of(old)));
    let mut warnings = Vec::new();
    let mut scaled = None;
    let (kind, object, old) = match &scales {
        Some((new, old)) => ("Scale", scaled.insert(new.clone()), Some(old)),
        None => (call.stored.kind.as_ref(), &mut *new, change.old),
    };
    let mut review = Review {
        operation: if change.old.is_some() { Operation::Update } else { Operation::Create },
        attributes: &attributes,
        kind,
        object,
        old,
        dry_run: change.dry_run,
        catalog: &catalog,
        lookup: server.objects.cache.as_ref(),
        versions: server.objects.as_ref(),
        warnings: &mut warnings,
        reinvocation: Default::default(),
        charge: Default::default(),
    };
    server.admission.run(&mut review, round).await?;
    let charge = review.charge.take();
    if let Some(scaled) = scaled.filter(|_| round == Round::Admit) {
        scale_view::put_replicas(definition.as_deref(), new, scaled["spec"]["replicas"].as_i64().unwrap_or(0));
    }
    call.x.warnings.extend(warnings);
    Ok(charge)
}

/// The attributes of a request that this server makes for one object of a collection.
pub fn attributes_for(base: &Attributes, named: NamespacedName<'_>) -> Attributes {
    Attributes { name: named.name.to_owned(), namespace: named.namespace.to_owned(), ..base.clone() }
}

/// Everything wrong with a change, by the road on which it comes.
fn faults(
    call: &Call<'_, '_>,
    part: Part,
    new: &Value,
    old: Option<&Value>,
) -> Vec<schema::validate::error::FieldError> {
    let subresource = call.x.attributes.subresource.as_str();
    let mut errors = match (old, part) {
        (None, _) => schema::validate::create(&call.stored, new),
        (Some(old), Part::Subresource) => schema::validate::update_part(&call.stored, subresource, new, old),
        (Some(old), Part::Status) => schema::validate::update_status(&call.stored, new, old),
        (Some(old), Part::Main | Part::Binding) => schema::validate::update(&call.stored, new, old),
    };
    errors.extend(trusted::violations(&call.stored, &call.x.attributes.user, new, old));
    if part == Part::Main {
        errors.extend(certificates::faults(call.stored.behaviour.server, new, old));
        schema::validate::asked(&call.resource, new, old, &mut errors);
    }
    errors
}

/// Applies the strategy of the kind to what was sent.
fn prepare(call: &Call<'_, '_>, part: Part, new: &mut Value, old: Option<&Value>) {
    let Some(old) = old else { return schema::strategy::prepare_for_create(&call.stored, new) };
    let now = base::time::rfc3339_secs(call.x.server.objects.clock.now());
    match part {
        Part::Main => schema::strategy::prepare_for_update(&call.stored, new, old),
        Part::Status => schema::strategy::prepare_for_status_update(&call.stored, new, old, &now),
        Part::Binding => {}
        Part::Subresource => {
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

/// Keeps the fields that the server alone writes.
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
