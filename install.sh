#!/bin/sh
# Installs kedge: curl -sfL URL/install.sh | sh -          (a server)
#                 curl -sfL URL/install.sh | KEDGE_URL=https://SERVER:6443 KEDGE_TOKEN=... sh -   (an agent)
#
# POSIX sh; runs under dash and busybox. K3S_* and INSTALL_K3S_* are taken for KEDGE_* and INSTALL_KEDGE_* that are not
# set.
#
#   INSTALL_KEDGE_BINARY          install this file. A file 'kedge' beside this script is taken without asking.
#   INSTALL_KEDGE_BUNDLE          install from this file of 'kedge bundle build': kedge, containerd, runc, kubectl and
#                                 images. Nothing is downloaded; head, tail and sed are all that is needed.
#   INSTALL_KEDGE_BUNDLE_KEY      public key of the one who must have signed the bundle. It is checked by a kedge that
#                                 is trusted already: the installed one, or INSTALL_KEDGE_BINARY. Where there is none,
#                                 name the bundle's sum with INSTALL_KEDGE_SHA256: a bundle cannot vouch for itself.
#   INSTALL_KEDGE_ARTIFACT_URL    folder of releases: URL/VERSION/kedge-ARCH and URL/VERSION/sha256sum-ARCH.txt
#   INSTALL_KEDGE_SHA256          the program, or the bundle, must have this sum; wanted where URL is http://, whose
#                                 sums anybody on the way can write
#   INSTALL_KEDGE_VERSION         release to download (default: what URL/CHANNEL says)
#   INSTALL_KEDGE_CHANNEL         stable (default), latest, ...: a file of that name in URL holds the version
#   INSTALL_KEDGE_CHANNEL_URL     folder of these files, where it is another than that of releases
#   INSTALL_KEDGE_SKIP_DOWNLOAD   true, binary: use the program that is installed already
#   INSTALL_KEDGE_EXEC            arguments; may begin with 'server' or 'agent'
#   INSTALL_KEDGE_NAME            name of the service (kedge-NAME)
#   INSTALL_KEDGE_TYPE            type of the systemd service (default: notify for servers, exec for agents)
#   INSTALL_KEDGE_SKIP_ENABLE     true: do not start at boot, nor now
#   INSTALL_KEDGE_SKIP_START      true: do not start now
#   INSTALL_KEDGE_FORCE_RESTART   true: restart although nothing changed
#   INSTALL_KEDGE_SYMLINK         skip: no kubectl, crictl, ctr links; force: also where such a command exists
#   INSTALL_KEDGE_BIN_DIR         folder of the program (default /usr/local/bin, /opt/bin where that is read-only)
#   INSTALL_KEDGE_BIN_DIR_READ_ONLY  true: write nothing there; means SKIP_DOWNLOAD
#   INSTALL_KEDGE_SYSTEMD_DIR     folder of the unit (default /etc/systemd/system)
#
# Variables KEDGE_*, K3S_*, CONTAINERD_* and *_PROXY are kept for the service. A rerun keeps what it is not told anew.
# /etc/kedge/installed records what was made: 'kedge uninstall' removes exactly that. Secrets among the arguments go
# into the file of variables, which root alone reads. An agent's token is forgotten as soon as the machine has joined:
# its own key lets it in after that.
set -eu

config_dir=/etc/kedge
record=$config_dir/installed

say() { printf '[kedge] %s\n' "$*"; }
die() {
    printf '[kedge] error: %s\n' "$*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }
quote() { printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")"; }

# k3s's names stand in for ours.
take_k3s_names() {
    for name in BINARY BUNDLE BUNDLE_KEY ARTIFACT_URL SHA256 VERSION CHANNEL CHANNEL_URL COMMIT PR SKIP_DOWNLOAD \
        EXEC NAME TYPE SKIP_ENABLE SKIP_START \
        FORCE_RESTART SYMLINK \
        BIN_DIR BIN_DIR_READ_ONLY SYSTEMD_DIR; do
        eval "ours=\${INSTALL_KEDGE_$name-} theirs=\${INSTALL_K3S_$name-}"
        # shellcheck disable=SC2154 # eval sets both
        if [ -z "$ours" ] && [ -n "$theirs" ]; then
            # k3s's releases are not ours
            case $name in
            VERSION | CHANNEL | CHANNEL_URL | ARTIFACT_URL | SHA256 | BINARY | COMMIT | PR)
                say "warning: INSTALL_K3S_$name speaks of k3s's releases and is not used: see INSTALL_KEDGE_$name"
                theirs=
                ;;
            esac
            eval "INSTALL_KEDGE_$name=\$theirs"
        else
            eval "INSTALL_KEDGE_$name=\$ours"
        fi
    done
}

# Role, name of the service, arguments.
choose_role() {
    url=${KEDGE_URL:-${K3S_URL:-}}
    case $url in '' | https://*) ;; *) die "KEDGE_URL must begin with https://, not '$url'" ;; esac
    role='' name_given=$INSTALL_KEDGE_NAME
    # Arguments of this script come after those of INSTALL_KEDGE_EXEC.
    args=$INSTALL_KEDGE_EXEC
    for word in "$@"; do args="$args $(quote "$word")"; done
    args=${args# }
    case $args in
    server | server\ *) role=server args=${args#server} ;;
    agent | agent\ *) role=agent args=${args#agent} ;;
    \'server\'*) role=server args=${args#\'server\'} ;;
    \'agent\'*) role=agent args=${args#\'agent\'} ;;
    esac
    if [ -z "$role" ]; then
        if [ -n "$url" ]; then role=agent; else role=server; fi
    fi
    args=${args# }
    if [ -n "$name_given" ]; then
        service=kedge-$name_given
    elif [ "$role" = agent ]; then
        service=kedge-agent
    else
        service=kedge
    fi
    case $service in *[!A-Za-z0-9_.-]*) die "INSTALL_KEDGE_NAME may hold letters, digits, '.', '_' and '-' only" ;; esac
    type=$INSTALL_KEDGE_TYPE
    if [ -z "$type" ]; then
        if [ "$role" = agent ]; then type='exec'; else type='notify'; fi
    fi
    # A rerun that names no arguments keeps those of the first run.
    if [ -z "$args" ] && [ -s "$config_dir/$service.args" ]; then
        args=$(cat "$config_dir/$service.args")
        say "keeping the arguments of the last run: $args"
    fi
}

# Whoever lists processes or units sees arguments: secrets among them become variables.
hide_secrets() {
    case $args in
    *-t* | *secret* | *access-key* | *proxy* | *datastore*) ;;
    *) return 0 ;;
    esac
    words=$(printf '%s\n' "$args" | xargs printf '%s\n') || die "the arguments cannot be taken apart: see their quotes"
    kept='' secret=''
    while IFS= read -r word; do
        value=''
        if [ -n "$secret" ]; then
            value=$word
        else
            name=${word%%=*}
            case $name in
            -t) secret=TOKEN ;;
            --token | --agent-token | --datastore-endpoint | --etcd-s3-access-key | --etcd-s3-secret-key | \
                --etcd-s3-session-token | --etcd-s3-proxy)
                secret=$(printf '%s' "${name#--}" | tr 'a-z-' 'A-Z_')
                ;;
            *)
                kept="$kept $(quote "$word")"
                continue
                ;;
            esac
            case $word in *=*) value=${word#*=} ;; *) continue ;; esac
        fi
        eval "KEDGE_$secret=\$value"
        export "KEDGE_$secret"
        secret=
    done <<WORDS
$words
WORDS
    [ -z "$secret" ] || die "an argument has no value: --$(printf '%s' "$secret" | tr 'A-Z_' 'a-z-')"
    # Without a secret among them they stay as they were written.
    if [ "$(printf '%s' "$kept" | wc -w)" != "$(printf '%s\n' "$words" | wc -l)" ]; then args=${kept# }; fi
}

choose_folders() {
    bin_dir=$INSTALL_KEDGE_BIN_DIR
    if [ -z "$bin_dir" ]; then
        bin_dir=/usr/local/bin
        if ! mkdir -p "$bin_dir" 2>/dev/null || ! (: >"$bin_dir/.kedge-probe") 2>/dev/null; then
            bin_dir=/opt/bin
            mkdir -p "$bin_dir" ||
                die "cannot write to /usr/local/bin nor /opt/bin: name a folder with INSTALL_KEDGE_BIN_DIR"
        fi
        rm -f "$bin_dir/.kedge-probe"
    fi
    program=$bin_dir/kedge
    if [ "$INSTALL_KEDGE_BIN_DIR_READ_ONLY" = true ]; then INSTALL_KEDGE_SKIP_DOWNLOAD=true; fi
    unit_dir=${INSTALL_KEDGE_SYSTEMD_DIR:-/etc/systemd/system}
    env_file=$config_dir/$service.env
}

choose_arch() {
    case ${ARCH:-$(uname -m)} in
    x86_64 | amd64) arch=amd64 ;;
    aarch64 | arm64) arch=arm64 ;;
    armv7l | armv8l | arm) arch=arm ;;
    riscv64) arch=riscv64 ;;
    *) die "there is no kedge for the architecture $(uname -m)" ;;
    esac
}

fetch() { # fetch URL FILE
    if have curl; then
        # What begins with TLS is not led away from it.
        case $1 in
        https://*) curl -fsSL --proto-redir '=https' --retry 3 -o "$2" "$1" ;;
        *) curl -fsSL --retry 3 -o "$2" "$1" ;;
        esac
    elif have wget; then
        wget -q -O "$2" "$1"
    else
        die "neither curl nor wget is here to download with: put the program beside this script as 'kedge'"
    fi || die "cannot download $1"
}

# Leaves the new program in $fresh, or nothing there if the installed one is to stay.
get_program() {
    fresh=
    case $INSTALL_KEDGE_SKIP_DOWNLOAD in
    true | binary)
        [ -x "$program" ] || die "$program is not there, but INSTALL_KEDGE_SKIP_DOWNLOAD says that it is"
        if [ -n "$INSTALL_KEDGE_BUNDLE" ]; then
            trusted=
            check_sum "$INSTALL_KEDGE_BUNDLE"
            apply_bundle "$program"
        fi
        return 0
        ;;
    esac
    here=$(dirname -- "$0")
    source=$INSTALL_KEDGE_BINARY
    # Piped into sh, $0 is the shell: only a script that was started as a file has something beside it.
    if [ -z "$source" ] && [ -z "$INSTALL_KEDGE_VERSION$INSTALL_KEDGE_ARTIFACT_URL" ] && [ -f "$0" ] &&
        [ -f "$here/kedge" ]; then
        source=$here/kedge
    fi
    if [ -n "$INSTALL_KEDGE_BUNDLE" ]; then
        trusted=$source source=$INSTALL_KEDGE_BUNDLE
    fi
    # Not in /tmp: programs may not be run from there.
    work=$(mktemp -d "$bin_dir/.kedge-XXXXXX") || die "cannot write to $bin_dir"
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    if [ -n "$INSTALL_KEDGE_BUNDLE" ]; then
        take_head "$work/kedge"
    elif [ -n "$source" ]; then
        [ -f "$source" ] || die "INSTALL_KEDGE_BINARY: there is no file $source"
        cp "$source" "$work/kedge"
    else
        download "$work"
    fi
    [ -n "$INSTALL_KEDGE_BUNDLE" ] || check_sum "$work/kedge"
    chmod 0755 "$work/kedge"
    "$work/kedge" --version >/dev/null 2>&1 ||
        die "the program does not run on this machine ($(uname -m)): ${source:-downloaded}"
    [ -z "$INSTALL_KEDGE_BUNDLE" ] || apply_bundle "$work/kedge"
    if [ -f "$program" ] && cmp -s "$work/kedge" "$program"; then
        say "the program is up to date"
    else
        fresh=$work/kedge
    fi
}

# A bundle is one file, and kedge is its head. The last line of it says how long that is, so that nothing but head and
# tail are needed to take it out.
take_head() { # take_head FILE
    bundle=$INSTALL_KEDGE_BUNDLE
    [ -f "$bundle" ] || die "INSTALL_KEDGE_BUNDLE: there is no file $bundle"
    check_sum "$bundle"
    length=$(tail -c 129 "$bundle" |
        LC_ALL=C sed -n 's/^KEDGE-BUNDLE-1 0*\([1-9][0-9]*\) [0-9]* [0-9]* [0-9]* [0-9a-f]*$/\1/p')
    [ -n "$length" ] ||
        die "INSTALL_KEDGE_BUNDLE: $bundle is no bundle of kedge, or its end is missing: copy it again"
    head -c "$length" "$bundle" >"$1"
    [ "$(wc -c <"$1")" -eq "$length" ] || die "INSTALL_KEDGE_BUNDLE: $bundle was cut: copy it again"
}

# All of the bundle is checked before anything of it is written, by a kedge that is not of it wherever a key is named.
apply_bundle() { # apply_bundle HEAD
    checks=$1
    if [ -n "$INSTALL_KEDGE_BUNDLE_KEY" ]; then
        checks=
        for judge in "$trusted" "$program"; do
            if [ -z "$checks" ] && [ -n "$judge" ] && [ -x "$judge" ] && "$judge" bundle --help >/dev/null 2>&1; then
                checks=$judge
            fi
        done
        # The sum that the operator named is that of all of it, the head included.
        if [ -z "$checks" ] && [ -n "$INSTALL_KEDGE_SHA256" ]; then checks=$1; fi
        [ -n "$checks" ] ||
            die "INSTALL_KEDGE_BUNDLE_KEY: there is no kedge here yet that could check the bundle, and a bundle" \
                "cannot vouch for itself: name its sum with INSTALL_KEDGE_SHA256, or a kedge with INSTALL_KEDGE_BINARY"
        "$checks" bundle verify --key "$INSTALL_KEDGE_BUNDLE_KEY" "$INSTALL_KEDGE_BUNDLE" ||
            die "INSTALL_KEDGE_BUNDLE: $INSTALL_KEDGE_BUNDLE is not installed"
    fi
    find_data_dir
    "$1" bundle apply ${INSTALL_KEDGE_BUNDLE_KEY:+--key "$INSTALL_KEDGE_BUNDLE_KEY"} \
        ${data_dir:+--data-dir "$data_dir"} "$INSTALL_KEDGE_BUNDLE" ||
        die "INSTALL_KEDGE_BUNDLE: $INSTALL_KEDGE_BUNDLE is not installed"
}

# The data folder that the arguments or variables name, in $data_dir; the last of several counts, as with kedge.
find_data_dir() {
    data_dir=${KEDGE_DATA_DIR:-${K3S_DATA_DIR:-}}
    named=$(printf '%s\n' "$args" | xargs printf '%s\n' |
        sed -n '/^\(-d\|--data-dir\)$/{n;p;};s/^\(-d\|--data-dir\)=//p' | tail -n 1)
    data_dir=${named:-$data_dir}
}

# The sum that the operator named, by a way of his own.
check_sum() { # check_sum FILE
    [ -n "$INSTALL_KEDGE_SHA256" ] || return 0
    sum=$(sha256sum "$1" | cut -d ' ' -f 1)
    [ "$sum" = "$INSTALL_KEDGE_SHA256" ] || die "$1 is not the one of INSTALL_KEDGE_SHA256: its sum is $sum"
}

download() {
    base=${INSTALL_KEDGE_ARTIFACT_URL%/} channels=${INSTALL_KEDGE_CHANNEL_URL:-$INSTALL_KEDGE_ARTIFACT_URL}
    channels=${channels%/}
    [ -z "$INSTALL_KEDGE_COMMIT" ] || die "INSTALL_KEDGE_COMMIT: there is no folder of builds by commit: name the" \
        "folder of releases with INSTALL_KEDGE_ARTIFACT_URL and one of them with INSTALL_KEDGE_VERSION"
    [ -z "$INSTALL_KEDGE_PR" ] || die "INSTALL_KEDGE_PR: there is no folder of builds by pull request: name the" \
        "folder of releases with INSTALL_KEDGE_ARTIFACT_URL and one of them with INSTALL_KEDGE_VERSION"
    [ -n "$base" ] ||
        die "name the folder of releases with INSTALL_KEDGE_ARTIFACT_URL, or a file with INSTALL_KEDGE_BINARY, or" \
            "put the program beside this script as 'kedge'"
    case $base,$channels in
    http://* | *,http://*)
        [ -n "$INSTALL_KEDGE_SHA256" ] ||
            die "over http:// anybody on the way chooses the program: use https://, or name its sum with" \
                "INSTALL_KEDGE_SHA256"
        ;;
    esac
    choose_arch
    version=$INSTALL_KEDGE_VERSION
    if [ -z "$version" ]; then
        fetch "$channels/${INSTALL_KEDGE_CHANNEL:-stable}" "$1/channel"
        version=$(head -n 1 "$1/channel" | tr -d '[:space:]')
        case $version in
        '' | *[!A-Za-z0-9.+_-]*) die "$channels/${INSTALL_KEDGE_CHANNEL:-stable} does not hold a version" ;;
        esac
    fi
    say "downloading kedge $version for $arch"
    fetch "$base/$version/sha256sum-$arch.txt" "$1/sums"
    fetch "$base/$version/kedge-$arch" "$1/kedge"
    want=$(awk -v file="kedge-$arch" '{ sub(/^\*/, "", $2) } $2 == file { print $1 }' "$1/sums")
    got=$(sha256sum "$1/kedge" | cut -d ' ' -f 1)
    [ -n "$want" ] || die "$base/$version/sha256sum-$arch.txt does not name kedge-$arch"
    [ "$want" = "$got" ] || die "the downloaded program is not what the release says: sha256 is $got, must be $want"
}

note() { # note KIND NAME PATH: what uninstall removes
    line="$1 $2 $3"
    grep -qxF "$line" "$record" 2>/dev/null || printf '%s\n' "$line" >>"$record"
}

# Both are called in this shell, never behind a pipe: what they note and how they end would be lost in the pipe's own.
changed=
put() { # put MODE FILE: writes standard input there if it differs
    (umask 077 && cat >"$2.new")
    settle "$1" "$2"
}
settle() { # settle MODE FILE: the same for what lies in FILE.new
    chmod "$1" "$2.new"
    if cmp -s "$2.new" "$2"; then
        rm -f "$2.new"
    else
        mv -f "$2.new" "$2"
        changed=yes
    fi
}

put_program() {
    [ -n "$fresh" ] || return 0
    # In one step: a running kedge keeps the old file, and containerd never finds half a CNI plugin.
    cp "$fresh" "$program.new"
    chmod 0755 "$program.new"
    if have sync; then sync; fi
    mv -f "$program.new" "$program"
    changed=yes
    if have chcon && have getenforce && [ "$(getenforce)" != Disabled ]; then
        chcon -u system_u -r object_r -t container_runtime_exec_t "$program" 2>/dev/null ||
            say "warning: SELinux is on and does not know container_runtime_exec_t: install container-selinux"
    fi
    note binary kedge "$program"
    say "installed $program: $("$program" --version)"
}

put_links() {
    [ "$INSTALL_KEDGE_SYMLINK" != skip ] && [ "$INSTALL_KEDGE_BIN_DIR_READ_ONLY" != true ] || return 0
    for command in kubectl crictl ctr; do
        "$program" "$command" --help >/dev/null 2>&1 || continue # this kedge does not speak for it
        link=$bin_dir/$command
        if [ -L "$link" ] && [ "$(readlink "$link")" = kedge ]; then
            note link "$command" "$link"
        elif [ "$INSTALL_KEDGE_SYMLINK" = force ] || { ! have "$command" && [ ! -e "$link" ]; }; then
            ln -sf kedge "$link"
            note link "$command" "$link"
        fi
    done
}

put_scripts() {
    [ "$INSTALL_KEDGE_BIN_DIR_READ_ONLY" != true ] || return 0
    for command in killall uninstall; do
        script=$bin_dir/kedge-$command.sh
        [ "$role" = agent ] && [ "$command" = uninstall ] && script=$bin_dir/kedge-agent-uninstall.sh
        put 0755 "$script" <<SCRIPT
#!/bin/sh
exec $program $command "\$@"
SCRIPT
        note script "$command" "$script"
    done
}

# KEY=VALUE lines for systemd's EnvironmentFile, and for a shell: values stand in double quotes.
put_env() {
    any='[A-Za-z0-9_]*'
    names=$(env |
        sed -n "s/^\(KEDGE_$any\|K3S_$any\|CONTAINERD_$any\|${any}_[Pp][Rr][Oo][Xx][Yy]\)=.*/\1/p" | sort -u)
    for name in $names; do
        eval "value=\${$name-}"
        # shellcheck disable=SC2154 # eval sets it
        case $value in *'
'*) die "the variable $name holds a line break: write it to $config_dir/config.yaml instead" ;; esac
    done
    (umask 077 && : >"$env_file.new")
    {
        seen=' '
        for name in $names; do
            eval "value=\${$name-}"
            printf '%s="%s"\n' "$name" "$(printf '%s' "$value" | sed 's/[\\"$`]/\\&/g')"
            seen="$seen$name "
        done
        if [ -f "$env_file" ]; then
            while IFS= read -r line; do
                case $seen in *" ${line%%=*} "*) ;; *) printf '%s\n' "$line" ;; esac
            done <"$env_file"
        fi
    } >"$env_file.new"
    settle 0600 "$env_file"
    note env "$service" "$env_file"
    put 0600 "$config_dir/$service.args" <<ARGS
$args
ARGS
    note args "$service" "$config_dir/$service.args"
}

# A quarter of the machine's memory, 256 MiB at most.
kept_bytes() { awk '/^MemTotal:/ { kept = int($2 / 4) * 1024; print (kept < 268435456 ? kept : 268435456) }' \
    /proc/meminfo; }

put_systemd() {
    # In a unit's command line '%' and '$' have meanings of their own.
    command="$program $role $args"
    command=$(printf '%s' "${command% }" | sed 's/%/%%/g; s/\$/$$/g')
    # A dash in its name would make it a part of another slice, which promises nothing.
    slice=$(printf '%s' "$service" | tr - _).slice
    put 0644 "$unit_dir/$slice" <<UNIT
# Written by kedge's install.sh.
[Unit]
Description=Memory that is kept for kedge and containerd

[Slice]
MemoryMin=$(kept_bytes)
UNIT
    note slice "$slice" "$unit_dir/$slice"
    put 0644 "$unit_dir/$service.service" <<UNIT
# Written by kedge's install.sh.
[Unit]
Description=Kedge, Kubernetes in one small binary
Wants=network-online.target
After=network-online.target

[Install]
WantedBy=multi-user.target

[Service]
Type=$type
EnvironmentFile=-/etc/default/%N
EnvironmentFile=-/etc/sysconfig/%N
EnvironmentFile=-$env_file
# Pods go on while kedge restarts; their groups are kedge's to manage.
KillMode=process
Delegate=yes
# Pods that eat all memory go first: nobody else could start them again.
Slice=$slice
MemoryMin=$(kept_bytes)
OOMScoreAdjust=-999
OOMPolicy=continue
ManagedOOMPreference=omit
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
TimeoutStartSec=0
Restart=always
RestartSec=5s
ExecStartPre=-/sbin/modprobe br_netfilter
ExecStartPre=-/sbin/modprobe overlay
ExecStart=$command
UNIT
    note systemd "$service" "$unit_dir/$service.service"
    systemctl daemon-reload
    [ "$INSTALL_KEDGE_SKIP_ENABLE" != true ] || return 0
    systemctl enable --quiet "$service"
    [ "$INSTALL_KEDGE_SKIP_START" != true ] || return 0
    if [ -z "$changed" ] && [ "$INSTALL_KEDGE_FORCE_RESTART" != true ] && systemctl is-active --quiet "$service"; then
        say "nothing changed: $service goes on"
        return 0
    fi
    say "starting $service"
    systemctl restart "$service"
}

put_openrc() {
    put 0755 "/etc/init.d/$service" <<SCRIPT
#!/sbin/openrc-run
# Written by kedge's install.sh.
description="Kedge, Kubernetes in one small binary"
supervisor=supervise-daemon
command=$program
command_args="$(printf '%s' "$role $args" | sed 's/[\\"$`]/\\&/g')"
output_log=/var/log/$service.log
error_log=/var/log/$service.log
pidfile=/run/$service.pid
respawn_delay=5
respawn_max=0
rc_ulimit="-n 1048576"
depend() {
    after network-online
    want cgroups
}
start_pre() {
    modprobe -q br_netfilter overlay 2>/dev/null
    return 0
}
set -o allexport
[ ! -f $env_file ] || . $env_file
set +o allexport
SCRIPT
    note openrc "$service" "/etc/init.d/$service"
    [ "$INSTALL_KEDGE_SKIP_ENABLE" != true ] || return 0
    rc-update add "$service" default >/dev/null
    [ "$INSTALL_KEDGE_SKIP_START" != true ] || return 0
    if [ -z "$changed" ] && [ "$INSTALL_KEDGE_FORCE_RESTART" != true ] &&
        rc-service "$service" status >/dev/null 2>&1; then
        say "nothing changed: $service goes on"
        return 0
    fi
    say "starting $service"
    rc-service "$service" restart
}

# Neither systemd nor OpenRC: a script that starts kedge again when it ends, for whatever starts this machine.
put_plain() {
    mkdir -p /etc/init.d
    put 0755 "/etc/init.d/$service" <<SCRIPT
#!/bin/sh
# Written by kedge's install.sh.
### BEGIN INIT INFO
# Provides:          $service
# Required-Start:    \$network \$local_fs
# Required-Stop:     \$network \$local_fs
# Default-Start:     2 3 4 5
# Default-Stop:      0 1 6
# Short-Description: Kedge, Kubernetes in one small binary
### END INIT INFO
pidfile=/run/$service.pid
alive() { [ -s "\$pidfile" ] && kill -0 "\$(cat "\$pidfile")" 2>/dev/null; }
case \${1:-} in
start)
    alive && exit 0
    modprobe -q br_netfilter 2>/dev/null
    modprobe -q overlay 2>/dev/null
    ulimit -n 1048576 2>/dev/null
    mkdir -p /run /var/log
    setsid "\$0" supervise </dev/null >>/var/log/$service.log 2>&1 &
    ;;
supervise)
    echo \$\$ >"\$pidfile"
    set -a
    [ ! -f $env_file ] || . $env_file
    set +a
    child=
    trap 'rm -f "\$pidfile"; [ -z "\$child" ] || kill "\$child"; wait; exit 0' TERM INT
    while :; do
        $program $role $args &
        child=\$!
        wait "\$child"
        sleep 5 &
        wait \$!
    done
    ;;
stop)
    alive || exit 0
    kill "\$(cat "\$pidfile")"
    tries=0
    while alive && [ "\$tries" -lt 30 ]; do sleep 1; tries=\$((tries + 1)); done
    ;;
restart) "\$0" stop && "\$0" start ;;
status) alive ;;
*) echo "usage: \$0 start|stop|restart|status" >&2; exit 2 ;;
esac
SCRIPT
    note sysv "$service" "/etc/init.d/$service"
    [ "$INSTALL_KEDGE_SKIP_ENABLE" != true ] || return 0
    if have update-rc.d; then
        update-rc.d "$service" defaults >/dev/null
    elif have chkconfig; then
        chkconfig --add "$service"
    else
        say "this machine's way to start services is not known: let it run '/etc/init.d/$service start' at boot"
    fi
    [ "$INSTALL_KEDGE_SKIP_START" != true ] || return 0
    if [ -z "$changed" ] && [ "$INSTALL_KEDGE_FORCE_RESTART" != true ] && "/etc/init.d/$service" status; then
        say "nothing changed: $service goes on"
        return 0
    fi
    say "starting $service (log: /var/log/$service.log)"
    "/etc/init.d/$service" restart
}

check_machine() {
    # containerd copies it for each pod, and makes none without it.
    [ -e /etc/hosts ] ||
        (umask 022 && mkdir -p /etc && printf '127.0.0.1 localhost\n::1 localhost\n' >/etc/hosts) ||
        say "warning: there is no /etc/hosts, and containerd makes no pod without it"
    find_data_dir
    for tool in containerd runc; do
        have "$tool" || [ -x "${data_dir:-/var/lib/kedge}/bundle/current/bin/$tool" ] ||
            say "warning: $tool was not found; kedge needs it (Debian: apt-get install containerd runc)"
    done
    if [ -f /proc/cgroups ] && [ ! -f /sys/fs/cgroup/cgroup.controllers ] &&
        ! awk '$1 == "memory" && $4 == 1 { found = 1 } END { exit !found }' /proc/cgroups; then
        say "warning: the memory control group is off; on a Raspberry Pi add" \
            "'cgroup_enable=memory cgroup_memory=1' to cmdline.txt and reboot"
    fi
}

# An agent that has joined has a key of its own, and its token is of no more use here, but to thieves.
forget_token() {
    [ "$role" = agent ] && [ "$INSTALL_KEDGE_SKIP_ENABLE" != true ] && [ "$INSTALL_KEDGE_SKIP_START" != true ] ||
        return 0
    grep -q '^\(KEDGE\|K3S\)_TOKEN=' "$env_file" || return 0
    find_data_dir
    joined=${data_dir:-/var/lib/kedge}/agent/membership.json tries=0
    # shellcheck disable=SC3013 # dash and busybox know -nt
    until [ "$joined" -nt "$env_file" ]; do
        tries=$((tries + 1))
        if [ "$tries" -gt "${INSTALL_KEDGE_JOIN_SECS:-60}" ]; then
            say "this machine has not joined yet: its token stays in $env_file until the next run"
            return 0
        fi
        sleep 1
    done
    # What is in it already is readable for root alone.
    cp -p "$env_file" "$env_file.new"
    sed '/^\(KEDGE\|K3S\)_TOKEN=/d' "$env_file" >"$env_file.new"
    mv -f "$env_file.new" "$env_file"
    say "joined: the token is forgotten, the machine's own key in $config_dir/node lets it in from now on"
}

main() {
    [ "$(id -u)" = 0 ] || die "this must run as root: pipe it into 'sudo sh -'"
    [ "$(uname -s)" = Linux ] || die "kedge runs on Linux"
    take_k3s_names
    choose_role "$@"
    hide_secrets
    case $role,${KEDGE_TOKEN:-${K3S_TOKEN:-}} in
    agent,K10*::server:*)
        say "warning: this token makes servers: an agent needs no more than the one of the server's file" \
            "server/node-token"
        ;;
    esac
    choose_folders
    get_program
    check_machine
    (umask 022 && mkdir -p "$config_dir")
    put_program
    put_scripts
    put_links
    put_env
    if [ -d /run/systemd/system ]; then
        put_systemd
    elif have rc-service && have openrc-run; then
        put_openrc
    else
        put_plain
    fi
    forget_token
    say "done; remove it again with: $program uninstall"
    if [ "$role" = server ]; then say "kubeconfig: $config_dir/kedge.yaml"; fi
}

main "$@"
