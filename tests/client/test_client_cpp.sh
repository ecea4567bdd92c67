#!/usr/bin/env bash
# Runs programs that use libmillrace, each with the address of a server of its own and the name of a key that it has.
set -euo pipefail

if [[ ${1:-} == --help || $# -lt 2 ]]; then
    echo "usage: $0 MILLRACED PROGRAM..."
    exit $(($# != 1))
fi
millraced=$1
shift
scratch=$(mktemp -d "${TMPDIR:-/tmp}/millrace-cpp-XXXXXX")
server=''
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    [[ -z $server ]] || kill -KILL "$server" 2>/dev/null || true
    rm -rf "$scratch"
}
trap clean_up EXIT

(umask 077 && echo "camera-7 aes-128-cbc 000102030405060708090a0b0c0d0e0f" >"$scratch/keyring")
# A profile, so that what a busy machine measures of itself does not decide; every build has this engine.
profiles=$(dirname "$0")/../../config/profiles
sed 's/^  engine: .*/  engine: "openssl"/' "$profiles/cpu-only.yaml" >"$scratch/profile.yaml"
cat >"$scratch/millraced.yaml" <<YAML
engine: openssl
profile: "$scratch/profile.yaml"
listeners:
  - {address: "unix:$scratch/socket", mode: 0600}
admin: "unix:$scratch/admin"
keyring: "$scratch/keyring"
client_iv: true
gpus: none
threads: {io: 1, workers: 1, realtime: off}
overload: {tighten: false}
YAML
"$millraced" "$scratch/millraced.yaml" >"$scratch/log" 2>&1 &
server=$!
for ((tries = 0; tries < 600; tries++)); do
    [[ ! -S $scratch/socket ]] || break
    sleep 0.1
done
for program in "$@"; do
    "$program" "unix:$scratch/socket" camera-7 || { cat "$scratch/log"; echo "$program failed"; exit 1; }
done
kill -TERM "$server"
wait "$server" || { cat "$scratch/log"; echo "the server stopped with status $?"; exit 1; }
server=''
