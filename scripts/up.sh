#!/bin/sh
# Brings a cluster up on this machine and shows a web page answered by real pods. May be run again and again.
set -eu
. "$(dirname -- "$0")/lib.sh"
need_root
sh "$root/scripts/setup.sh"
export KUBECONFIG=/etc/kedge/kedge.yaml
log=/var/log/kedge.log
pidfile=/run/kedge-supervise.pid
socket=/run/kedge/containerd/containerd.sock
busybox=$(command -v busybox || echo /bin/busybox)

say "building kedge, which takes some minutes the first time ('make release' takes longer and makes the small one)"
sh "$root/scripts/build.sh" fast
install -m 0755 "$(sh "$root/scripts/bin-path.sh" fast)" /usr/local/bin/kedge.new
mv /usr/local/bin/kedge.new /usr/local/bin/kedge

running() { [ -s "$pidfile" ] && kill -0 "$(cat "$pidfile")" 2>/dev/null; }
if [ -d /run/systemd/system ]; then
    say "starting kedge server under systemd (journalctl -u kedge)"
    systemctl is-active --quiet kedge ||
        systemd-run --quiet --unit=kedge --property=Type=notify --property=KillMode=process \
        --property=Delegate=yes --property=Restart=always --property=LimitNOFILE=1048576 /usr/local/bin/kedge server
elif running; then
    say "kedge server runs already (log: $log)"
else
    say "starting kedge server in the background (log: $log)"
    setsid sh "$root/scripts/supervise.sh" "$log" /usr/local/bin/kedge server </dev/null >/dev/null 2>&1 &
    echo $! >"$pidfile"
fi

wait_for() { # wait_for SECONDS WHAT COMMAND...
    seconds=$1 what=$2
    shift 2
    say "waiting for $what"
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        if [ "$tries" -ge $((seconds * 5)) ]; then
            tail -n 20 "$log" >&2 2>/dev/null || true
            die "$what: not within $seconds seconds; the log is $log"
        fi
        sleep 0.2
    done
}
api_ready() { kubectl get --raw /readyz; }
node_ready() { kubectl get nodes -o jsonpath='{.items[*].status.conditions[?(@.type=="Ready")].status}' |
    grep -q True; }
dns_ip() { kubectl -n kube-system get service kube-dns -o jsonpath='{.spec.clusterIP}'; }
dns_answers() { "$busybox" nslookup kubernetes.default.svc.cluster.local "$(dns_ip)"; }
wait_for 60 "the API server" api_ready
wait_for 120 "the node to be Ready" node_ready
wait_for 120 "DNS to answer" dns_answers

say "making the example's image from busybox and importing it"
image=$(mktemp)
sh "$root/scripts/busybox-image.sh" "$image"
ctr --address "$socket" --namespace k8s.io images import "$image" >/dev/null
rm -f "$image"
say "applying manifests/examples/web.yaml"
kubectl apply -f "$root/manifests/examples/web.yaml"
kubectl rollout status deployment/web --timeout=120s

address=$(kubectl get service web -o jsonpath='{.spec.clusterIP}')
page_by_service() { curl -fsS -m 5 "http://$address/"; }
wait_for 30 "the page through the ClusterIP $address" page_by_service
page_by_service
say "the page through kubectl port-forward"
kubectl port-forward service/web 18080:80 >/dev/null &
forward=$!
page_by_forward() { curl -fsS -m 5 http://127.0.0.1:18080/; }
wait_for 30 "port-forward" page_by_forward
page_by_forward
kill "$forward"
wait "$forward" 2>/dev/null || true
kubectl get nodes,pods,svc -A -o wide
say "the cluster is up: export KUBECONFIG=$KUBECONFIG; stop it with 'make down'"
