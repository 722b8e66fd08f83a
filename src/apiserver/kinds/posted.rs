//! Bodies of a subresource's own kind, which are asked of the server and never stored.

use std::sync::Arc;

use admission::{Operation, Review};
use registry::status::Status;
use registry::{forms, negotiate};
use serde_json::Value;

use crate::verbs::{Call, update};

/// The body of a create, of the subresource's own kind.
pub(super) async fn posted(call: &mut Call<'_, '_>) -> Result<Value, Status> {
    let sub = call.sub.clone().ok_or_else(Status::method_not_allowed)?;
    let format = negotiate::input(&call.x.parts.headers)?;
    let bytes = call.body().await?;
    let catalog = Arc::clone(&call.x.catalog);
    let of = catalog
        .type_of_kind(sub.kind.group_version(), &sub.kind.kind)
        .ok_or_else(|| Status::internal("the table lacks this kind"))?;
    let strictness = call.x.query.text("fieldValidation").to_owned();
    let mut object = forms::decode_as(
        &bytes,
        format,
        (&sub.kind.api_version(), &sub.kind.kind),
        of,
        &strictness,
        &mut call.x.warnings,
    )?;
    let name = call.x.attributes.name.clone();
    update::check_address(call, &mut object, &name)?;
    Ok(object)
}

/// Runs both rounds of admission for what was posted.
pub(super) async fn admit(
    call: &mut Call<'_, '_>,
    kind: &str,
    object: &mut Value,
    dry_run: bool,
) -> Result<(), Status> {
    let attributes = call.x.attributes.clone();
    let server = call.x.server;
    let mut warnings = Vec::new();
    let mut review = Review {
        operation: Operation::Create,
        attributes: &attributes,
        kind,
        object,
        old: None,
        dry_run,
        catalog: &call.x.catalog,
        lookup: server.objects.cache.as_ref(),
        versions: server.objects.as_ref(),
        warnings: &mut warnings,
        reinvocation: Default::default(),
        charge: Default::default(),
    };
    server.admission.both(&mut review).await?;
    call.x.warnings.extend(warnings);
    Ok(())
}
