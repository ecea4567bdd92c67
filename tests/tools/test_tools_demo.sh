#!/usr/bin/env bash
# The report of tools/demo, as it is printed: no line is wider than 100 columns, the last one is the verdict with its
# counts, some streams are on the GPU, and the server's own tables come with --details alone.
# Whether a packet was late is not judged: that is the machine's business.
set -euo pipefail
export LC_ALL=C

if [[ ${1:-} == --help || $# != 1 ]]; then
    echo "usage: $0 BUILD   runs tools/demo for two seconds with the programs of that build"
    exit 0
fi
programs=$(realpath "$1")
root=$(realpath "$(dirname "$0")/../..")
readonly programs root
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

readonly verdict='^(PASS|FAIL)  [0-9,]+ packets: [0-9,]+ wrong, [0-9,]+ lost, [0-9,]+ missed, [0-9,]+ late; [0-9,]+ streams refused$'
readonly placed='^  placed      [1-9][0-9,]* streams on CPU workers, [1-9][0-9,]* on GPUs$'

# problems FILE yes|no: what is wrong with a report, with or without the server's tables.
problems() {
    local report=$1 tables
    [[ $2 == yes ]] || awk -v file="$report" 'length > 100 {print "line " NR ": " length " columns: " $0}' "$report"
    tail -n 1 "$report" | grep -qE "$verdict" || echo "the last line is not the verdict: $(tail -n 1 "$report")"
    grep -qE "$placed" "$report" || echo "no streams on both: $(grep -E '^  placed ' "$report" || echo 'nothing of it')"
    if grep -qE '^worker +streams' "$report"; then tables=yes; else tables=no; fi
    [[ $tables == "$2" ]] || echo "the server's tables are there: $tables, to be: $2"
}

# judged WANTED FILE yes|no: `good`, or words that a problem has.
judged() {
    local found
    found=$(problems "$2" "$3")
    if [[ $1 == good ]]; then [[ -z $found ]]; else [[ $found == *"$1"* ]]; fi || {
        echo "$2: to be '$1', found '$found'"
        cat "$2"
        exit 1
    }
}

demo() { "$root/tools/demo" --programs "$programs" --duration 2s "$@" 2>"$TMPDIR/said" || [[ $? == 1 ]]; }
demo >"$TMPDIR/report"
judged good "$TMPDIR/report" no
demo --details >"$TMPDIR/details"
judged good "$TMPDIR/details" yes

# The test itself tells a report that is broken.
{ cat "$TMPDIR/report"; echo "worker   streams"; } >"$TMPDIR/broken"
judged "the last line" "$TMPDIR/broken" yes
judged "the server's tables" "$TMPDIR/broken" no
sed 's/^  placed .*/&                                                  !/' "$TMPDIR/report" >"$TMPDIR/broken"
judged "columns" "$TMPDIR/broken" no
sed -E 's/^(  placed .*), [0-9,]+ on GPUs/\1, 0 on GPUs/' "$TMPDIR/report" >"$TMPDIR/broken"
judged "no streams on both" "$TMPDIR/broken" no

status=0
"$root/tools/demo" --programs >"$TMPDIR/said" 2>&1 || status=$?
[[ $status == 2 ]] || { echo "--programs without a folder: status $status, not 2"; exit 1; }
[[ -z $(ls -d "$TMPDIR"/millrace-demo-* 2>/dev/null) ]] || { echo "a folder is left behind"; exit 1; }
echo "the report fits, and ends with its verdict"
