#!/usr/bin/env bash
# The server inside programs: what the command and the example make of "embedded:CONFIG", and what they say where
# libmillraced is not there, or of another version.
set -euo pipefail
export LC_ALL=C

if [[ ${1:-} == --help || $# != 2 ]]; then
    echo "usage: $0 BUILD-FOLDER FOLDER-OF-ANOTHER-LIBMILLRACED"
    exit $(($# != 1))
fi
build=$1 other=$2
scratch=$(mktemp -d "${TMPDIR:-/tmp}/millrace-embedded-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
fail() {
    echo "$1"
    exit 1
}
# says TEXT LIBRARY-PATH PROGRAM...: it fails with the text.
says() {
    local text=$1 path=$2 said
    shift 2
    ! said=$(LD_LIBRARY_PATH=$path "$@" 2>&1) || fail "$1 succeeds with libraries in '$path'"
    [[ $said == *"$text"* ]] || fail "'$said' should tell of '$text'"
}

cat >"$scratch/server.yaml" <<'YAML'
profile: cpu-only
limits: {streams: 16, streams_per_connection: 16}
threads: {io: 1, workers: 1, realtime: off}
overload: {tighten: false}
log: {level: error}
YAML
key=000102030405060708090a0b0c0d0e0f
head -c 300000 /dev/urandom >"$scratch/plain"
(umask 077 && echo "$key" >"$scratch/key")
example=$build/client/millrace_example_embedded

says "needs libmillraced" "" "$example" "$scratch/server.yaml"
says "libmillraced.so.1 is of version 9.9.9-other" "$other" "$example" "$scratch/server.yaml"
says "none.yaml: No such file" "$build/server" "$example" "$scratch/none.yaml"
echo "limits: {strams: 3}" >"$scratch/wrong.yaml"
says "wrong.yaml:1: limits: unknown key 'strams'" "$build/server" "$example" "$scratch/wrong.yaml"

export LD_LIBRARY_PATH=$build/server
said=$("$example" "$scratch/server.yaml") || fail "the example fails"
[[ $said == "10 packets of 1408 bytes, each within "*" ms" ]] || fail "the example says '$said'"

cd "$scratch" # a path is relative to where the program is
"$build/client/millrace" ping --server embedded:server.yaml >/dev/null || fail "millrace ping fails"
said=$("$build/client/millrace" encrypt --server embedded:server.yaml --key-file key --output cipher plain 2>&1) ||
    [[ $? == 4 ]] || fail "millrace encrypt fails: $said" # 4: late, on a machine that is busy
iv=$(sed -n 's/^IV: //p' <<<"$said")
openssl enc -d -aes-128-cbc -K "$key" -iv "$iv" -in cipher | cmp - plain || fail "it is not what OpenSSL decrypts"
echo "the command and the example have their servers inside, and say what is wrong"
