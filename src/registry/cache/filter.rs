//! Which objects a list or watch wants.

use std::sync::Arc;

use model::labels::Selector;
use schema::fields::FieldSelector;
use schema::table::Name;

use super::entry::Entry;

/// Namespace, labels and fields, all of which must fit.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// `None`: all namespaces, or cluster scope.
    pub namespace: Option<String>,
    /// By labels.
    pub labels: Selector,
    /// By fields.
    pub fields: FieldSelector,
    /// The resource's selectable fields: positions in [`Entry::field`].
    pub selectable: Arc<[Name]>,
}

impl Filter {
    /// Whether the object is wanted.
    pub fn matches(&self, entry: &Entry) -> bool {
        if self.namespace.as_deref().is_some_and(|ns| ns != entry.namespace()) {
            return false;
        }
        let fields_match = self.fields.is_empty()
            || self.fields.matches(&|field| match field {
                "metadata.name" => entry.name().to_owned(),
                "metadata.namespace" => entry.namespace().to_owned(),
                other => {
                    let at = self.selectable.iter().position(|s| *s == other);
                    at.and_then(|at| entry.field(at)).unwrap_or_default().to_owned()
                }
            });
        fields_match && (self.labels.is_empty() || self.labels.matches_with(&|key| entry.label(key)))
    }

    /// Wants everything in its namespace.
    pub fn is_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }
}
