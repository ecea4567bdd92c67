#!/usr/bin/env bash
# `millrace ts` between ffmpeg and a receiver that descrambles on its own: the example of docs/operations/ts.md as it
# stands there (UDP to a group, RTP to one receiver, words from a file and from a command); then IPv6, with words that
# change all the time, while the server is killed once. What comes out is, descrambled, what came in: datagram by
# datagram, in order, and without a gap but where there was no server. All in a network namespace.
set -euo pipefail

build=$(realpath "${1:-build/release}")
source=$(realpath "$(dirname "$0")/../..")
for program in ffmpeg ip unshare python3 openssl curl; do
    command -v "$program" >/dev/null || { echo "skipped: no $program here"; exit 77; }
done
if [[ ${2:-} != inside ]]; then
    enter=(unshare --net)
    [[ $(id -u) == 0 ]] || enter=(unshare --map-root-user --net)
    "${enter[@]}" true 2>/dev/null || { echo "skipped: no network namespace is permitted here"; exit 77; }
    exec "${enter[@]}" "$0" "$build" inside
fi
ip link set lo up multicast on
# IPv6 has no groups on lo: an interface whose datagrams come back.
{ ip link add six type veth peer name none && echo 1 >/proc/sys/net/ipv6/conf/none/disable_ipv6 &&
    ip link set none up && ip link set six up && ip -6 address add fd00::1/64 dev six nodad; } 2>/dev/null ||
    { echo "skipped: no interface with IPv6 can be made here"; exit 77; }

scratch=$(mktemp -d "${TMPDIR:-/tmp}/millrace-ts-XXXXXX")
server='' running=()
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local pid
    for pid in $server "${running[@]}" $(jobs -p); do kill -KILL "$pid" 2>/dev/null || true; done
    rm -rf "$scratch"
}
trap clean_up EXIT
fail() {
    echo "failed: $1" >&2
    tail -n 60 "$scratch"/*.log >&2
    exit 1
}
await() { # WHAT COMMAND...: until it succeeds, for a minute
    local what=$1 tries
    shift
    for ((tries = 0; tries < 600; tries++)); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.1
    done
    fail "$what"
}
cat >"$scratch/millraced.yaml" <<YAML
listeners:
  - {address: "unix:$scratch/socket", mode: 0600}
client_iv: true
gpus: none
profile: cpu-only
overload: {tighten: false}
threads: {io: 1, workers: 1, realtime: off}
YAML
start_server() {
    rm -f "$scratch/socket"
    "$build/server/millraced" "$scratch/millraced.yaml" >>"$scratch/server.log" 2>&1 &
    server=$!
    await "the server does not start" test -S "$scratch/socket"
}
receive() { # NAME ADDRESS INTERFACE [WORDS]
    "$build/tests/ts_receive" "$2" "$3" "$scratch/$1" ${4:+"$4"} >"$scratch/$1.ready" 2>"$scratch/$1.log" &
    running+=($!)
    await "no receiver of $1" grep -q ready "$scratch/$1.ready"
}
stop_receivers() {
    local pid
    sleep 0.5
    for pid in "${running[@]}"; do
        kill -TERM "$pid" 2>/dev/null || true
        wait "$pid" || fail "a receiver ended with status $?"
    done
    running=()
}
# What came out is in what came in, in order, with at most so many gaps between the first and the last. A busy machine may
# drop datagrams because too many wait; where so many were counted, gaps are not.
compare() { # NAME GAPS DROPPED
    python3 - "$scratch/$1.clear" "$scratch/$1.out" "$2" "$3" <<'PYTHON' || fail "$1: what came out is not what came in"
import sys
def datagrams(path):
    data, at, found = open(path, "rb").read(), 0, []
    while at < len(data):
        size = data[at] << 8 | data[at + 1]
        found.append(data[at + 2:at + 2 + size])
        at += 2 + size
    return found
clear, out, most, dropped = datagrams(sys.argv[1]), datagrams(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
at = gaps = 0
for number, one in enumerate(out):
    begin = at
    # behind a gap more must be the same: some are nothing but padding
    same = 50 if dropped == 0 else 1
    while at < len(clear) and (clear[at] != one or at > begin and clear[at:at + same] != out[number:number + same]):
        at += 1
    if at == len(clear):
        sys.exit(f"datagram {number} of {len(out)} never came in, or not in this order")
    gaps += number > 0 and at > begin
    at += 1
print(f"{len(clear)} came in, {len(out)} went out, {gaps} gaps, {len(clear) - at} at the end")
sys.exit(len(out) < 100 or (gaps > most and dropped == 0) or at < len(clear))
PYTHON
}

# ---- the example of the documentation ----

mkdir "$scratch/example"
cd "$scratch/example"
block() { # the NUMBER-th block of this LANGUAGE
    awk -v want="$2" -v begin="^\`\`\`$1\$" '$0 ~ begin { at++; inside = 1; next } /^```/ { inside = 0 } inside && at == want' \
        "$source/docs/operations/ts.md"
}
block yaml 2 >ts.yaml
grep -q 'services:' ts.yaml || fail "the documentation has no example"
start_server
export MILLRACE_SERVER="unix:$scratch/socket" PATH="$build/client:$PATH"
receive news.clear udp:239.1.1.1:5000 lo
receive news.out udp:239.2.1.1:5000 lo words
receive films.out udp:127.0.0.1:5004 '' film-words
block sh 1 >example.sh
cat >>example.sh <<'SH'
jobs -p >../example.pids
wait %2 %3
SH
bash example.sh >"$scratch/example.log" 2>&1 || fail "the example"
curl -sf --unix-socket metrics http://localhost/metrics >"$scratch/metrics.log" || fail "no metrics"
kill -TERM "$(head -n 1 "$scratch/example.pids")"
stop_receivers
for line in 'words_total{service="news"} 2' 'words_total{service="films"} 1' \
    'dropped_total{service="news",reason="invalid"} 0' 'dropped_total{service="films",reason="refused"} 0' \
    'streams_refused_total 0' connected\ 1; do
    grep -qF "millrace_ts_$line" "$scratch/metrics.log" || fail "metrics: no $line"
done
grep -q '^ts_receive: 1 changes' "$scratch/news.out.log" || fail "the word of news has not changed"
compare news 0 "$(awk -F'[ ]' '/dropped_total\{service="news",reason="(excess|overflow)"/ { sum += $2 } END { print sum + 0 }' \
    "$scratch/metrics.log")"
[[ $(stat -c %s "$scratch/films.out") -gt 300000 ]] || fail "nothing of films"
cd "$scratch"

# ---- IPv6; words change all the time; the server is killed ----

cat >six.yaml <<YAML
services:
  - name: group
    input: "udp:[ff15::1]:5000"
    input_interface: six
    output: "udp:[ff15::2]:5000"
    output_interface: six
    rate_mbit_per_s: 8
    words: {file: group.fifo}
  - name: single
    input: "udp:[ff15::3]:5000"
    input_interface: six
    input_source: "fd00::1"
    output: "udp:[::1]:5002"
    rate_mbit_per_s: 8
    bound_ms: 40
    hold: true
    words: {file: single.fifo}
YAML
mkfifo -m 600 group.fifo single.fifo
millrace ts --check six.yaml || fail "six.yaml"
millrace ts --json six.yaml >"$scratch/report.log" 2>"$scratch/ts.log" &
ts=$!
parity=even
give() { # [WHEN]: each service's next word
    local word
    for name in group single; do
        word=$(openssl rand -hex 16)
        echo "$parity $word" >>"$name.words"
        # shellcheck disable=SC2016 # for the inner shell
        timeout 60 sh -c 'echo "$1" >"$2"' - "$parity $word ${1:-}" "$name.fifo" || fail "nobody reads $name.fifo"
    done
    [[ $parity == even ]] && parity=odd || parity=even
}
give
for name in group single; do
    [[ $name == group ]] && ends=(ff15::1 ff15::2 5000 six) || ends=(ff15::3 ::1 5002 '')
    receive "$name.clear" "udp:[${ends[0]}]:5000" six
    receive "$name.out" "udp:[${ends[1]}]:${ends[2]}" "${ends[3]}" "$name.words"
    [[ $name == group ]] && form=(-f mpegts -muxrate 6M "udp://[${ends[0]}]:5000?pkt_size=1316") ||
        form=(-f mpegts "udp://[${ends[0]}]:5000?pkt_size=1316")
    ffmpeg -nostdin -loglevel error -re -f lavfi -i testsrc2=duration=14 -c:v mpeg2video -b:v 3M "${form[@]}" \
        >"$name.ffmpeg.log" 2>&1 &
    packagers+=($!)
done
for _ in 1 2 3 4 5; do sleep 0.8; give +500ms; done
sleep 1
kill -KILL "$server"
wait "$server" 2>/dev/null || true
sleep 0.5
start_server
sleep 1.5
for _ in 1 2 3 4; do sleep 0.8; give +500ms; done
for pid in "${packagers[@]}"; do wait "$pid" || fail "ffmpeg"; done
stop_receivers
kill -TERM "$ts"
wait "$ts" || [[ $? == 4 ]] || fail "millrace ts ended with another status"
busy=$(python3 -c '
import json, sys
print(sum(one["dropped"]["excess"] + one["dropped"]["overflow"] for one in json.load(open(sys.argv[1]))["services"]))
' "$scratch/report.log")
compare group 1 "$busy"
compare single 1 "$busy"
python3 - "$scratch/report.log" <<'PYTHON' || fail "another report"
import json, sys
report = json.load(open(sys.argv[1]))
assert report["reconnects"] == 1, "reconnects"
for service in report["services"]:
    dropped = service["dropped"]
    assert service["words"] == 10 and service["refused_words"] == 0, "words"
    assert dropped["invalid"] == dropped["refused"] == dropped["unsent"] == 0, "dropped"
    if service["name"] == "single": # it holds them: 7/8 of the bound
        assert service["delay_ns"]["min"] >= 35e6, "not held"
PYTHON
grep -q '^ts_receive: 9 changes' group.out.log || fail "words have not changed nine times"
echo passed
