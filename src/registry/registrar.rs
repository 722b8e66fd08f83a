//! Objects of the server's own: made if they are missing, and brought back to what they should be. Admission is not
//! asked, for these are what it works with.

use std::sync::Arc;

use model::meta;
use model::reference::NamespacedName;
use schema::behaviour::ServerPart;
use serde_json::Value;
use store::Txn;

use crate::forms;
use crate::objects::Objects;
use crate::services::allocator::Allocator;
use crate::status::Status;

/// Lost races are run again this often.
const TRIES: usize = 8;

/// Writes objects of the server's own.
pub struct Registrar {
    /// Where they are written.
    pub objects: Arc<Objects>,
    /// Services among them are given addresses.
    pub allocator: Arc<Allocator>,
}

impl Registrar {
    /// Creates an object if there is none of its name; true if it did.
    ///
    /// Errors: unknown kind, invalid object, the store.
    pub async fn ensure(&self, object: Value) -> Result<bool, Status> {
        let resource = self.objects.row_of(&object)?;
        if resource.behaviour.server != ServerPart::Addresses {
            return self.objects.ensure(object).await;
        }
        let turn = self.allocator.turn().await?;
        let mut txn = Txn::default();
        turn.join(&mut txn);
        self.objects.ensure_within(txn, object, |object| self.allocator.on_create(object)).await
    }

    /// Makes the stored object have the labels and everything but metadata and status of `want`; creates it if it is
    /// missing. True if something was written. No admission.
    ///
    /// Errors: as [`Registrar::ensure`].
    pub async fn reconcile(&self, want: Value) -> Result<bool, Status> {
        let resource = self.objects.row_of(&want)?;
        let (namespace, name) = (meta::namespace(&want).to_owned(), meta::name(&want).to_owned());
        for _ in 0..TRIES {
            let Some(have) =
                self.objects.read(&resource, NamespacedName { namespace: &namespace, name: &name }).await?
            else {
                return self.ensure(want).await;
            };
            let old = have.value();
            let mut new = old.clone();
            for (key, value) in
                want.as_object().into_iter().flatten().filter(|(k, _)| !matches!(k.as_str(), "metadata" | "status"))
            {
                new[key] = value.clone();
            }
            for (key, value) in meta::labels(&want).into_iter().flatten() {
                meta::set_label(&mut new, key, value.as_str().unwrap_or_default());
            }
            schema::defaults::apply(&resource, &mut new);
            if new == old {
                return Ok(false);
            }
            forms::verdict(&resource, &name, schema::validate::create(&resource, &new))?;
            if self
                .objects
                .put(&resource, NamespacedName { namespace: &namespace, name: &name }, &mut new, have.rv)
                .await?
                .is_some()
            {
                return Ok(true);
            }
        }
        Err(Status::modified(resource.group_resource(), &name))
    }
}
