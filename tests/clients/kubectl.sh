#!/bin/sh
# Every command of an unmodified kubectl against a running node: kubectl.sh KUBECTL. Prints what failed, and exits with
# 1 if anything did.
# shellcheck disable=SC2016,SC2153 # the commands are expanded by the shell that runs them
# Needs KUBECONFIG and IMAGE (busybox with a shell as its entry point). Works in a namespace and a folder of its own.
set -u
kubectl=$1
image=$IMAGE
space=every-$$
folder=$(mktemp -d)
cd "$folder" || exit 1
"$kubectl" version --client >/dev/null || exit 1
failed=0
told=0

# check NAME PATTERN COMMAND: the command (of the shell; k is kubectl, kn kubectl in the namespace) succeeds and says
# the pattern.
check() {
    said=$(k="$kubectl" kn="$kubectl -n $space" timeout 120 sh -c "$3" 2>&1 </dev/null)
    code=$?
    told=$((told + 1))
    if [ "$code" != 0 ] || ! printf '%s\n' "$said" | grep -Eq -- "$2"; then
        failed=$((failed + 1))
        printf 'FAILED %s: exit code %s, wanted %s, said: %s\n' "$1" "$code" "$2" \
            "$(printf '%s' "$said" | head -c 1500)"
    fi
}
export image space

cat >map.yaml <<EOF
apiVersion: v1
kind: ConfigMap
metadata: {name: map, labels: {set: pruned}}
data: {a: "1"}
EOF
printf '#!/bin/sh\nsed -i "s/^  a: .*/  a: edited/" "$1"\n' >editor.sh
chmod +x editor.sh

check 'create namespace' created '$k create namespace $space'
check version 'Server Version: v1\.36' '$k version'
check cluster-info 'control plane' '$k cluster-info'
check api-resources 'deployments +deploy +apps/v1' '$k api-resources'
check 'api-resources -o wide' 'create,delete' '$k api-resources -o wide --namespaced=false'
check api-versions '^apps/v1$' '$k api-versions'
check 'explain --recursive' rollingUpdate '$k explain deployment --recursive'
check 'explain a field' 'FIELD: image' '$k explain pod.spec.containers.image'

check 'create deployment' created \
    '$kn create deployment web --image=$image --replicas=2 -- \
    sh -c "while :; do printf \"HTTP/1.0 200 OK\r\n\r\nhello\" | nc -l -p 8080; done"'
check 'rollout status' 'successfully rolled out' '$kn rollout status deployment/web --timeout=90s'
check 'wait for a condition' 'condition met' '$kn wait --for=condition=Available deployment/web --timeout=60s'
check 'wait for a jsonpath' 'condition met' \
    '$kn wait --for=jsonpath="{.status.readyReplicas}"=2 deployment/web --timeout=60s'
check expose exposed '$kn expose deployment web --port=80 --target-port=8080'
check get 'web.*Running' '$kn get pods'
for form in wide json yaml name 'jsonpath={.items[*].metadata.name}' 'jsonpath-as-json={.items[*].metadata.name}' \
    'custom-columns=N:.metadata.name' 'go-template={{range .items}}{{.metadata.name}} {{end}}'; do
    export form
    check "get -o $form" web '$kn get deployments,services,pods -o "$form"'
done
check 'get with selectors' web '$kn get pods -l "app in (web,x),!none" --field-selector=status.phase=Running'
check 'get in chunks' web '$kn get pods --chunk-size=1'
check 'get, sorted and labelled' pod-template-hash \
    '$kn get pods --sort-by=.metadata.creationTimestamp --show-labels --no-headers'
check 'get all' 'replicaset.apps/web' '$kn get all'
check 'get -w' ADDED \
    '$kn get pods -w --output-watch-events >seen & pid=$!; until grep ADDED seen; do sleep 0.2; done; kill $pid'
check 'describe a deployment' 'Replicas: +2 desired' '$kn describe deployment web'
check 'describe pods' 'Image ID:' '$kn describe pods -l app=web'
check 'describe a node' 'Allocated resources' '$k describe nodes'
check 'describe a service' 'Endpoints: +10' '$kn describe service web'

check scale scaled '$kn scale deployment web --replicas=3 --current-replicas=2'
check 'set image' 'image updated' \
    '$kn set image deployment/web "*=$image" --dry-run=server &&
    $kn set image deployment/web "*=$(echo $image | sed s/busybox:/busybox:x/)" &&
    $kn set image deployment/web "*=$image"'
check 'set env' 'env updated' '$kn set env deployment/web A=b'
check 'set resources' 'resource requirements updated' \
    '$kn set resources deployment/web --limits=memory=64Mi --requests=cpu=10m'
check 'set serviceaccount' 'serviceaccount updated' \
    '$kn create serviceaccount x && $kn set serviceaccount deployment/web x'
check 'rollout status again' 'successfully' '$kn rollout status deployment/web --timeout=90s'
check 'rollout history' REVISION '$kn rollout history deployment/web'
check 'rollout undo' 'rolled back' '$kn rollout undo deployment/web'
check 'rollout pause' paused '$kn rollout pause deployment/web'
check 'rollout resume' resumed '$kn rollout resume deployment/web'
check 'rollout restart' restarted '$kn rollout restart deployment/web'
check 'rollout status at the end' 'successfully' '$kn rollout status deployment/web --timeout=90s'
check autoscale autoscaled '$kn autoscale deployment web --min=1 --max=3 && $kn delete hpa web'
check label labeled \
    '$kn label deployment web tier=front && $kn label deployment web tier=back --overwrite &&
    $kn label deployment web tier-'
check annotate annotated '$kn annotate deployment web note=x'
check 'patch, strategic' patched \
    '$kn patch deployment web -p "{\"spec\":{\"template\":{\"metadata\":{\"annotations\":{\"p\":\"1\"}}}}}"'
check 'patch, merge' patched '$kn patch deployment web --type=merge -p "{\"metadata\":{\"annotations\":{\"m\":\"1\"}}}"'
check 'patch, json' patched \
    '$kn patch deployment web --type=json \
    -p "[{\"op\":\"replace\",\"path\":\"/metadata/annotations/m\",\"value\":\"2\"}]"'
check 'patch of a subresource' patched \
    '$kn patch deployment web --subresource=scale --type=merge -p "{\"spec\":{\"replicas\":2}}"'

check 'create -f' created '$kn create -f map.yaml --save-config'
check 'apply, nothing new' unchanged '$kn apply -f map.yaml'
check diff '\+  a: "2"' 'sed -i "s/\"1\"/\"2\"/" map.yaml; $kn diff -f map.yaml; [ $? = 1 ]'
check apply configured '$kn apply -f map.yaml'
check 'apply --server-side' 'serverside-applied' '$kn apply --server-side --force-conflicts -f map.yaml'
check 'apply view-last-applied' 'a:' '$kn apply view-last-applied configmap/map'
check 'apply --prune' 'unchanged|configured' \
    '$kn apply -f map.yaml --prune -l set=pruned --prune-allowlist=core/v1/ConfigMap'
check 'apply -k' 'configmap/map' \
    'mkdir -p k && cp map.yaml k && echo "resources: [map.yaml]" >k/kustomization.yaml && $kn apply -k k'
check replace replaced '$kn replace -f map.yaml'
check edit edited 'KUBE_EDITOR=./editor.sh $kn edit configmap map'
check 'what was edited' '^edited$' '$kn get configmap map -o "jsonpath={.data.a}"'
check 'create configmap, secret' created \
    '$kn create configmap c --from-literal=a=b && $kn create secret generic s --from-literal=p=q'
check 'create role and binding' created \
    '$kn create role r --verb=get --resource=pods && $kn create rolebinding rb --role=r --user=u'
check 'create clusterrole and binding' created \
    '$k create clusterrole $space --verb=get --resource=nodes &&
    $k create clusterrolebinding $space --clusterrole=$space --user=u'
check 'create quota, pdb, priorityclass' created \
    '$kn create quota q --hard=pods=50 && $kn create pdb p --selector=app=web --min-available=1 &&
    $k create priorityclass $space --value=10'
check 'create ingress, service, token' '^ey' \
    '$kn create ingress i --rule=a.b/c=web:80 && $kn create service nodeport np --tcp=80:8080 &&
    $kn create token default'
check 'create job' 'condition met' \
    '$kn create job j --image=$image -- true && $kn wait --for=condition=complete job/j --timeout=90s'
check 'create cronjob' created \
    '$kn create cronjob cj --image=$image --schedule="0 0 1 1 *" -- true && $kn create job j2 --from=cronjob/cj'

check 'run --rm -i' hello 'echo hello | $kn run once --image=$image --restart=Never --rm -i --quiet --command -- cat'
check run created \
    '$kn run talker --image=$image --restart=Never --command -- \
    sh -c "i=0; while :; do echo tick \$i; i=\$((i+1)); sleep 1; done"'
check 'wait for a pod' 'condition met' '$kn wait --for=condition=Ready pod/talker --timeout=90s'
check logs '^tick 0$' 'sleep 2; $kn logs talker'
check 'logs --tail' '^tick [0-9]+$' '$kn logs talker --tail=1'
check 'logs --timestamps' '^20.*tick' '$kn logs talker --timestamps --since=1h'
check 'logs -f' '^tick [3-9]$' \
    '$kn logs -f talker >seen & pid=$!; until grep "^tick [3-9]$" seen; do sleep 0.2; done; kill $pid'
check 'logs of no such container' 'container nope is not valid' '! $kn logs talker -c nope'
check 'logs by label' '^\[pod/talker' '$kn logs -l run=talker --prefix'
check 'logs --previous' '^once$' \
    '$kn run twice --image=$image --command -- sh -c "[ -e /tmp/x ] || echo once; sleep 2; exit 1" &&
    until [ "$($kn get pod twice -o "jsonpath={.status.containerStatuses[0].restartCount}")" -ge 1 ]; do sleep 0.3; done
    $kn logs twice --previous'
check exec '^hello there$' '$kn exec talker -- echo hello there'
check 'exec -i' '^piped$' 'echo piped | $kn exec -i talker -- cat'
check 'exec -it' 'dev/(pts|console|tty)' 'script -qec "$kn exec -it talker -- tty" /dev/null'
check 'exec, its exit code' '^code 3$' '$kn exec talker -- sh -c "exit 3"; echo code $?'
check attach '^tick' '$kn attach talker >seen & pid=$!; until grep ^tick seen; do sleep 0.2; done; kill $pid'
check cp '^same$' 'echo data >f && $kn cp f talker:/tmp/f && $kn cp talker:/tmp/f g && cmp f g && echo same'
check port-forward hello \
    '$kn port-forward service/web 18099:80 >/dev/null & pid=$!;
    until curl -fsS -m 3 http://127.0.0.1:18099 2>/dev/null; do sleep 0.3; done; kill $pid'
check proxy gitVersion \
    '$k proxy --port=18098 >/dev/null & pid=$!; until curl -fsS -m 3 http://127.0.0.1:18098/version 2>/dev/null;
    do sleep 0.3; done; kill $pid'
check 'debug a running pod' created \
    '$kn debug talker --image=$image -q --target=talker -c extra --attach=false -- sh -c "echo looked" &&
    until $kn logs talker -c extra | grep looked; do sleep 0.3; done; echo created'
check 'debug a copy' 'talker-copy' \
    '$kn debug talker --image=$image --copy-to=talker-copy --attach=false -- sh -c "sleep 1000";
    $kn get pod talker-copy -o name'
check 'debug a node' 'debugger' \
    '$kn debug $($k get nodes -o name | head -n 1) --image=$image --attach=false -- sh -c "sleep 100"; $kn get pods'
check 'auth can-i' '^yes$' '$k auth can-i create pods'
check 'auth can-i --list' Resources '$k auth can-i --list'
check 'auth can-i, as somebody else' '^no$' '$k auth can-i create pods --as=bob; [ $? = 1 ]'
check 'auth whoami' 'system:(admin|masters)' '$k auth whoami'
check 'auth reconcile' reconciled '$kn get role r -o yaml | $k auth reconcile -f -'
check events 'Scheduled|Created' '$kn events'
check 'events --for' Created '$kn events --for pod/talker'
check 'certificate approve' 'BEGIN CERT' \
    'openssl req -new -newkey rsa:2048 -nodes -keyout key -subj /CN=bob -out csr 2>/dev/null &&
    {
        printf "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {name: $space}\n"
        printf "spec: {request: $(base64 -w0 csr), signerName: kubernetes.io/kube-apiserver-client, "
        printf "usages: [client auth]}\n"
    } | $k apply -f - && $k certificate approve $space &&
    until [ -n "$($k get csr $space -o "jsonpath={.status.certificate}")" ]; do sleep 0.2; done
    $k get csr $space -o "jsonpath={.status.certificate}" | base64 -d'
check taint 'untainted' \
    'node=$($k get nodes -o "jsonpath={.items[0].metadata.name}"); $k taint nodes $node a=b:PreferNoSchedule &&
    $k taint nodes $node a-'
check 'cordon, drain, uncordon' 'uncordoned' \
    'node=$($k get nodes -o "jsonpath={.items[0].metadata.name}"); $k cordon $node &&
    $k drain $node --ignore-daemonsets --force --delete-emptydir-data --pod-selector=run=talker --timeout=60s
    $k uncordon $node'
check 'delete and wait' deleted \
    '$kn delete pod twice --now --wait=true && $kn wait --for=delete pod/twice --timeout=10s'
check 'delete by label and by file' deleted \
    '$kn delete configmaps -l set=pruned && $kn delete -f map.yaml --ignore-not-found'
check 'delete --cascade=orphan' 'replicaset.apps/web' \
    '$kn delete deployment web --cascade=orphan && $kn get replicasets -o name'
check 'delete by force' deleted '$kn delete pods -l app=web --force --grace-period=0'
check 'delete namespace' deleted '$k delete namespace $space --timeout=90s'
check 'delete the rest' deleted '$k delete clusterrole/$space clusterrolebinding/$space priorityclass/$space csr/$space'

cd / && rm -rf "$folder"
echo "$("$kubectl" version --client | head -n 1): $((told - failed)) of $told"
[ "$failed" = 0 ]
