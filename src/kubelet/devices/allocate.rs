//! A pod that wants devices gets them before it is taken in, and its containers what they need to use them.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, Pod};
use proto::plugins as pb;

use super::pick::Choice;
use crate::cgroups;
use crate::container::{self, Role};
use crate::devices::allocations::Given;
use crate::devices::registry::Devices;
use crate::plugins::link::Link;

/// A plugin has this long for a call.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What one container wants of one resource.
struct Wish {
    container: String,
    resource: String,
    n: usize,
}

/// What is needed to ask a plugin.
struct Plugin {
    link: Link,
    options: pb::DevicePluginOptions,
    healthy: BTreeSet<String>,
    taken: BTreeSet<String>,
}

impl Devices {
    /// Gives the pod the devices that it wants, once. The error is the text of upstream's `UnexpectedAdmissionError`.
    pub(crate) async fn admit(&self, pod: &Pod) -> Result<(), String> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let known: Vec<String> = self.with(|state| state.resources.keys().cloned().collect());
        let mut reuse: BTreeSet<(String, String)> = BTreeSet::new();
        let mut given_any = false;
        let _one_at_a_time = self.turn.lock().await;
        for (container, role) in container::all(pod) {
            for wish in wishes(container, &known) {
                let have = self.with(|s| {
                    s.allocations.get(&uid).and_then(|p| p.get(&wish.container)?.get(&wish.resource).cloned())
                });
                let given = match have {
                    Some(given) if given.ids.len() == wish.n => given,
                    Some(given) => {
                        self.release(&uid);
                        return Err(failed(&format!(
                            "pod {uid:?} container {:?} changed request for resource {:?} from {} to {}",
                            wish.container,
                            wish.resource,
                            given.ids.len(),
                            wish.n
                        )));
                    }
                    None => {
                        let of_resource =
                            reuse.iter().filter(|(r, _)| *r == wish.resource).map(|(_, id)| id.clone()).collect();
                        match self.give(&uid, &wish, &of_resource).await {
                            Ok(given) => given,
                            Err(why) => {
                                self.release(&uid);
                                return Err(failed(&why));
                            }
                        }
                    }
                };
                given_any = true;
                let ids = given.ids.iter().map(|id| (wish.resource.clone(), id.clone()));
                match role {
                    // What an init container had is free for those after it.
                    Role::Init => reuse.extend(ids),
                    _ => ids.for_each(|id| {
                        reuse.remove(&id);
                    }),
                }
            }
        }
        if given_any && !self.keep() {
            self.release(&uid);
            return Err(failed("cannot write the checkpoint"));
        }
        Ok(())
    }

    async fn give(&self, uid: &str, wish: &Wish, reuse: &BTreeSet<String>) -> Result<Given, String> {
        let Some(plugin) = self.plugin(&wish.resource) else {
            return Err(format!("no healthy devices present; cannot allocate unhealthy devices {}", wish.resource));
        };
        if plugin.healthy.is_empty() {
            return Err(format!("no healthy devices present; cannot allocate unhealthy devices {}", wish.resource));
        }
        let choice = Choice { healthy: &plugin.healthy, taken: &plugin.taken, reuse };
        let preferred = if plugin.options.get_preferred_allocation_available {
            preferred(&plugin, &choice, wish).await?
        } else {
            Vec::new()
        };
        let ids = choice.take(wish.n, &preferred).map_err(|available| {
            format!(
                "requested number of devices unavailable for {}. Requested: {}, Available: {available}",
                wish.resource, wish.n
            )
        })?;
        let request =
            pb::AllocateRequest { container_requests: vec![pb::DeviceIds { ids: ids.iter().cloned().collect() }] };
        let answer: Result<pb::AllocateResponse, _> = plugin.link.call(pb::ALLOCATE, request, TIMEOUT).await;
        let needs = answer.map_err(|err| err.to_string())?.container_responses.into_iter().next();
        let needs = needs.ok_or_else(|| "no containers return in allocation response".to_owned())?;
        let given = Given { ids, needs };
        self.with(|state| {
            let pod = state.allocations.entry(uid.to_owned()).or_default();
            pod.entry(wish.container.clone()).or_default().insert(wish.resource.clone(), given.clone());
        });
        Ok(given)
    }

    fn plugin(&self, resource: &str) -> Option<Plugin> {
        self.with(|state| {
            let found = state.resources.get(resource)?;
            let of_resource =
                state.allocations.values().flat_map(|pod| pod.values()).filter_map(|container| container.get(resource));
            Some(Plugin {
                link: found.link.clone()?,
                options: found.options.clone(),
                healthy: found.devices.iter().filter(|(_, d)| d.healthy).map(|(id, _)| id.clone()).collect(),
                taken: of_resource.flat_map(|given| given.ids.iter().cloned()).collect(),
            })
        })
    }

    /// Tells plugins that want to know that a container is about to start.
    pub(crate) async fn before_start(&self, uid: &str, container: &str) -> Result<(), String> {
        let told: Vec<(Option<Link>, Vec<String>, String)> = self.with(|state| {
            let given = state.allocations.get(uid).and_then(|pod| pod.get(container)).into_iter().flatten();
            let wants = given.filter_map(|(resource, given)| {
                let plugin = state.resources.get(resource).filter(|r| r.options.pre_start_required)?;
                Some((plugin.link.clone(), given.ids.iter().cloned().collect(), resource.clone()))
            });
            wants.collect()
        });
        for (link, ids, resource) in told {
            let link =
                link.ok_or_else(|| format!("endpoint not found in cache for a registered resource: {resource}"))?;
            let done: Result<pb::Empty, _> = link.call(pb::PRE_START_CONTAINER, pb::DeviceIds { ids }, TIMEOUT).await;
            done.map_err(|err| format!("device plugin PreStartContainer rpc failed with err: {err}"))?;
        }
        Ok(())
    }
}

fn failed(why: &str) -> String {
    format!("Allocate failed due to {why}, which is unexpected")
}

async fn preferred(plugin: &Plugin, choice: &Choice<'_>, wish: &Wish) -> Result<Vec<String>, String> {
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
    let answer = answer.map_err(|err| format!("device plugin GetPreferredAllocation rpc failed with err: {err}"))?;
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
            n: usize::try_from(cgroups::parse(amount).value()).unwrap_or(0),
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
}
