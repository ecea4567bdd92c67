#!/usr/bin/env bash
# tools/gpu-check without a card: on an emulated one stopped within a step and gone on with to the end; on the fake
# CUDA runtime to the end. What its reports and its plan say.
set -euo pipefail
export LC_ALL=C

if [[ ${1:-} == --help || $# != 2 ]]; then
    echo "usage: $0 emulated|fake BUILD   runs tools/gpu-check --emulated or --fake with the programs of that build"
    exit 0
fi
kind=$1
programs=$(realpath "$2")
root=$(realpath "$(dirname "$0")/../..")
readonly kind programs root
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
readonly out=$TMPDIR/out

fail() {
    echo "$1"
    cat "$out/report.md" "$out"/steps/*.log "$TMPDIR/said" || true
    exit 1
}
readonly all=("$root/tools/gpu-check" "--$kind" --programs "$programs" --out "$out")
check() { "${all[@]}" "$@" >"$TMPDIR/said" 2>&1; }
# has STEP STATUS: so it is in the report.
has() { grep -qE "\"name\": \"$1\",.*\"status\": \"$2\"" "$out/report.json" || fail "$1 is not '$2'"; }

"$root/tools/gpu-check" --plan --programs "$programs" |
    awk -F '\t' '{ all += $2 } $2 > 530 || all > 1500 { print "too long: " $1; bad = 1 } END { exit bad || NR < 30 }'

before=''
if [[ $kind == emulated ]]; then
    check --seconds 0 && fail "a call without time ran everything"
    has calibrate "not reached"
    "${all[@]}" --seconds 5000 >"$TMPDIR/said" 2>&1 &
    process=$!
    for ((tries = 0; tries < 1200; tries++)); do
        [[ ! -e $out/steps/calibrate.command ]] || break
        sleep 0.05
    done
    kill -TERM "$process"
    status=0
    wait "$process" || status=$?
    [[ $status == 143 ]] || fail "stopped: status $status, not 143"
    has calibrate cut
    has server "not reached"
    before=$(stat -c %Y.%s "$out/steps/bytes.status")
fi
check --seconds 5000 || fail "gone on with: status $?"
[[ -z $before || $(stat -c %Y.%s "$out/steps/bytes.status") == "$before" ]] || fail "a step that was done is done again"
for step in numa list bytes bytes-quad rate-16 rate-64 rate-128 above-2-gib calibrate pipeline-8k pipeline-8k-written pipeline-1408 \
    pipeline-1408-written half-rate deadline-400 deadline-200 server; do
    has "$step" ok
done
for form in whole quad; do
    grep -q "kernel form $form. Against OpenSSL: [1-9]" "$out/report.md" || fail "no byte of the form $form was compared"
done
! grep -q "Against OpenSSL: 0 jobs" "$out/report.md" || fail "a step with a kernel compared no byte"
for signal in KILL STOP; do
    grep -q "gpu-check: SIG$signal" "$out/report.md" || fail "the card's process had no SIG$signal"
done
python3 -m json.tool "$out/report.json" "$TMPDIR/parsed" || fail "report.json is no JSON"
echo "every step runs, one that was stopped again"
