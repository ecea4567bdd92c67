#!/usr/bin/env bash
# Installs the build into a folder of its own, then uses it as a stranger would: the programs are there, the
# configuration is sound, and Debian's Python finds the Python client. The library: test_install_library.sh.
set -euo pipefail

if [[ ${1:-} == --help || $# != 2 ]]; then
    echo "usage: $0 BUILD-FOLDER SOURCE-FOLDER"
    exit $(($# != 1))
fi
build=$1 source=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cmake --install "$build" --prefix "$scratch" >"$scratch/log"
for file in bin/millrace bin/millrace-gen sbin/millraced; do
    [[ -x $scratch/$file ]] || { echo "$file was not installed"; exit 1; }
done
if grep -rn "$source" "$scratch/include" "$scratch"/lib*/pkgconfig "$scratch"/share; then
    echo "installed files name the source folder"
    exit 1
fi
# /run/millrace is made by the unit.
sed "s,/run/millrace,$scratch," "$scratch/share/millrace/millraced.yaml" >"$scratch/millraced.yaml"
"$scratch/sbin/millraced" --check-config "$scratch/millraced.yaml" >>"$scratch/log"
unit=$scratch/lib/systemd/system/millraced.service
if [[ -e $unit ]] && ! grep -qxF "ExecStart=$scratch/sbin/millraced /etc/millrace/millraced.yaml" "$unit"; then
    echo "the systemd unit does not start what was installed:"
    grep ExecStart "$unit"
    exit 1
fi

python=/usr/bin/python3
if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    packages=$(dirname "$(dirname "$(find "$scratch" -path '*/millrace/py.typed')")")
    PYTHONPATH=$packages "$python" -B - "/usr/${packages#"$scratch/"}" <<'PROGRAM'
import sys
import millrace

if sys.argv[1] not in sys.path:
    sys.exit(f"with prefix /usr the Python client is in {sys.argv[1]}, where Python does not look: {sys.path}")
try:
    millrace.connect("unix:/nowhere/socket")
except FileNotFoundError:
    sys.exit(0)
sys.exit("the Python client connected to nothing")
PROGRAM
fi
echo "installed headers, libraries and programs work"
