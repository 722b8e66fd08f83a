//! Field selectors over custom objects that a webhook converts: the version asked for is what they judge.

use std::sync::Arc;

use bytes::Bytes;
use schema::fields::FieldSelector;
use schema::table::Resource;

use super::conversion;
use crate::cache::change::{Change, EventType};
use crate::cache::entry::Entry;
use crate::cache::filter::Filter;
use crate::objects::Objects;
use crate::status::Status;

/// The terms of a selector that cannot be judged on what is stored.
pub struct Selection {
    fields: FieldSelector,
    objects: Arc<Objects>,
    stored: Arc<Resource>,
    wanted: Arc<Resource>,
}

impl Selection {
    /// Takes the terms out of `filter` that must be judged on converted objects; `None` if there are none.
    pub fn split(
        filter: &mut Filter,
        objects: &Arc<Objects>,
        stored: &Arc<Resource>,
        wanted: &Arc<Resource>,
    ) -> Option<Selection> {
        conversion::by_webhook(wanted)?;
        let judged_by_key = filter.fields.terms().iter().all(|t| t.field.starts_with("metadata."));
        if judged_by_key {
            return None;
        }
        let fields = std::mem::take(&mut filter.fields);
        Some(Selection { fields, objects: Arc::clone(objects), stored: Arc::clone(stored), wanted: Arc::clone(wanted) })
    }

    /// The object in the version asked for, if the selector takes it.
    ///
    /// Errors: the webhook failed.
    pub async fn judge(&self, json: &Bytes) -> Result<Option<Bytes>, Status> {
        let object = serde_json::from_slice(json).map_err(Status::internal)?;
        let object = conversion::one(&self.objects.converter, object, &self.stored, &self.wanted).await?;
        if !self.fields.matches_object(&object) {
            return Ok(None);
        }
        serde_json::to_vec(&object).map(|json| Some(json.into())).map_err(Status::internal)
    }

    /// Those of the entries that the selector takes.
    ///
    /// Errors: the webhook failed.
    pub async fn keep(&self, entries: Vec<Arc<Entry>>) -> Result<Vec<Arc<Entry>>, Status> {
        let objects = entries.iter().map(|e| e.value()).collect();
        let converted = self.objects.converter.convert(objects, &self.wanted, &self.wanted.list_kind).await?;
        Ok(entries.into_iter().zip(converted).filter(|(_, o)| self.fields.matches_object(o)).map(|(e, _)| e).collect())
    }

    /// The event that a change is to a watcher who sees it as `event` by all else, with the object in the version asked
    /// for.
    ///
    /// Errors: the webhook failed.
    pub async fn see(&self, event: EventType, change: &Change) -> Result<Option<(EventType, Bytes)>, Status> {
        let before = match event {
            EventType::Added => None,
            EventType::Modified | EventType::Deleted => self.judge(&change.object(EventType::Deleted)).await?,
        };
        let after = match event {
            EventType::Deleted => None,
            EventType::Added | EventType::Modified => self.judge(&change.object(event)).await?,
        };
        Ok(outcome(before, after))
    }
}

fn outcome(before: Option<Bytes>, after: Option<Bytes>) -> Option<(EventType, Bytes)> {
    match (before, after) {
        (None, Some(object)) => Some((EventType::Added, object)),
        (Some(_), Some(object)) => Some((EventType::Modified, object)),
        (Some(object), None) => Some((EventType::Deleted, object)),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entering_and_leaving_a_selector_is_coming_and_going() {
        let object = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
        assert_eq!(outcome(None, object("b")), Some((EventType::Added, Bytes::from_static(b"b"))));
        assert_eq!(outcome(object("a"), object("b")), Some((EventType::Modified, Bytes::from_static(b"b"))));
        assert_eq!(outcome(object("a"), None), Some((EventType::Deleted, Bytes::from_static(b"a"))));
        assert_eq!(outcome(None, None), None);
    }
}
