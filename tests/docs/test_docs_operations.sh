#!/usr/bin/env bash
# What an operator can see is explained: every metric, every cause in the log, every member of /status and every
# exit code of the server is in the pages of docs/operations.
set -euo pipefail
export LC_ALL=C

if [[ ${1:-} == --help ]]; then
    echo "usage: $0   compares the server's sources with the pages of docs/operations"
    exit 0
fi
cd "$(dirname "$0")/../.."
readonly pages=(docs/operations/*.md)

# Prints each name that the page does not have in code quotes (labels may follow a metric's name).
unexplained() {
    local name
    while read -r name; do
        grep -qE "\`$name(\{[a-z,]+\})?\`" "${pages[@]}" || echo "$1 $name"
    done
}

# A call may be cut after its level.
causes() {
    grep -ohE '\.cause = "[a-z.]+"' core/*.c | cut -d'"' -f2
    find server cpu gpu -name '*.c' -exec cat {} + | tr -d '\n' | grep -oE 'core_log(_with)?\([^;]*' | grep -oE 'CORE_LOG_[A-Z]+, *"[a-z.]+"' |
        grep -oE '"[a-z.]+"' | tr -d '"' | sort -u
}

metrics() {
    grep -oE '"[a-z_]+", +"(gauge|counter)"' server/admin/prometheus.c | cut -d'"' -f2
    grep -oE 'char name\[\] = "[a-z_]+"' server/admin/prometheus.c | cut -d'"' -f2
    grep -oE 'write_(unit_)?histogram\(text, "[a-z_]+"' server/admin/prometheus.c | cut -d'"' -f2
}

members() {
    grep -oE '"[a-z][a-z0-9_]*", ' server/admin/status_json.c | cut -d'"' -f2 | sort -u
}

explained_codes() { sed -n '/^## Signals and exit codes/,/^## Restarting/p' docs/operations/run.md; }

codes() {
    grep -oE 'EXIT_[A-Z_]+ = [0-9]+' server/main.c | grep -oE '[0-9]+'
}

[[ $(causes | wc -l) -ge 15 && $(metrics | wc -l) -ge 20 && $(members | wc -l) -ge 25 && $(codes | wc -l) -ge 3 ]] || {
    echo "the sources no longer look as this test reads them"
    exit 1
}
missing=$(
    causes | unexplained cause
    metrics | unexplained metric
    members | sed 's/^\(io_threads\|workers\|gpus\|streams\|units\|worst\)$/\1(\\[\\])?/' | unexplained member
    codes | while read -r code; do grep -qE "^\| $code \|" <(explained_codes) || echo "exit code $code"; done
)
if [[ -n $missing ]]; then
    echo "not explained in docs/operations:"
    echo "$missing"
    exit 1
fi
echo "every metric, cause, member and exit code is explained"
