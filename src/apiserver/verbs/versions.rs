//! An object in the other versions of its resource, for managers of fields that wrote in those.
//!
//! `schema` asks for a form where it needs one and waits for nobody. A form that only a webhook can make is noted,
//! fetched, and then all is computed again.

use std::sync::Arc;

use registry::status::Status;
use registry::{conversion, forms};
use schema::apply::versions::{Between, Versions};
use schema::catalog::Catalog;
use schema::table::{GroupVersion, Resource};
use serde_json::Value;

use super::Call;

/// Forms of objects, as far as they are known.
struct Forms {
    catalog: Arc<Catalog>,
    stored: Arc<Resource>,
    known: Vec<(Wanted, Value)>,
    wanted: Vec<Wanted>,
}

/// An object, and the version in which it is wanted.
#[derive(PartialEq)]
struct Wanted {
    object: Value,
    from: String,
    to: String,
}

impl Versions for Forms {
    fn resource(&self, api_version: &str) -> Option<Arc<Resource>> {
        let found = self.catalog.resource(GroupVersion::parse(api_version), &self.stored.plural)?;
        let kept_as = self.catalog.storage_of(found);
        let is_ours = kept_as.group == self.stored.group && kept_as.version == self.stored.version;
        is_ours.then(|| Arc::clone(found))
    }

    fn convert(&mut self, object: &Value, Between { from, to }: Between<'_>) -> Option<Value> {
        let (row, target) = (self.resource(from)?, self.resource(to)?);
        if conversion::by_webhook(&target).is_none() {
            return forms::convert(object.clone(), &row, &target).ok();
        }
        let wanted = Wanted { object: object.clone(), from: from.to_owned(), to: to.to_owned() };
        if let Some((_, known)) = self.known.iter().find(|(known, _)| *known == wanted) {
            return Some(known.clone());
        }
        self.wanted.push(wanted);
        None
    }
}

/// The result of `compute` once it has all the forms that it asks for.
///
/// Errors: a conversion webhook failed.
pub async fn with<T>(
    call: &Call<'_, '_>,
    compute: &mut (dyn FnMut(&mut dyn Versions) -> T + Send),
) -> Result<T, Status> {
    let (catalog, stored) = (Arc::clone(&call.x.catalog), Arc::clone(&call.stored));
    let mut forms = Forms { catalog, stored, known: Vec::new(), wanted: Vec::new() };
    loop {
        let made = compute(&mut forms);
        if forms.wanted.is_empty() {
            return Ok(made);
        }
        // Made without them: it does not count.
        drop(made);
        for wanted in std::mem::take(&mut forms.wanted) {
            let (Some(from), Some(to)) = (forms.resource(&wanted.from), forms.resource(&wanted.to)) else { continue };
            let form = conversion::one(&call.x.server.objects.converter, wanted.object.clone(), &from, &to).await?;
            forms.known.push((wanted, form));
        }
    }
}
