//! A pod that wants devices gets them before it is taken in, and its containers what they need to use them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, Pod};
use proto::plugins as pb;

use super::pick::Choice;
use crate::cgroups::limits;
use crate::container::{self, Role};
use crate::devices::allocations::{Given, PodContainer};
use crate::devices::registry::Devices;
use crate::plugins::link::{CallError, Link};

/// A plugin has this long for a call.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Why a pod gets no devices, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AllocateError {
    #[error("pod {uid:?} container {container:?} changed request for resource {resource:?} from {before} to {now}")]
    Changed { uid: String, container: String, resource: String, before: usize, now: usize },
    #[error("no healthy devices present; cannot allocate unhealthy devices {resource}")]
    NoneHealthy { resource: String },
    #[error("requested number of devices unavailable for {resource}. Requested: {n}, Available: {available}")]
    TooFew { resource: String, n: usize, available: usize },
    #[error("{0}")]
    Refused(CallError),
    #[error("device plugin GetPreferredAllocation rpc failed with err: {0}")]
    NoPreference(CallError),
    #[error("no containers return in allocation response")]
    NoAnswer,
    #[error("cannot write the checkpoint")]
    Checkpoint,
}

/// A pod's `UnexpectedAdmissionError`.
#[derive(Debug, thiserror::Error)]
#[error("Allocate failed due to {0}, which is unexpected")]
pub(crate) struct Unexpected(AllocateError);

/// A plugin does not let a container start, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PreStartError {
    #[error("endpoint not found in cache for a registered resource: {resource}")]
    NoEndpoint { resource: String },
    #[error("device plugin PreStartContainer rpc failed with err")]
    Call(#[source] CallError),
}

/// The wish of one container for one resource.
struct Wish {
    container: String,
    resource: String,
    n: usize,
}

/// A plugin, with all that is needed to ask it.
struct Plugin {
    link: Link,
    options: pb::DevicePluginOptions,
    healthy: BTreeSet<String>,
    taken: BTreeSet<String>,
}

/// Devices that a pod's containers are to be given, before any of them is.
#[derive(Default)]
struct Grants {
    /// By container and resource.
    made: BTreeMap<(String, String), Given>,
    /// Devices of init containers, which are free for those after them: resource and device.
    reuse: BTreeSet<(String, String)>,
}

impl Grants {
    fn add(&mut self, wish: Wish, role: Role, given: Given) {
        let ids = given.ids.iter().map(|id| (wish.resource.clone(), id.clone()));
        match role {
            Role::Init => self.reuse.extend(ids),
            _ => ids.for_each(|id| {
                self.reuse.remove(&id);
            }),
        }
        self.made.insert((wish.container, wish.resource), given);
    }

    fn reusable(&self, resource: &str) -> BTreeSet<String> {
        self.reuse.iter().filter(|(of, _)| of == resource).map(|(_, id)| id.clone()).collect()
    }

    fn taken(&self, resource: &str) -> impl Iterator<Item = &String> {
        self.made.iter().filter(move |((_, of), _)| of == resource).flat_map(|(_, given)| &given.ids)
    }
}

impl Devices {
    /// Gives the pod the devices that it wants, all or none.
    pub(crate) async fn admit(&self, pod: &Pod) -> Result<(), Unexpected> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let _one_at_a_time = self.turn.lock().await;
        let granted = self.plan(&uid, pod).await;
        granted.and_then(|grants| self.commit(&uid, grants)).map_err(|why| {
            // A pod that is refused keeps nothing that an earlier try gave it.
            self.release(&uid);
            Unexpected(why)
        })
    }

    /// Asks plugins for all that the pod lacks. Changes nothing here.
    async fn plan(&self, uid: &str, pod: &Pod) -> Result<Grants, AllocateError> {
        let known: Vec<String> = self.with(|state| state.resources.keys().cloned().collect());
        let mut grants = Grants::default();
        for (container, role) in container::all(pod) {
            for wish in wishes(container, &known) {
                let have = self.with(|s| {
                    s.allocations.get(uid).and_then(|p| p.get(&wish.container)?.get(&wish.resource).cloned())
                });
                let given = match have {
                    Some(given) if given.ids.len() == wish.n => given,
                    Some(given) => {
                        return Err(AllocateError::Changed {
                            uid: uid.to_owned(),
                            container: wish.container,
                            resource: wish.resource,
                            before: given.ids.len(),
                            now: wish.n,
                        });
                    }
                    None => self.ask(&wish, &grants).await?,
                };
                grants.add(wish, role, given);
            }
        }
        Ok(grants)
    }

    /// Notes what was granted, also on the disk.
    fn commit(&self, uid: &str, grants: Grants) -> Result<(), AllocateError> {
        if grants.made.is_empty() {
            return Ok(());
        }
        self.with(|state| {
            let pod = state.allocations.entry(uid.to_owned()).or_default();
            for ((container, resource), given) in grants.made {
                pod.entry(container).or_default().insert(resource, given);
            }
        });
        if self.keep() { Ok(()) } else { Err(AllocateError::Checkpoint) }
    }

    async fn ask(&self, wish: &Wish, grants: &Grants) -> Result<Given, AllocateError> {
        let none = || AllocateError::NoneHealthy { resource: wish.resource.clone() };
        let plugin =
            self.plugin(&wish.resource, grants).filter(|plugin| !plugin.healthy.is_empty()).ok_or_else(none)?;
        let reuse = grants.reusable(&wish.resource);
        let choice = Choice { healthy: &plugin.healthy, taken: &plugin.taken, reuse: &reuse };
        let preferred = if plugin.options.get_preferred_allocation_available {
            preferred(&plugin, &choice, wish).await?
        } else {
            Vec::new()
        };
        let ids = choice.take(wish.n, &preferred).map_err(|available| AllocateError::TooFew {
            resource: wish.resource.clone(),
            n: wish.n,
            available,
        })?;
        let request =
            pb::AllocateRequest { container_requests: vec![pb::DeviceIds { ids: ids.iter().cloned().collect() }] };
        let answer: Result<pb::AllocateResponse, _> = plugin.link.call(pb::ALLOCATE, request, TIMEOUT).await;
        let needs = answer.map_err(AllocateError::Refused)?.container_responses.into_iter().next();
        let needs = needs.ok_or(AllocateError::NoAnswer)?;
        Ok(Given { ids, needs })
    }

    fn plugin(&self, resource: &str, grants: &Grants) -> Option<Plugin> {
        self.with(|state| {
            let found = state.resources.get(resource)?;
            let of_resource =
                state.allocations.values().flat_map(|pod| pod.values()).filter_map(|container| container.get(resource));
            let taken = of_resource.flat_map(|given| &given.ids).chain(grants.taken(resource));
            Some(Plugin {
                link: found.link.clone()?,
                options: found.options.clone(),
                healthy: found.devices.iter().filter(|(_, d)| d.healthy).map(|(id, _)| id.clone()).collect(),
                taken: taken.cloned().collect(),
            })
        })
    }

    /// Tells plugins that want to know that a container is about to start.
    pub(crate) async fn before_start(&self, container: PodContainer<'_>) -> Result<(), PreStartError> {
        let told: Vec<(Option<Link>, Vec<String>, String)> = self.with(|state| {
            let wants = container.given(&state.allocations).filter_map(|(resource, given)| {
                let plugin = state.resources.get(resource).filter(|r| r.options.pre_start_required)?;
                Some((plugin.link.clone(), given.ids.iter().cloned().collect(), resource.clone()))
            });
            wants.collect()
        });
        for (link, ids, resource) in told {
            let link = link.ok_or(PreStartError::NoEndpoint { resource })?;
            let done: Result<pb::Empty, _> = link.call(pb::PRE_START_CONTAINER, pb::DeviceIds { ids }, TIMEOUT).await;
            done.map_err(PreStartError::Call)?;
        }
        Ok(())
    }
}

async fn preferred(plugin: &Plugin, choice: &Choice<'_>, wish: &Wish) -> Result<Vec<String>, AllocateError> {
    let must: BTreeSet<String> = choice.first(wish.n);
    let available = must.union(&choice.free()).cloned().collect();
    let one = pb::ContainerPreferred {
        available_ids: available,
        must_include_ids: must.into_iter().collect(),
        allocation_size: i32::try_from(wish.n).unwrap_or(i32::MAX),
    };
    let request = pb::PreferredRequest { container_requests: vec![one] };
    let answer: Result<pb::PreferredResponse, _> =
        plugin.link.call(pb::GET_PREFERRED_ALLOCATION, request, TIMEOUT).await;
    let answer = answer.map_err(AllocateError::NoPreference)?;
    Ok(answer.container_responses.into_iter().next().unwrap_or_default().ids)
}

/// Limits of resources that plugins have, as upstream counts them.
fn wishes(container: &Container, known: &[String]) -> Vec<Wish> {
    let limits = container.resources.iter().flat_map(|r| r.limits.iter().flatten());
    let wanted = limits.filter(|(name, _)| known.contains(name));
    wanted
        .map(|(name, amount)| Wish {
            container: container.name.clone(),
            resource: name.clone(),
            n: usize::try_from(limits::parse(amount).value()).unwrap_or(0),
        })
        .filter(|wish| wish.n > 0)
        .collect()
}

/// Adds what the container's devices need to what the runtime is told.
pub(crate) fn apply(needs: &[pb::ContainerAllocation], config: &mut cri::ContainerConfig) {
    for need in needs {
        for (key, value) in &need.envs {
            config.envs.retain(|env| env.key != *key);
            config.envs.push(cri::KeyValue { key: key.clone(), value: value.clone() });
        }
        for device in need
            .devices
            .iter()
            .filter(|d| !config.devices.iter().any(|have| have.container_path == d.container_path))
            .cloned()
            .collect::<Vec<_>>()
        {
            let (container_path, host_path, permissions) =
                (device.container_path, device.host_path, device.permissions);
            config.devices.push(cri::Device { container_path, host_path, permissions });
        }
        for mount in need
            .mounts
            .iter()
            .filter(|m| !config.mounts.iter().any(|have| have.container_path == m.container_path))
            .cloned()
            .collect::<Vec<_>>()
        {
            config.mounts.push(cri::Mount {
                container_path: mount.container_path,
                host_path: mount.host_path,
                readonly: mount.read_only,
                ..Default::default()
            });
        }
        config.annotations.extend(need.annotations.clone());
        for device in &need.cdi_devices {
            if !config.cdi_devices.iter().any(|have| have.name == device.name) {
                config.cdi_devices.push(cri::CdiDevice { name: device.name.clone() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_gets_variables_mounts_devices_and_names_of_devices() {
        let need = pb::ContainerAllocation {
            envs: [("E".to_owned(), "new".to_owned())].into(),
            mounts: vec![pb::Mount {
                container_path: "/lib/x".to_owned(),
                host_path: "/x".to_owned(),
                read_only: true,
            }],
            devices: vec![pb::DeviceSpec {
                container_path: "/dev/x".to_owned(),
                host_path: "/dev/null".to_owned(),
                permissions: "rw".to_owned(),
            }],
            annotations: [("a".to_owned(), "b".to_owned())].into(),
            cdi_devices: vec![pb::CdiDevice { name: "v.io/c=d".to_owned() }],
        };
        let mut config = cri::ContainerConfig {
            envs: vec![cri::KeyValue { key: "E".to_owned(), value: "old".to_owned() }],
            ..Default::default()
        };
        apply(&[need.clone(), need], &mut config);
        assert_eq!((config.envs.len(), config.envs[0].value.as_str()), (1, "new"));
        assert_eq!((config.mounts.len(), config.devices.len(), config.cdi_devices.len()), (1, 1, 1));
        assert_eq!(config.annotations["a"], "b");
    }

    fn pod(limit: &str) -> Pod {
        serde_json::from_value(serde_json::json!({"metadata": {"uid": "u"}, "spec": {"containers": [
            {"name": "c", "resources": {"limits": {"x.io/d": limit, "cpu": "1", "y.io/e": "2"}}}]}}))
        .unwrap()
    }

    /// A resource whose plugin is away, and a container that has one device of it.
    fn devices_of(dir: &std::path::Path) -> Devices {
        let devices = Devices::new(dir);
        devices.with(|state| {
            state.resources.entry("x.io/d".to_owned()).or_default().options.pre_start_required = true;
            let given = Given { ids: BTreeSet::from(["a".to_owned()]), ..Given::default() };
            let container = BTreeMap::from([("x.io/d".to_owned(), given)]);
            state.allocations.insert("u".to_owned(), BTreeMap::from([("c".to_owned(), container)]));
        });
        devices
    }

    #[test]
    fn a_container_wishes_for_what_plugins_have_and_for_some_of_it() {
        let wishes = |limit: &str| {
            let pod = pod(limit);
            let container = &pod.spec.as_ref().unwrap().containers[0];
            let all = wishes(container, &["x.io/d".to_owned()]);
            all.into_iter().map(|wish| (wish.container, wish.resource, wish.n)).collect::<Vec<_>>()
        };
        assert_eq!(wishes("3"), [("c".to_owned(), "x.io/d".to_owned(), 3)]);
        assert!(wishes("0").is_empty());
    }

    #[test]
    fn devices_of_init_containers_are_free_for_those_after_them() {
        let mut grants = Grants::default();
        let wish = |container: &str| Wish { container: container.to_owned(), resource: "x.io/d".to_owned(), n: 1 };
        let given = || Given { ids: BTreeSet::from(["a".to_owned()]), ..Given::default() };
        grants.add(wish("i"), Role::Init, given());
        assert_eq!(grants.reusable("x.io/d"), given().ids);
        assert!(grants.reusable("y.io/e").is_empty());
        grants.add(wish("c"), Role::Main, given());
        assert!(grants.reusable("x.io/d").is_empty(), "the container keeps it");
        assert_eq!(grants.taken("x.io/d").count(), 2);
    }

    #[tokio::test]
    async fn a_pod_that_gets_no_devices_is_refused_in_upstreams_words_and_keeps_none() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("device-plugins")).unwrap();
        let devices = devices_of(dir.path());
        devices.admit(&pod("1")).await.unwrap();
        assert_eq!(
            devices.admit(&pod("2")).await.unwrap_err().to_string(),
            "Allocate failed due to pod \"u\" container \"c\" changed request for resource \"x.io/d\" from 1 to 2, \
             which is unexpected"
        );
        assert!(devices.of_container(PodContainer { uid: "u", name: "c" }).is_empty());
        assert_eq!(
            devices.admit(&pod("1")).await.unwrap_err().to_string(),
            "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices x.io/d, \
             which is unexpected"
        );
    }

    #[tokio::test]
    async fn a_container_does_not_start_when_a_plugin_that_must_be_told_is_away() {
        let dir = tempfile::tempdir().unwrap();
        let devices = devices_of(dir.path());
        let told = async |name: &str| devices.before_start(PodContainer { uid: "u", name }).await;
        let why = told("c").await.unwrap_err().to_string();
        assert_eq!(why, "endpoint not found in cache for a registered resource: x.io/d");
        told("without devices").await.unwrap();
    }
}
