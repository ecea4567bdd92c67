#!/usr/bin/env bash
# tools/faults: faults whose outcome is known; a few of each phase; its mistakes.
set -euo pipefail
export LC_ALL=C

if [[ ${1:-} == --help || $# -lt 1 ]]; then
    echo "usage: $0 BUILD [N]   runs tools/faults with the programs of that build; N of each phase at random"
    exit 0
fi
root=$(realpath "$(dirname "$0")/../..")
readonly root programs=$1 sample=${2:-0}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
    echo "$1"
    cat "$scratch/said"
    exit 1
}
faults() {
    "$root/tools/faults" --programs "$programs" "$@" >"$scratch/said" 2>&1
}

# ---- what is known ----

faults --only start:allocation:none:200 || fail "a start without memory is not as expected:"
grep -q "^refused: .*start:allocation:none:200" "$scratch/said" || fail "a start without memory is not refused:"
faults --only gpu:allocation:none:1000000 || fail "a fault that is never reached:"
grep -q "^unreached: " "$scratch/said" || fail "a fault that is never reached is not told:"

# ---- mistakes ----

for mistake in "--phase nowhere" "--only start:allocation" "--only start:allocation:none:x" "--sample many"; do
    status=0
    # shellcheck disable=SC2086 # several words
    faults $mistake || status=$?
    [[ $status == 2 ]] || fail "tools/faults $mistake: status $status, not 2:"
done

# ---- a few of each phase ----

faults --only start:allocation:none:1 --only start:allocation:none:1000+ --only start:poll:interrupted:1 \
    --only run:allocation:none:100 --only run:allocation:none:1000 --only run:allocation:none:500+ --only run:write:short:5 \
    --only gpu:allocation:none:60 --only client:allocation:none:40 --only client:read:short:3 --only client:write:broken:4 ||
    fail "not as expected:"
# ---- some that nobody has chosen: the seed repeats them ----

if [[ $sample -gt 0 ]]; then
    faults --sample "$sample" || fail "not as expected:"
    grep "^seed " "$scratch/said"
fi
echo "a start without memory is refused, and a few faults of each phase are as expected"
