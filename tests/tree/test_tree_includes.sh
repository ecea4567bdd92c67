#!/usr/bin/env bash
# The order of the folders, checked: who may include whom, which folder sees which library, what perfmodel
# and partition must not do, and what may lie at the top of the tree. Then the checker itself is checked: each
# broken sample must be reported.
set -euo pipefail
export LC_ALL=C

if [[ ${1:-} == --help ]]; then
    echo "usage: $0 [TREE]   checks the includes and the top-level entries of TREE (default: this tree)"
    exit 0
fi
tree=$(realpath "${1:-$(dirname "$0")/../..}")

readonly top_level=" CMakeLists.txt CMakePresets.json LICENSE README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md .ci .gitignore .clang-format .clang-tidy
 server gpu cpu partition perfmodel bench inputgen tests config core client docs tools "
readonly folders="core config perfmodel partition cpu gpu server client inputgen bench tests"

# What a folder may include, as patterns of "folder/header.h"; its own headers always.
declare -rA may_include=(
    [core]=""
    [config]="core/*"
    [perfmodel]="core/* config/profile.h"
    [partition]="core/* perfmodel/* config/profile.h"
    [cpu]="core/*"
    [gpu]="core/*"
    [server]="core/* config/* perfmodel/* partition/* cpu/* gpu/*"
    [client]="core/* config/ts.h"
    [inputgen]="core/* config/* client/*"
    [bench]="core/* config/* perfmodel/* partition/* cpu/* gpu/* client/* inputgen/* server/*"
    [tests]="*"
)

# The rooms of a folder, and which headers of its other rooms each may include; what lies in the folder itself is
# for all of them. In server a packet's way runs net, stream, planner, gpu, and never back; admin and overload read.
declare -rA room_includes=(
    [partition/search]=""
    [partition/check]=""
    [partition/admission]=""
    [partition/planner]="partition/admission/*"
    [server/net]="server/stream/* server/planner/*"
    [server/stream]="server/planner/* server/gpu/*"
    [server/planner]="server/gpu/*"
    [server/gpu]=""
    [server/overload]="server/net/io_thread.h server/planner/* server/gpu/*"
    [server/admin]="server/net/* server/stream/* server/overload/*"
    [server/calibrate]="server/net/io_thread.h"
)

# matches NAME PATTERNS: whether one of the patterns covers the name.
matches() {
    local pattern
    set -f # the patterns are not file names
    for pattern in $2; do
        # shellcheck disable=SC2053
        if [[ $1 == $pattern ]]; then set +f; return 0; fi
    done
    set +f
    return 1
}

# The source files of one folder of the tree in the current directory.
sources() {
    [[ ! -d $1 ]] || find "$1" -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) | sort
}

# "file:line: header" of every quoted include, and of every one in angle brackets.
includes() {
    local quote=$1 close=$2
    shift 2
    # shellcheck disable=SC2016
    [[ $# == 0 ]] || grep -HnE "^[[:space:]]*#[[:space:]]*include[[:space:]]*$quote" "$@" |
        sed -E "s/^([^:]+:[0-9]+):[^$quote]*$quote([^$close]*)$close.*/\1: \2/"
}

check_own_includes() {
    local folder=$1 where header files
    mapfile -t files < <(sources "$folder")
    while read -r where header; do
        if [[ $header == *..* || $header != */* ]]; then
            echo "$where \"$header\" must be named from the top of the tree"
        elif [[ ! -e $header ]]; then
            echo "$where \"$header\" does not exist"
        elif [[ $header != "$folder"/* ]] && ! matches "$header" "${may_include[$folder]}"; then
            echo "$where $folder must not include \"$header\""
        elif [[ $header == core/protocol*.h && $folder =~ ^(config|perfmodel|partition|cpu|gpu)$ ]]; then
            echo "$where $folder must not include \"$header\": it knows nothing of clients"
        elif [[ $folder == bench && $header == server/* ]] && grep -q '<sys/\(socket\|epoll\)' "$header"; then
            echo "$where bench must not include the server's sockets (\"$header\")"
        fi
    done < <(includes '"' '"' "${files[@]}" || true)
}

check_rooms() {
    local room where header files
    for room in partition/*/ server/*/; do
        [[ ! -d $room || -v room_includes[${room%/}] ]] || echo "${room%/}: a room whose includes nobody has decided"
    done
    for room in "${!room_includes[@]}"; do
        mapfile -t files < <(sources "$room")
        while read -r where header; do
            if [[ $header == "${room%/*}"/*/* && $header != "$room"/* ]] &&
                ! matches "$header" "${room_includes[$room]}"; then
                echo "$where $room must not include \"$header\""
            fi
        done < <(includes '"' '"' "${files[@]}" || true)
    done
}

check_libraries() {
    local folder=$1 where header files
    mapfile -t files < <(sources "$folder")
    while read -r where header; do
        case $folder:$header in
        tests:* | gpu:cuda*) ;;
        *:cuda*) echo "$where only gpu sees CUDA (<$header>)" ;;
        perfmodel:pthread.h | perfmodel:time.h | perfmodel:unistd.h | perfmodel:fcntl.h | perfmodel:sys/* | \
        partition:pthread.h | partition:time.h | partition:unistd.h | partition:fcntl.h | partition:sys/*)
            echo "$where $folder is pure (<$header>)" ;;
        esac
    done < <(includes '<' '>' "${files[@]}" || true)
}

# Pure folders take the time as an argument, and whatever they need as structs.
check_purity() {
    local files
    mapfile -t files < <(sources "$1")
    [[ ${#files[@]} == 0 ]] || { grep -HnoE \
        '\b(core_time_[a-z_]*(ns|until)|core_thread_start|core_log(_with)?|pthread_create|clock_gettime|fopen|open|printf) *\(' \
        "${files[@]}" || true; } | sed "s/\$/: $1 starts no thread, reads no clock, opens no file/"
}

# Ignored files do not count where git can tell them.
top_entries() {
    if [[ -e .git ]] && git ls-files -co --exclude-standard 2>/dev/null | grep . >/dev/null; then
        git ls-files -co --exclude-standard | cut -d/ -f1 | sort -u
    else
        find . -mindepth 1 -maxdepth 1 ! -name .git ! -name build ! -name .cache -printf '%f\n' | sort
    fi
}

check_top_level() {
    local entry
    while read -r entry; do
        [[ " ${top_level//$'\n'/ } " == *" $entry "* ]] || echo "$entry: not allowed at the top of the tree"
    done < <(top_entries)
}

# Prints one line per violation in the given tree.
check_tree() (
    cd "$1"
    check_top_level
    for folder in $folders; do
        check_own_includes "$folder"
        check_libraries "$folder"
    done
    check_rooms
    check_purity perfmodel
    check_purity partition
)

# expect COMPLAINT FILE TEXT: a tree that has only this file, with this text, must draw this complaint (none
# where it is empty).
failures=0
expect() {
    local complaint=$1 file=$2 text=$3 sample found
    sample=$(mktemp -d)
    mkdir -p "$sample"/{core,config,perfmodel,partition,cpu,gpu,server,client,inputgen,bench,tests} \
        "$(dirname "$sample/$file")"
    mkdir -p "$sample"/server/{net,stream,planner,gpu,admin} "$sample"/partition/{search,check}
    touch "$sample"/server/{net/input.h,stream/path.h,planner/planner.h,gpu/batcher.h,admin/http.h} \
        "$sample"/partition/{plan.h,search/grid.h}
    touch "$sample"/{core/time.h,config/profile.h,config/server.h,core/protocol.h,client/millrace.h,tests/x.h}
    echo '#include <sys/epoll.h>' >"$sample/server/loop.h"
    printf '%s\n' "$text" >"$sample/$file"
    found=$(check_tree "$sample")
    rm -r "$sample"
    if [[ -z $complaint && -n $found ]] || [[ $found != *"$complaint"* ]]; then
        echo "checker: $file with '$text' should draw '${complaint:-nothing}', drew '$found'"
        failures=$((failures + 1))
    fi
}

expect "" config/a.c '#include "core/time.h"'
expect "" perfmodel/a.c '#include "config/profile.h"'
expect "" client/a.c '#include "core/protocol.h"'
expect "" bench/a.c '#include "core/protocol.h"'
expect "" tests/a.c '#include "server/loop.h"'
expect "config/a.c:1: config must not include \"core/protocol.h\"" config/a.c '#include "core/protocol.h"'
expect "" server/net/a.c '#include "server/stream/path.h"'
expect "" server/admin/a.c '#include "server/net/input.h"'
expect "" partition/search/a.c '#include "partition/plan.h"'
expect "server/stream must not include \"server/net/input.h\"" server/stream/a.c '#include "server/net/input.h"'
expect "server/gpu must not include \"server/stream/path.h\"" server/gpu/a.c '#include "server/stream/path.h"'
expect "server/planner must not include \"server/admin/http.h\"" server/planner/a.h '#include "server/admin/http.h"'
expect "partition/check must not include \"partition/search/grid.h\"" partition/check/a.c '#include "partition/search/grid.h"'
expect "partition/admission must not include \"partition/planner/x.h\"" partition/admission/a.c '#include "partition/planner/x.h"'
expect "partition/attic: a room whose includes" partition/attic/a.c ''
expect "must not include \"config/server.h\"" perfmodel/a.h '  #  include "config/server.h"'
expect "must not include \"client/millrace.h\"" server/a.c '#include "client/millrace.h"'
expect "must not include \"server/loop.h\"" client/a.h '#include "server/loop.h"'
expect "must not include \"config/profile.h\"" core/a.c '#include "config/profile.h"'
expect "must not include \"tests/x.h\"" bench/a.c '#include "tests/x.h"'
expect "the server's sockets" bench/a.c '#include "server/loop.h"'
expect "does not exist" cpu/a.c '#include "core/none.h"'
expect "from the top of the tree" core/a.c '#include "time.h"'
expect "from the top of the tree" core/a.c '#include "../core/time.h"'
expect "only gpu sees CUDA" server/a.c '#include <cuda_runtime.h>'
expect "perfmodel is pure" perfmodel/a.c '#include <pthread.h>'
expect "reads no clock" partition/a.c 'now = core_time_now_ns();'
expect "opens no file" perfmodel/a.c 'file = fopen("x", "r");'
expect "stuff: not allowed at the top" stuff/a.c ''

violations=$(check_tree "$tree")
if [[ -n $violations ]]; then
    echo "$violations"
    failures=$((failures + 1))
fi
[[ $failures == 0 ]] && echo "the tree's includes and top-level entries are as they should be"
exit $((failures > 0))
