//! Adoption and release: the objects that a workload's selector makes its own, and those it lets go.
//!
//! Spec: upstream's `ControllerRefManager` (pkg/controller/controller_ref_manager.go).

use std::sync::Arc;

use client::informer::Kind;
use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams};
use model::owners::{self, Claim};
use serde_json::{Value, json};

use crate::driver::{self, Error};

/// A workload that adopts and releases.
pub(crate) struct Adoption<'a, O> {
    pub(crate) owner: &'a O,
    pub(crate) selector: &'a LabelSelector,
    /// The finalizer that an adopted object gets beside its owner, and a released one loses.
    pub(crate) finalizer: Option<&'static str>,
}

/// An object that is the workload's.
pub(crate) enum Claimed<K> {
    /// It was before.
    Owned(Arc<K>),
    /// It has just become so; as the API returned it.
    Adopted(Arc<K>),
}

impl<K> Claimed<K> {
    /// The object if it was the workload's before: the watch brings the adopted one.
    pub(crate) fn owned(self) -> Option<Arc<K>> {
        match self {
            Claimed::Owned(object) => Some(object),
            Claimed::Adopted(_) => None,
        }
    }

    /// The object, since whenever it is the workload's.
    pub(crate) fn any(self) -> Arc<K> {
        let (Claimed::Owned(object) | Claimed::Adopted(object)) = self;
        object
    }
}

impl<O: Kind + Metadata<Ty = ObjectMeta>> Adoption<'_, O> {
    /// The objects that are the workload's, in their order, after adopting and releasing. `refine` may change what the
    /// selector alone says of one.
    pub(crate) async fn adopt_and_release<K: Kind>(
        &self,
        api: &Api<K>,
        objects: Vec<Arc<K>>,
        refine: impl Fn(&K, Claim) -> Claim + Send + Sync,
    ) -> Result<Vec<Claimed<K>>, Error> {
        let mut claimed = Vec::new();
        for object in objects {
            let name = object.name_any();
            let send =
                |patch: Value| async move { api.patch(&name, &PatchParams::default(), &Patch::Strategic(patch)).await };
            match refine(&object, owners::claim(self.owner.metadata(), self.selector, object.meta())) {
                Claim::Owned => claimed.push(Claimed::Owned(object)),
                Claim::Foreign => {}
                Claim::Adopt => match send(self.adopting(object.meta())).await {
                    Ok(adopted) => claimed.push(Claimed::Adopted(Arc::new(adopted))),
                    Err(err) => driver::gone_is_fine::<()>(Err(err))?,
                },
                Claim::Release => driver::gone_is_fine(send(self.releasing(object.meta())).await)?,
            }
        }
        Ok(claimed)
    }

    /// With the uid, so that another object of the same name is not meant.
    fn adopting(&self, object: &ObjectMeta) -> Value {
        let mut meta = json!({"uid": object.uid, "ownerReferences": [owners::reference_to(self.owner)]});
        if let Some(finalizer) = self.finalizer {
            meta["finalizers"] = json!([finalizer]);
        }
        json!({ "metadata": meta })
    }

    fn releasing(&self, object: &ObjectMeta) -> Value {
        let ours = json!({"$patch": "delete", "uid": self.owner.uid()});
        let mut meta = json!({"uid": object.uid, "ownerReferences": [ours]});
        if let Some(finalizer) = self.finalizer {
            meta["$deleteFromPrimitiveList/finalizers"] = json!([finalizer]);
        }
        json!({ "metadata": meta })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::batch::v1::Job;

    use super::*;

    #[test]
    fn a_finalizer_comes_and_goes_with_the_owner() {
        let mut job = Job::default();
        job.metadata.uid = Some("u".to_owned());
        let pod = ObjectMeta { uid: Some("p".to_owned()), ..ObjectMeta::default() };
        let selector = LabelSelector::default();
        let with = Adoption { owner: &job, selector: &selector, finalizer: Some("f") };
        assert_eq!(with.adopting(&pod)["metadata"]["finalizers"], json!(["f"]));
        assert_eq!(with.adopting(&pod)["metadata"]["uid"], "p");
        assert_eq!(
            with.releasing(&pod),
            json!({"metadata": {"uid": "p", "ownerReferences": [{"$patch": "delete", "uid": "u"}],
                "$deleteFromPrimitiveList/finalizers": ["f"]}})
        );
        let without = Adoption { finalizer: None, ..with };
        assert!(without.adopting(&pod)["metadata"].get("finalizers").is_none());
    }
}
