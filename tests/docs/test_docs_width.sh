#!/usr/bin/env bash
# tools/check-style tells a line of a page that is too long, and leaves alone what cannot be broken.
set -euo pipefail

if [[ ${1:-} == --help ]]; then
    echo "usage: $0   gives tools/check-style pages that are too wide"
    exit 0
fi
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
readonly page=$folder/page.md

letters() { printf '%*s' "$1" '' | tr ' ' x; }

# passes TEXT, fails TEXT: what check-style says to a page with this text on its second line.
passes() {
    printf 'A page.\n%s\n' "$1" >"$page"
    tools/check-style --format-only "$page" || { echo "refused: $1"; exit 1; }
}
fails() {
    printf 'A page.\n%s\n' "$1" >"$page"
    ! tools/check-style --format-only "$page" 2>"$folder/said" || { echo "not told: $1"; exit 1; }
    grep -qF "$page:2: " "$folder/said" || { cat "$folder/said"; exit 1; }
}

passes "$(letters 100)"
passes "$(letters 99)ü"
passes "| $(letters 196) |"
passes "    $(letters 200)"
passes "# $(letters 200)"
fails "$(letters 101)"
fails "* $(letters 99)"
fails "| $(letters 197) |"
printf '```\n%s\n```\n' "$(letters 200)" >"$page"
tools/check-style --format-only "$page"
tools/check-style --format-only docs/*.md docs/*/*.md ./*.md
echo "lines that are too long are told, no page has one"
