#!/usr/bin/env bash
# The rooms of server call each other in one direction only, whatever they include: told by the symbols that
# their objects have and need. What lies in server itself serves all rooms or puts them together.
set -euo pipefail
export LC_ALL=C

if [[ $# != 1 || $1 == --help ]]; then
    echo "usage: $0 BUILD   looks at the objects of the build in the folder BUILD"
    exit $(($# != 1 ? 2 : 0))
fi
readonly objects=$1/server/CMakeFiles/millrace_server.dir
readonly order="gpu planner stream net overload admin calibrate" # each calls those before it

# "symbol rank room" of every function and object that the rooms have, in this order of rooms.
defined() {
    local rank=0 room
    for room in $1; do
        rank=$((rank + 1))
        nm --defined-only --extern-only "$objects/$room"/*.o | awk -v at="$rank $room" 'NF == 3 { print $3, at }'
    done | sort
}

# Each call from a room to a later one.
upwards() {
    local rank=0 room symbols
    symbols=$(defined "$1")
    for room in $1; do
        rank=$((rank + 1))
        nm --undefined-only "$objects/$room"/*.o | awk '$1 == "U" { print $2 }' | sort -u |
            join - <(echo "$symbols") | awk -v rank="$rank" -v room="$room" '$2 > rank { print room " calls " $1 " of " $3 }'
    done
}

reversed=$(tr ' ' '\n' <<<"$order" | tac | tr '\n' ' ')
[[ $(upwards "$reversed") == *"stream calls server_planner_release of planner"* ]] ||
    { echo "calls against the order are not noticed"; exit 1; }
found=$(upwards "$order")
[[ -z $found ]] || { echo "$found"; exit 1; }
echo "the rooms of server call each other in one direction"
