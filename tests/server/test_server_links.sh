#!/usr/bin/env bash
# millraced links neither CUDA nor the driver: an error in there must not be able to end the server.
set -euo pipefail

if [[ ${1:-} == --help || $# != 2 ]]; then
    echo "usage: $0 MILLRACED MILLRACE-GPU   looks at what the two programs are made of"
    exit 0
fi
server=$1 child=$2

# Libraries it asks for, and names of functions that it has or wants.
made_of() {
    readelf -d "$1" | grep NEEDED || true
    nm "$1" | awk '{print $NF}'
}

server_parts=$(made_of "$server")
child_parts=$(made_of "$child")
found=$(grep -E '[cC][uU][dD][aA]|[nN][vV][iI][dD][iI][aA]|_ZN2cu|\bcu[A-Z]' <<<"$server_parts" | head -5 || true)
if [[ -n $found ]]; then
    echo "$server has to do with CUDA:"
    echo "$found"
    exit 1
fi
# The look itself: what it must be able to see.
grep -q '^gpu_engine_open$' <<<"$server_parts" || { echo "nm shows no names of $server"; exit 1; }
grep -q '^gpu_device_emulated$' <<<"$child_parts" || { echo "nm shows no names of $child"; exit 1; }
if grep -q '^gpu_device_' <<<"$server_parts"; then
    echo "$server contains a device"
    exit 1
fi
if grep -q '^analyses_' <<<"$server_parts"; then
    echo "$server contains analyses of other papers"
    exit 1
fi
echo "millraced is free of CUDA, of devices and of other papers' analyses"
