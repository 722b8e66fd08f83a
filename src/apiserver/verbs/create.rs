//! `create`: a new object.

use std::sync::Arc;

use http::{Response, StatusCode};
use model::meta;
use model::reference::{GroupResource, NamespacedName};
use registry::status::{Cause, Status};
use registry::{forms, negotiate};
use schema::table::GroupVersion;
use serde_json::Value;
use wire::Body;

use super::judge::{self, Change, Part};
use super::retry::Retry;
use super::{Call, managers, present};

/// A generated name is drawn again this often when it is taken, as upstream.
const NAME_TRIES: usize = 8;
/// Longest prefix of a generated name and length of its tail.
const GENERATED_PREFIX_MAX: usize = 58;
const GENERATED_TAIL: usize = 5;

/// Answers with the stored object and 201.
pub async fn run(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let object = posted(call).await?;
    let answers =
        call.x.server.virtuals.iter().find(|(g, r, _)| *g == call.resource.group && *r == call.resource.plural);
    if let Some((_, _, answers)) = answers {
        let mut object = object;
        // An answer that is computed and never stored has no rows to show.
        if call.output.transform == negotiate::Transform::Table {
            let of = call.resource.qualified();
            return Err(Status::new(
                406,
                "NotAcceptable",
                format!("the resource {of} does not support being converted to a Table"),
            ));
        }
        check_namespace(call, &mut object)?;
        schema::defaults::apply(&call.resource, &mut object);
        let answer = answers.create(&call.x.attributes, object).await?;
        return present::object(call, StatusCode::CREATED, answer);
    }
    // The definition may have changed since the request came in.
    if call.stored.custom
        && call
            .x
            .server
            .objects
            .catalogs
            .now()
            .resource(GroupVersion { group: &call.stored.group, version: &call.resource.version }, &call.stored.plural)
            .and_then(|r| r.definition.clone())
            .is_some_and(|d| d.terminating)
    {
        let mut status = Status::method_not_allowed();
        status.message = "create not allowed while custom resource definition is terminating".to_owned();
        return Err(status);
    }
    let mut object = call.to_stored(object).await?;
    check_namespace(call, &mut object)?;
    let manager = managers::named(call)?;
    let dry_run = call.dry_run()?;
    let stored = store(call, object, Some(&manager), dry_run).await?;
    let shown = call.to_requested(stored).await?;
    present::object(call, StatusCode::CREATED, shown)
}

/// The body, as an object of the kind that is asked for.
///
/// Errors: 400 or 415, it is none.
pub async fn posted(call: &mut Call<'_, '_>) -> Result<Value, Status> {
    let format = negotiate::input(&call.x.parts.headers)?;
    let bytes = call.body().await?;
    let strictness = call.x.query.text("fieldValidation").to_owned();
    forms::decode_body(&bytes, format, &call.resource, &strictness, &mut call.x.warnings)
}

/// The object lives in the namespace of the URL, or nowhere.
fn check_namespace(call: &Call<'_, '_>, object: &mut Value) -> Result<(), Status> {
    let (sent, url) = (meta::namespace(object).to_owned(), call.namespace().to_owned());
    if !sent.is_empty() && sent != url {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    meta::set_namespace(object, &url);
    Ok(())
}

/// Names, completes, judges and stores a new object of the storage version. `tracked` as in
/// [`update`](super::write::update).
pub async fn store(
    call: &mut Call<'_, '_>,
    object: Value,
    tracked: Option<&str>,
    dry_run: bool,
) -> Result<Value, Status> {
    let prefix = meta::generate_name(&object).to_owned();
    let generated = meta::name(&object).is_empty() && !prefix.is_empty();
    if meta::name(&object).is_empty() && !generated {
        let cause = Cause {
            reason: "FieldValueRequired".into(),
            message: "Required value: name or generateName is required".into(),
            field: "metadata.name".into(),
        };
        return Err(Status::invalid(call.resource.group_kind(), "", vec![cause]));
    }
    let (group, plural) = (call.resource.group.clone(), call.resource.plural.clone());
    let (mut n_taken, mut moved) = (0, Retry::new(&call.x.server.objects.rng));
    loop {
        let mut candidate = object.clone();
        if generated {
            let stem: String = prefix.chars().take(GENERATED_PREFIX_MAX).collect();
            let name = format!("{stem}{}", call.x.server.objects.rng.name_suffix(GENERATED_TAIL));
            meta::set_name(&mut candidate, &name);
        }
        let name = meta::name(&candidate).to_owned();
        let said_version = !meta::resource_version(&object).is_empty();
        match attempt(call, &mut candidate, &name, &Wish { creator: tracked, said_version, dry_run }).await? {
            Attempt::Stored => return Ok(candidate),
            Attempt::Moved => moved.pause().await,
            Attempt::Taken if !generated => {
                return Err(Status::already_exists(GroupResource { group: &group, resource: &plural }, &name));
            }
            Attempt::Taken if n_taken < NAME_TRIES => n_taken += 1,
            Attempt::Taken => {
                return Err(Status::generate_name_conflict(
                    GroupResource { group: &group, resource: &plural },
                    &prefix,
                ));
            }
        }
    }
}

/// Wishes of a create beside the object.
struct Wish<'w> {
    /// The manager of what was sent.
    creator: Option<&'w str>,
    /// The client gave a resource version, which is refused: but policies get to speak first.
    said_version: bool,
    dry_run: bool,
}

/// Outcome of one try with one name.
enum Attempt {
    Stored,
    /// The name is taken.
    Taken,
    /// Another server gave out addresses, or charged a quota, meanwhile.
    Moved,
}

/// One try with one name.
async fn attempt(call: &mut Call<'_, '_>, object: &mut Value, name: &str, wish: &Wish<'_>) -> Result<Attempt, Status> {
    let change = Change { part: Part::Main, old: None, creator: wish.creator, dry_run: wish.dry_run };
    let judged = judge::judge(call, &change, object).await?;
    if wish.said_version {
        return Err(Status::bad_request("resourceVersion should not be set on objects to be created"));
    }
    let objects = Arc::clone(&call.x.server.objects);
    let is_free = async || {
        Ok::<bool, Status>(
            objects.read(&call.stored, NamespacedName { namespace: call.namespace(), name }).await?.is_none(),
        )
    };
    if wish.dry_run {
        return Ok(if is_free().await? { Attempt::Stored } else { Attempt::Taken });
    }
    let Some(rv) = judged.put(call, name, object, 0).await? else {
        return Ok(if judged.is_shared() && is_free().await? { Attempt::Moved } else { Attempt::Taken });
    };
    meta::set_resource_version(object, &rv.to_string());
    Ok(Attempt::Stored)
}
