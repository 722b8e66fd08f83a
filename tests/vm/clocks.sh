# shellcheck shell=sh disable=SC2154
# The clock of a running node jumps: an hour ahead, back, a day ahead, back. Sourced by guest.sh: the leader stays, the
# node is Ready, pods run on, their tokens are taken, jobs of a schedule are neither lost nor many, and nobody asks in a
# storm.

leases() { kubectl get leases -A \
    -o jsonpath='{range .items[*]}{.metadata.name} {.spec.holderIdentity} {.spec.leaseTransitions}{"\n"}{end}'; }
lease_renewed() { # after the jump: the node's lease bears today's time, within a minute
    renewed=$(kubectl get lease -n kube-node-lease vm -o jsonpath='{.spec.renewTime}')
    apart=$(($(date +%s) - $(date -d "$renewed" +%s)))
    [ "${apart#-}" -lt 60 ]
}
token_taken() {
    token=$(kubectl exec web -- cat /var/run/secrets/kubernetes.io/serviceaccount/token) &&
        curl -fsk -m 20 -o /dev/null -H "Authorization: Bearer $token" https://127.0.0.1:6443/api
}
requests() { kubectl get --raw /metrics | awk '/^apiserver_request_total/ {n += $NF} END {printf "%d\n", n}'; }
runs() { kubectl get jobs -o name | grep -c 'job.batch/tick-'; }
ran_again() { [ "$(kubectl get cronjob tick -o jsonpath='{.status.lastScheduleTime}')" != "$1" ]; }

# What the status says of the boot before would count as a pod that was touched.
runs_since_boot() {
    at=$(kubectl get pod web -o jsonpath='{.status.containerStatuses[0].state.running.startedAt}')
    [ -n "$at" ] && [ "$(date -d "$at" +%s)" -ge "$(date -d "$(uptime -s)" +%s)" ]
}

jump() { # jump SECONDS WHAT
    held=$(leases) same=$(containers) jobs=$(runs) \
        ticked=$(kubectl get cronjob tick -o jsonpath='{.status.lastScheduleTime}')
    began=$(cut -d. -f1 /proc/uptime) pid=$(systemctl show -p MainPID --value kedge) asked=$(requests)
    date -s "@$(($(date +%s) + $1))" >/dev/null
    wait_for "$limit" "the API after the clock went $2" kubectl get --raw /readyz
    wait_for "$limit" "the lease after the clock went $2" lease_renewed
    wait_for "$limit" "the node is Ready after the clock went $2" node_ready
    wait_for "$limit" "the pod is Ready after the clock went $2" pod_ready
    wait_for "$limit" "the page after the clock went $2" answers
    wait_for "$limit" "the token of a pod after the clock went $2" token_taken
    # A schedule that has already had this minute waits for the next it has not: only a clock that went ahead brings a
    # run.
    [ "$1" -lt 0 ] || wait_for "$limit" "a job after the clock went $2" ran_again "$ticked"
    sleep 30
    kubectl delete pod after --ignore-not-found --now >/dev/null 2>&1
    kubectl run after --image=kedge.local/busybox:1 --image-pull-policy=Never --restart=Never --command -- true \
        >/dev/null || fail "cannot run a pod after the clock went $2"
    wait_for "$limit" "a pod after the clock went $2" \
        sh -c "kubectl get pod after -o jsonpath={.status.phase} | grep -q Succeeded"
    [ "$(systemctl show -p MainPID --value kedge)" = "$pid" ] || fail "kedge started anew when the clock went $2"
    [ "$(leases)" = "$held" ] || fail "a lease changed hands when the clock went $2: $held, now $(leases)"
    [ "$(containers)" = "$same" ] || fail "a pod was touched when the clock went $2: $same, now $(containers)"
    # A job a minute is due, and an idle node asks some times a second; a storm is more.
    took=$(($(cut -d. -f1 /proc/uptime) - began))
    more=$(($(runs) - jobs)) calls=$(($(requests) - asked))
    say "NOTE the clock went $2: $more jobs, $calls requests"
    [ "$more" -le $((10 + took / 60)) ] || fail "$more jobs when the clock went $2"
    [ "$calls" -le $((3000 + took * 50)) ] || fail "$calls requests when the clock went $2"
}

clocks() {
    wait_for "$limit" "the pod runs again" runs_since_boot
    wait_for "$limit" "the pod is Ready again" pod_ready
    kubectl create cronjob tick --image=kedge.local/busybox:1 --schedule='* * * * *' -- true >/dev/null ||
        fail "cannot make a schedule"
    kubectl patch cronjob tick --type=merge \
        -p '{"spec":{"concurrencyPolicy":"Forbid","successfulJobsHistoryLimit":100,
            "jobTemplate":{"spec":{"template":{"spec":{"containers":[{"name":"tick","image":"kedge.local/busybox:1","imagePullPolicy":"Never",
            "command":["true"]}],"restartPolicy":"Never"}}}}}}' >/dev/null || fail "cannot change a schedule"
    wait_for "$limit" "a job of a schedule" ran_again ""
    jump 3600 "an hour ahead"
    jump -3600 "an hour back"
    jump 86400 "a day ahead"
    jump -86400 "a day back"
    kubectl delete cronjob tick --now >/dev/null
    kubectl delete pod after --now >/dev/null
}
