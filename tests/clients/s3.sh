#!/bin/sh
# s3.sh KEDGE: snapshots in the S3 of moto, a genuine implementation in Python: as one object, in parts, listed, pruned,
# restored. By hand, as root, with python3-venv and a package registry; needs a data folder of a server, running or not,
# in DATA (default /var/lib/kedge).
# shellcheck disable=SC2046,SC2086 # words are split on purpose: $at is a list of flags
set -eu
kedge=$1
data=${DATA:-/var/lib/kedge}
scratch=$(mktemp -d)
port=${PORT:-9753}
say() { printf 's3: %s\n' "$1"; }
want() { case $2 in *"$3"*) ;; *) echo "s3: $1: no '$3' in: $2"; exit 1 ;; esac; }
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet 'moto[server]' boto3
# Signatures are checked from the first request that is allowed to be made by a known user on.
"$scratch/venv/bin/moto_server" -H 127.0.0.1 -p "$port" >"$scratch/log" 2>&1 &
server=$!
trap 'kill $server; rm -rf "$scratch"' EXIT
until curl -s "http://127.0.0.1:$port/moto-api/" >/dev/null; do sleep 0.2; done
cat >"$scratch/setup.py" <<'PY'
import boto3, json, sys, requests
url, step = sys.argv[1], sys.argv[2]
session = dict(endpoint_url=url, region_name="eu-west-1", aws_access_key_id="x", aws_secret_access_key="x")
if step == "make":
    boto3.client("s3", **session).create_bucket(
        Bucket="edge", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    iam = boto3.client("iam", **session)
    iam.create_user(UserName="kedge")
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_user_policy(UserName="kedge", PolicyName="all", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName="kedge")["AccessKey"]
    requests.post(url + "/moto-api/reset-auth", data=b"0")
    print(key["AccessKeyId"], key["SecretAccessKey"])
PY
set -- $("$scratch/venv/bin/python" "$scratch/setup.py" "http://127.0.0.1:$port" make)
export AWS_ACCESS_KEY_ID="$1" AWS_SECRET_ACCESS_KEY="$2" KEDGE_CONFIG_FILE=/dev/null
s3() { what=$1; shift; "$kedge" snapshot "$what" --s3 --s3-insecure --s3-endpoint "127.0.0.1:$port" --s3-bucket edge \
    --s3-region eu-west-1 --s3-folder 'site one' "$@" 2>&1 || true; }
at="-d $data --dir $scratch/snapshots --node-name n"

want "a wrong key" "$(AWS_SECRET_ACCESS_KEY=wrong s3 ls $at)" SignatureDoesNotMatch
want "save" "$(s3 save $at)" "s3://edge/site one/on-demand-n-"
sleep 1
want "save again" "$(s3 save $at)" "Snapshot s3://"
want "list" "$(s3 ls $at)" "s3://edge/site one/on-demand-n-"
name=$(s3 ls $at -o json | sed -n 's/.*"name": "\(on-demand-n-[0-9]*\).*/\1/p' | tail -1)
want "prune" "$(s3 prune $at --snapshot-retention 1 --s3-retention 1)" "Snapshot s3://"
want "restore" "$(s3 restore -d "$scratch/new" -c "$scratch/none.yaml" "$name")" "Restored the state"
want "delete" "$(s3 delete $at "$name")" "Snapshot s3://"
say "$("$scratch/venv/bin/pip" list 2>/dev/null | grep -i '^moto ' |
    tr -s ' '): saved, listed, pruned, restored, deleted; a wrong key is refused"
