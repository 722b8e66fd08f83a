// @kubernetes/client-node against a running cluster: create, list, watch, exec. Uses KUBECONFIG and the image that IMAGE names.
import assert from "node:assert";
import { PassThrough } from "node:stream";
import { createRequire } from "node:module";

// The packages lie in the folder where this is started, not beside this file.
const k8s = createRequire(process.cwd() + "/")("@kubernetes/client-node");
const config = new k8s.KubeConfig();
config.loadFromDefault();
const core = config.makeApiClient(k8s.CoreV1Api);
const [namespace, name] = ["default", "from-node"];
const body = {
  metadata: { name, labels: { client: "node" } },
  spec: {
    terminationGracePeriodSeconds: 0,
    containers: [{ name: "main", image: process.env.IMAGE, command: ["sleep", "600"] }],
  },
};
await core.createNamespacedPod({ namespace, body });

const seen = [];
await new Promise((running, failed) => {
  const patience = setTimeout(() => failed(new Error("not Running in 90 s: " + JSON.stringify(seen))), 90_000);
  new k8s.Watch(config)
    .watch(
      `/api/v1/namespaces/${namespace}/pods`,
      { labelSelector: "client=node" },
      (type, pod) => {
        seen.push(`${type} ${pod.status.phase}`);
        if (pod.status.phase === "Running") {
          clearTimeout(patience);
          running();
        }
      },
      (err) => err && failed(err),
    )
    .catch(failed);
});
assert.match(seen[0], /^ADDED /);

const listed = await core.listNamespacedPod({ namespace, labelSelector: "client=node" });
assert.deepEqual(listed.items.map((pod) => pod.metadata.name), [name]);

const out = new PassThrough();
let said = "";
out.on("data", (chunk) => (said += chunk));
const status = await new Promise((ended, failed) => {
  new k8s.Exec(config)
    .exec(namespace, name, "main", ["echo", "hello from a pod"], out, process.stderr, null, false, ended)
    .catch(failed);
});
assert.equal(status.status, "Success", JSON.stringify(status));
assert.equal(said, "hello from a pod\n");
await core.deleteNamespacedPod({ namespace, name });
console.log("client-node: create, list, watch, exec");
process.exit(0);
