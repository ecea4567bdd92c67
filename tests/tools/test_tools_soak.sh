#!/usr/bin/env bash
# tools/soak: a short one to its end, with the card killed, beside another that is stopped; what it makes of samples
# that grow; its mistakes. Neither may leave a process or a file behind.
set -euo pipefail
export LC_ALL=C

if [[ ${1:-} == --help || $# != 1 ]]; then
    echo "usage: $0 BUILD   runs tools/soak with the programs of that build"
    exit 0
fi
programs=$(realpath "$1")
root=$(realpath "$(dirname "$0")/../..")
readonly programs root
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

fail() {
    echo "$1"
    [[ -z ${2:-} ]] || cat "$2"
    exit 1
}

# says FILE SENTENCE: a report breaks its sentences where its columns end, wherever that is.
says() {
    [[ $(tr -s '\n ' ' ' <"$1") == *"$2"* ]]
}

# ---- samples that are known ----

columns=packets,missed,lost,diverted,diverted_late,server_bytes,server_descriptors,server_threads
columns+=,card_faults,card_restarts,card_bytes,card_descriptors,card_threads,period_changes
# made BYTES DESCRIPTORS LOST: eleven minutes; the server grows by so much a minute, and loses so many at the end.
made() {
    local minute
    echo "seconds,$columns"
    for ((minute = 0; minute <= 10; minute++)); do
        echo "$((60 * minute)),1000,0,$((minute == 10 ? $3 : 0)),0,0,$((200000000 + minute * $1)),$((50 + minute * $2)),7,0,0,100000000,11,5,0"
    done
}
# judged STATUS WORDS BYTES DESCRIPTORS LOST
judged() {
    local status=0
    made "$3" "$4" "$5" >"$TMPDIR/made.csv"
    "$root/tools/soak" --judge "$TMPDIR/made.csv" >"$TMPDIR/judged" || status=$?
    [[ $status == "$1" ]] || fail "status $status, not $1, of samples that grow by $3 and $4 a minute:" "$TMPDIR/judged"
    grep -q "$2" "$TMPDIR/judged" || fail "nothing of '$2' in:" "$TMPDIR/judged"
}
judged 0 "server memory" 0 0 0
made 0 0 0 | sed '5s/,5,0$/,1,0/; 6s/,11,5,0$/,3,5,0/; 7s/,50,7,0,0,100000000,11,/,44,7,0,0,100000000,10,/' \
    >"$TMPDIR/killed.csv" # just when samples were taken; and a card that starts, when the server keeps fewer
"$root/tools/soak" --judge "$TMPDIR/killed.csv" >"$TMPDIR/judged" || fail "a card that is killed leaks:" "$TMPDIR/judged"
judged 0 "+6.10 MiB" 800000 0 0
judged 1 "leak: server memory grew by 9.16 MiB" 1200000 0 0
judged 1 "leak: server descriptors" 0 1 0
judged 1 "lost: the server says so" 0 0 3

# ---- mistakes ----

for mistake in "--minutes x" "--minutes" "--out" "--judge /nonexistent" "--forever"; do
    status=0
    # shellcheck disable=SC2086 # several words
    "$root/tools/soak" $mistake >"$TMPDIR/said" 2>&1 || status=$?
    [[ $status == 2 ]] || fail "tools/soak $mistake: status $status, not 2" "$TMPDIR/said"
done

# ---- two runs at once ----

readonly patience=(-- --timeout 120 --drain 120 --probe 200 --probe-rate 8 --opened-max 20)
readonly small=(--streams 40 --operations 40 --sample-every 0.5 --programs "$programs")
"$root/tools/soak" --minutes 0.1 --kill-every 1 --guaranteed 50 --out "$TMPDIR/out" "${small[@]}" "${patience[@]}" >"$TMPDIR/one" 2>&1 &
one=$!
"$root/tools/soak" --minutes 20 --kill-every 0 "${small[@]}" "${patience[@]}" >"$TMPDIR/two" 2>&1 &
two=$!
# The second one is stopped once its streams run: the head, two samples before, one of the run.
running() {
    local samples
    for samples in "$TMPDIR"/millrace-soak-*/samples.csv; do
        [[ -r $samples && $(wc -l <"$samples") -ge 4 ]] || return 1
    done
}
for ((tries = 0; tries < 600; tries++)); do
    if running; then break; fi
    sleep 0.1
done
kill -TERM "$two"
status=0
wait "$two" || status=$?
[[ $status == 143 ]] || fail "a soak that was stopped: status $status, not 143:" "$TMPDIR/two"
says "$TMPDIR/two" "interrupted before the end" || fail "no report of a soak that was stopped:" "$TMPDIR/two"
status=0
wait "$one" || status=$?
[[ $status == 0 ]] || fail "a short soak: status $status:" "$TMPDIR/one"
says "$TMPDIR/one" "and the capacity is what it was" || fail "no verdict on the capacity:" "$TMPDIR/one"
grep -qE "killed: the card's process, [1-9]" "$TMPDIR/one" || fail "the card was not killed:" "$TMPDIR/one"
grep -qE "of guaranteed streams: [1-9][0-9]* packets" "$TMPDIR/one" || fail "no guaranteed streams:" "$TMPDIR/one"
[[ $(wc -l <"$TMPDIR/out/samples.csv") -ge 6 ]] || fail "too few samples:" "$TMPDIR/out/samples.csv"

# ---- what is left ----

left=$(find "$TMPDIR" -maxdepth 1 -name 'millrace-*')
[[ -z $left ]] || fail "left behind: $left"
for command in /proc/[0-9]*/cmdline; do
    line=$({ tr '\0' ' ' <"$command"; } 2>/dev/null) || continue # it has just ended
    [[ $line != *"$TMPDIR/millrace-soak"* ]] || fail "still running: $line"
done
echo "a soak runs to its end, one that is stopped reports and cleans up, and what grows is found"
