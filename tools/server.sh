# shellcheck shell=bash
# For tools/demo and tools/soak, which source it: a server of one's own in a new folder under /tmp, ended and
# removed with the script that started it.
#
# Before: `name`, of the script, for messages; `root`, of the tree; `build`, the folder of the programs; `profile`, of a
# server with emulated GPUs, or nothing for emulated-demo; `hang_ms`, its gpus.hang_ms, or nothing for the default.

scratch=$(mktemp -d "${TMPDIR:-/tmp}/millrace-$name-XXXXXX")
server=

# stop_server: ends the server the way an operator would; its exit status tells whether anything was lost.
stop_server() {
    local pid=$server status=0
    [[ -n $pid ]] || return 0
    server=
    kill -TERM "$pid" 2>/dev/null || true
    wait "$pid" || status=$?
    return "$status"
}

# shellcheck disable=SC2317 # called by the trap
clean_up() {
    stop_server || true
    rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# quietly WHAT COMMAND...: shows the command's output only where it fails.
quietly() {
    local what=$1
    shift
    if ! "$@" >"$scratch/output" 2>&1 </dev/null; then
        cat "$scratch/output" >&2
        echo "$name: $what failed, see above" >&2
        exit 1
    fi
}

# build_programs: what is needed for a server and its load, one at a time in a build folder.
build_programs() {
    "$root/tools/setup" build
    [[ -t 1 ]] && printf 'building ...\r'
    mkdir -p "$build"
    exec {lock}>"$build/.$name-lock"
    flock "$lock"
    quietly "configuring" cmake --preset release -S "$root" -B "$build" -DMILLRACE_TESTS=OFF
    quietly "building" cmake --build "$build" -j "$(nproc)" --target millraced millrace-gpu millrace_cli millrace-gen
    exec {lock}>&-
    [[ -t 1 ]] && printf '\033[K'
    return 0
}

# start_server yes|no: with emulated GPUs, as the profile has them, or with CPU workers alone,
# measured at the start. With GPUs there is one worker, however many cores: one more would have room for most of
# the streams of the shipped workloads, and leave the GPUs little or nothing. Its log is shown only where something failed.
start_server() {
    cat >"$scratch/millraced.yaml" <<YAML
listeners:
  - address: unix:$scratch/socket
    mode: 0600
admin: unix:$scratch/admin
YAML
    if [[ $1 == yes ]]; then
        cat >>"$scratch/millraced.yaml" <<YAML
profile: ${profile:-$root/config/profiles/emulated-demo.yaml}
gpus: {use: emulated, program: $build/gpu/millrace-gpu${hang_ms:+, hang_ms: $hang_ms}}
threads: {io: 1, workers: 1}
YAML
    fi
    # A session of its own, so that Ctrl-C reaches the load first and the server is stopped in order.
    setsid "$build/server/millraced" "$scratch/millraced.yaml" >"$scratch/log" 2>&1 </dev/null &
    server=$!
    local tries
    for ((tries = 0; tries < 200; tries++)); do
        if [[ -S $scratch/socket ]]; then
            return 0
        fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    cat "$scratch/log" >&2
    echo "$name: the server did not start, see above" >&2
    exit 1
}

# end_server STATUS: stops the server; returns STATUS, or 1 where that is 0 and the server lost packets.
end_server() {
    local status=$1 server_status=0
    stop_server || server_status=$?
    if [[ $server_status != 0 ]]; then
        cat "$scratch/log" >&2
        echo "$name: the server stopped with status $server_status, see above" >&2
        [[ $status != 0 ]] || status=1
    fi
    return "$status"
}
