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

# The management library of a machine without cards (tests/support/libraries/nvml.c).
[[ $kind == emulated ]] || export LD_LIBRARY_PATH=$programs/tests/libraries
if [[ $kind == fake ]]; then # within a call, however many cards there are
    MILLRACE_FAKE_CUDA=cards=8 "$root/tools/gpu-check" --fake --plan --programs "$programs" |
        awk -F '\t' '$1 == "calibrate" { limit = $2 } END { exit limit <= 150 || limit > 530 }' || fail "the plan of eight cards"
fi

before=''
if [[ $kind == emulated ]]; then
    check --seconds 0 && fail "a call without time ran everything"
    has calibrate "not reached"
    "${all[@]}" --seconds 5000 >"$TMPDIR/said" 2>&1 &
    process=$!
    while [[ ! -e $out/steps/calibrate.command ]] && kill -0 "$process" 2>/dev/null; do # however busy the machine is
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
for step in numa list bytes bytes-quad rate-16 rate-64 rate-128 above-2-gib pipeline-8k pipeline-8k-written pipeline-1408 \
    pipeline-1408-written half-rate deadline-400 deadline-200 server; do
    has "$step" ok
done
has calibrate "(ok|not safe)" # by how quiet the machine is
grep -qE "^calibrate +cut .* between two parts" "$TMPDIR/said" || fail "calibration was not in parts"
for form in whole quad; do
    grep -q "kernel form $form. Against OpenSSL: [1-9]" "$out/report.md" || fail "no byte of the form $form was compared"
done
! grep -q "Against OpenSSL: 0 jobs" "$out/report.md" || fail "a step with a kernel compared no byte"
for signal in KILL STOP; do
    grep -q "gpu-check: SIG$signal" "$out/report.md" || fail "the card's process had no SIG$signal"
done
"$root/tools/check-style" --format-only "$out/report.md" || fail "report.md is no page as others are"
! grep -qE "$TMPDIR|$programs|$root|(^|[[:space:]'\"=:(,])/[^/ ]+/" "$out/report.md" || fail "report.md has folders of this machine"
shortest=$(for deadline in 200 400; do
    ! grep -qE '^  "missed": 0,$' "$out/steps/deadline-$deadline.json" || { echo "$deadline ms" && break; }
done)
tr '\n' ' ' <"$out/report.md" | grep -q "shortest deadline that held, with no packet missed, is ${shortest:-none} " ||
    fail "the shortest deadline is ${shortest:-none}, and not told"
if [[ $kind == fake ]]; then
    tr '\n' ' ' <"$out/report.md" | grep -q "Clock at the end: 1980 of 1980 MHz, 45 C, held down by: none\." ||
        fail "the clocks of the pipelines are missing"
fi
python3 -m json.tool "$out/report.json" "$TMPDIR/parsed" || fail "report.json is no JSON"

# A profile that is not safe, by a bench that says so: the step alone is run again.
mkdir -p "$TMPDIR/programs/bin"
for program in millrace-gpu millrace-gpu-fake millraced millrace-gen test_gpu_launch_fake; do
    ln -s "$(find "$programs" -name "$program" -type f -perm -u+x | head -n 1)" "$TMPDIR/programs/bin/$program"
done
bench=$(find "$programs" -name millrace-bench -type f -perm -u+x | head -n 1)
printf '#!/bin/sh\n[ "$1" != calibrate ] || { echo "warning: the profile is NOT safe: so says a test" && exit 0; }\nexec %s "$@"\n' \
    "$bench" >"$TMPDIR/programs/bin/millrace-bench"
chmod +x "$TMPDIR/programs/bin/millrace-bench"
rm "$out/steps/calibrate.status"
"$root/tools/gpu-check" "--$kind" --programs "$TMPDIR/programs" --out "$out" --seconds 5000 >"$TMPDIR/said" 2>&1 || fail "not safe: status $?"
has calibrate "not safe"
grep -q "^| calibrate | not safe: " "$out/report.md" || fail "the table does not tell that the profile is not safe"
grep -q "the profile is not safe" "$TMPDIR/said" || fail "nobody is told that the profile is not safe"

# A folder that is too large.
mkdir "$TMPDIR/large"
"$root/tools/gpu-check" --weigh "$TMPDIR/large" || fail "an empty folder is refused"
truncate -s 64M "$TMPDIR/large/program"
! "$root/tools/gpu-check" --weigh "$TMPDIR/large" 2>"$TMPDIR/said" || fail "a folder of 64 MiB is not refused"
grep -q "large has [0-9]* bytes, and must have less than 67108864" "$TMPDIR/said" || fail "refused without a reason"
echo "every step runs, one that was stopped again; what is unsafe or too large is told"
