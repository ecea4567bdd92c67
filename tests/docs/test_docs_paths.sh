#!/usr/bin/env bash
# Every file and folder that a page names in code quotes is there, and so is every page and heading that one links
# to. The contents of a page of docs/operations have all of its headings.
set -euo pipefail
export LC_ALL=C

if [[ ${1:-} == --help ]]; then
    echo "usage: $0   checks the paths in README.md, CONTRIBUTING.md, SECURITY.md and the pages of docs"
    exit 0
fi
cd "$(dirname "$0")/../.."

# Prints the paths of the tree that a page names: `folder/file.h`, `folder/room`, [text](page.md).
named() {
    local page=$1
    grep -oE '`(core|config|perfmodel|partition|cpu|gpu|server|client|inputgen|bench|tests|docs|tools)(/[a-z_]+)+(\.[a-z]+)?`' \
        "$page" | tr -d '`' || true
    grep -oE '\]\([a-zA-Z_./-]+\)' "$page" | sed -E 's/^..(.*).$/\1/' | while read -r path; do
        realpath -sm --relative-to=. "$(dirname "$page")/$path"
    done || true
}

# Prints the links of a page to headings: "other.md#heading", "#heading".
linked() { grep -oE '\]\([a-zA-Z_./-]*#[a-z0-9_-]+\)' "$1" | sed -E 's/^..(.*).$/\1/' || true; }

# Prints the headings of a page below its title as links name them.
headings() {
    awk '/^```/ {code = !code} !code && /^##+ / {sub(/^#+ /, ""); print}' "$1" |
        tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}

# What is built, and not in the tree.
built() { [[ $1 == tests/test_* || $1 == tests/fuzz_* ]]; }

missing=0 count=0
for page in README.md CONTRIBUTING.md SECURITY.md docs/*.md docs/*/*.md; do
    while read -r path; do
        count=$((count + 1))
        [[ -e $path ]] || built "$path" || { echo "$page names $path, which is not there"; missing=$((missing + 1)); }
    done < <(named "$page")
    while IFS='#' read -r path heading; do
        path=${path:+$(dirname "$page")/$path}
        headings "${path:-$page}" 2>/dev/null | grep -xF "$heading" >/dev/null ||
            { echo "$page links to $path#$heading, which is not there"; missing=$((missing + 1)); }
    done < <(linked "$page")
done
for page in docs/operations/*.md; do
    unlisted=$(comm -23 <(headings "$page" | sort) <(linked "$page" | sed -n 's/^#//p' | sort -u))
    [[ -z $unlisted ]] || { echo "$page has headings that its contents lack: $unlisted"; missing=$((missing + 1)); }
done
[[ $count -ge 100 ]] || { echo "only $count paths found: the pages no longer look as this test reads them"; exit 1; }
[[ $missing == 0 ]] && echo "$count paths, all there"
exit $((missing > 0))
