#!/usr/bin/env bash
# Installs the build into a folder of its own, then uses libmillrace as a stranger would: the one header compiles alone,
# in C11 and C++11, has names of ours alone and declares exactly what the shared library exports; programs build
# with what pkg-config says, against the shared and the static library, and with what find_package finds, and run.
set -euo pipefail
export LC_ALL=C

if [[ ${1:-} == --help || $# != 2 ]]; then
    echo "usage: $0 BUILD-FOLDER SOURCE-FOLDER"
    exit $(($# != 1))
fi
build=$1 source=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() {
    echo "$1"
    exit 1
}

cmake --install "$build" --prefix "$scratch" >"$scratch/log"
PKG_CONFIG_PATH=$(dirname "$(find "$scratch" -name millrace.pc)")
export PKG_CONFIG_PATH
pkg() {
    pkg-config --define-prefix "$@" millrace
}
read -ra compile < <(pkg --cflags)
read -ra shared < <(pkg --libs)
read -ra static < <(pkg --static --libs)
libraries=$(pkg --variable=libdir)

# ---- the header ----

headers=$(cd "$scratch/include" && find . -type f)
[[ $headers == ./millrace/millrace.h ]] || fail "installed headers, of which there should be one: $headers"
header=$scratch/include/millrace/millrace.h
for language in "c -std=c11" "c -std=c17" "c++ -std=c++11" "c++ -std=c++20"; do
    # shellcheck disable=SC2086 # two words
    cc -x $language -Wall -Wextra -Wpedantic -Werror -fsyntax-only "$header" || fail "the header is not $language"
done
text=$(cc -E -x c "$header" | awk '/^# [0-9]/ {ours = $3 ~ /millrace\.h"$/; next} ours') # what it includes left out
foreign=$(grep -E '^#include' "$header" | grep -vE '<std(bool|def|int)\.h>$' || true)
foreign+=$(grep -oE '\b(struct|enum) +[a-z_0-9]+|\b[A-Z_0-9]+ = |^} *[a-z_0-9]+|\b[a-z_0-9]+ *\(' <<<"$text" |
    grep -vE '^__attribute__ *\($|\b(millrace|millrace_[a-z_]+)( *\()?$|^MILLRACE_[A-Z_0-9]+ = $|^void \($' || true)
foreign+=$(comm -13 <(printf '#include <%s>\n' stdbool.h stddef.h stdint.h | cc -E -dM -x c - | sort) \
    <(cc -E -dM -x c "$header" | sort) | grep -v '^#define MILLRACE_' || true)
[[ -z $foreign ]] || fail "names in the header that are not ours: $foreign"

declared=$(grep -oE '\b[a-z_0-9]+ *\(' <<<"$text" | tr -d ' (' | grep -vE '^(__attribute__|void)$' | sort -u)
exported=$(nm -D --defined-only "$libraries/libmillrace.so" | awk '$2 != "A" {sub(/@.*/, "", $3); print $3}' | sort -u)
missing=$(comm -23 <(echo "$declared") <(echo "$exported"))
hidden=$(comm -13 <(echo "$declared") <(echo "$exported"))
[[ -n $exported && -z $missing ]] || fail "declared, but not exported: $missing"
[[ -z $hidden ]] || fail "exported, but not declared: $hidden"

# ---- programs ----

awk '/^```c$/ {code = 1; next} /^```/ {code = 0} code' "$source/docs/library.md" >"$scratch/page.c"
grep -q millrace_process "$scratch/page.c" || fail "docs/library.md has no program in it"
cc -std=c17 -Wall -Wextra -Werror "${compile[@]}" -c "$scratch/page.c" -o /dev/null || fail "docs/library.md is wrong"

cp "$source/client/example.c" "$source/tests/client/test_client_cpp.cc" "$scratch"
warnings=(-std=c17 -D_DEFAULT_SOURCE -Wall -Wextra -Werror)
cc "${warnings[@]}" "${compile[@]}" "$scratch/example.c" -o "$scratch/shared" "${shared[@]}"
cc "${warnings[@]}" "${compile[@]}" "$scratch/example.c" -o "$scratch/static" \
    "${static[@]/#-lmillrace/-l:libmillrace.a}"
! ldd "$scratch/static" | grep libmillrace || fail "the static example needs the shared library"
readelf -d "$scratch/shared" | grep -q 'NEEDED.*\[libmillrace\.so\.1\]' || fail "the example needs another soname"

cat >"$scratch/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.25)
project(outside LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 17)
find_package(millrace $(pkg --modversion) REQUIRED)
find_package(OpenSSL REQUIRED)
add_executable(found test_client_cpp.cc)
target_link_libraries(found PRIVATE millrace::millrace OpenSSL::Crypto)
CMAKE
{ cmake -S "$scratch" -B "$scratch/outside" -DCMAKE_PREFIX_PATH="$scratch" &&
    cmake --build "$scratch/outside"; } >"$scratch/built" 2>&1 || { cat "$scratch/built"; fail "find_package does not do"; }

export LD_LIBRARY_PATH=$libraries
"$source/tests/client/test_client_cpp.sh" "$scratch/sbin/millraced" \
    "$scratch/shared" "$scratch/static" "$scratch/outside/found"
