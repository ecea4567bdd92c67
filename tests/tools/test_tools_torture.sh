#!/usr/bin/env bash
# tools/torture: a true row in short; rows that fail, by programs that are made up here; a stop; its mistakes.
set -euo pipefail
export LC_ALL=C

if [[ ${1:-} == --help || $# != 1 ]]; then
    echo "usage: $0 BUILD   runs tools/torture with the programs of that build"
    exit 0
fi
root=$(realpath "$(dirname "$0")/../..")
programs=$(realpath "$1")
readonly root programs
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
readonly made=$scratch/made said=$scratch/said
mkdir -p "$made/tests"

fail() {
    echo "$1"
    cat "$said"
    exit 1
}
# torture STATUS OPTION...: runs it, and checks how it ends.
torture() {
    local expected=$1 status=0
    shift
    "$root/tools/torture" --out "$scratch/run" --jobs 2 --seed 7 "$@" >"$said" 2>&1 || status=$?
    [[ $status == "$expected" ]] || fail "tools/torture $*: status $status, not $expected:"
}
# program NAME: a program that does what standard input says.
program() {
    { echo '#!/bin/bash'; cat; } >"$made/tests/$1"
    chmod +x "$made/tests/$1"
}
says() {
    grep -qE -- "$1" "$said" || fail "it does not say '$1':"
}

# ---- a true one ----

torture 0 --programs "$programs" --only leavers 0.0001
says '^leavers +1 +[0-9.]+ +0 +100 leavers$'
says '^1 runs, 0 failed$'

# ---- what fails is told, and can be repeated ----

program test_partition_leavers <<<'echo "seed $MILLRACE_LEAVERS_SEED"; exit 3'
program fuzz_address <<'TEXT'
for word; do [[ $word != -artifact_prefix=* ]] || prefix=${word#*=}; done
echo '#2 INITED cov: 11 ft: 12 corp: 1/1b'; echo '#9 NEW cov: 19 ft: 20 corp: 2/2b'
echo stat::number_of_executed_units: 4711
echo "artifact; Test unit written to ${prefix}crash-1"
exit 77
TEXT
torture 1 --programs "$made" --only leavers --only "fuzz address" 0.0001
says "^leavers: status 3, "
says "^    MILLRACE_LEAVERS=100 MILLRACE_LEAVERS_SEED=[0-9]+ $made/tests/test_partition_leavers"
says "^fuzz address +1 +[0-9.]+ +1 +4,711 inputs +edges 11 -> 19"
says "^    $made/tests/fuzz_address $scratch/run/fuzz_address-crash-1$"
says '^2 runs, 2 failed; what they left is in '
grep -qE '^seed [0-9]+$' "$scratch/run/leavers-1.log" || fail "the log of what failed is not kept:"
grep -qF "2 runs, 2 failed" "$scratch/run/report" || fail "the report is not kept:"
torture 1 --programs "$scratch" --only leavers 0.0001 # there is none
says "^leavers: status 127, "

# ---- a stop ends all, with a report ----

program test_partition_leavers <<<'echo $$ >"$0.process"; sleep 1000'
"$root/tools/torture" --out "$scratch/run" --programs "$made" --only leavers 1 >"$said" 2>&1 &
stopped=$!
until [[ -s $made/tests/test_partition_leavers.process ]]; do sleep 0.05; done
kill -TERM "$stopped"
wait "$stopped" || fail "a stopped run that found nothing:"
says ', stopped$'
says '^0 runs, 0 failed$'
! kill -0 "$(<"$made/tests/test_partition_leavers.process")" 2>/dev/null || fail "it left a process:"

# ---- mistakes ----

for mistake in "--only nothing" "0" "-1" "many" "--jobs 0" "--seed x"; do
    # shellcheck disable=SC2086 # several words
    torture 2 $mistake
done
"$root/tools/torture" --list >"$said"
[[ $(grep -c '^fuzz ' "$said") == $(find "$root/tests/fuzz" -name 'fuzz_*.c' | wc -l) ]] || fail "not every fuzz target is a row:"
echo "rows run, what fails is told and kept, a stop leaves nothing behind"
