"""The Python client against a running cluster: create, list, watch, exec. Uses KUBECONFIG and the image that IMAGE
names."""

import os

from kubernetes import client, config, stream, watch

config.load_kube_config()
core = client.CoreV1Api()
name = "from-python"
pod = client.V1Pod(
    metadata=client.V1ObjectMeta(name=name, labels={"client": "python"}),
    spec=client.V1PodSpec(
        termination_grace_period_seconds=0,
        containers=[client.V1Container(name="main", image=os.environ["IMAGE"], command=["sleep", "600"])],
    ),
)
core.create_namespaced_pod("default", pod)
seen = []
for event in watch.Watch().stream(core.list_namespaced_pod, "default", label_selector="client=python",
    timeout_seconds=90):
    phase = event["object"].status.phase
    seen.append((event["type"], phase))
    if phase == "Running":
        break
assert seen[0][0] == "ADDED" and seen[-1][1] == "Running", seen
listed = core.list_namespaced_pod("default", label_selector="client=python")
assert [item.metadata.name for item in listed.items] == [name], listed
said = stream.stream(
    core.connect_get_namespaced_pod_exec, name, "default", command=["echo", "hello from a pod"],
    stdin=False, stdout=True, stderr=True, tty=False,
)
assert said == "hello from a pod\n", repr(said)
core.delete_namespaced_pod(name, "default")
print("python: create, list, watch, exec")
