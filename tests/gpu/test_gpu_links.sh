#!/usr/bin/env bash
# The server and the library that it links know nothing of CUDA: only the program millrace-gpu may.
set -euo pipefail
export LC_ALL=C

if [[ $# != 1 || $1 == --help ]]; then
    echo "usage: $0 BUILD_DIRECTORY   looks at the libraries and programs of a build"
    exit 0
fi
cd "$1"
readonly cuda='^(cu[A-Z]|cuda|__cuda)' # cuInit, cudaMalloc, __cudaRegisterFunction
failures=0

# complain TEXT...
complain() {
    echo "$*"
    failures=$((failures + 1))
}

# Names that an archive or a program uses or defines.
names() {
    nm "$1" 2>/dev/null | sed -E 's/^[0-9a-f ]* ?[A-Za-z] //' | sort -u
}

# The check finds what it looks for: where a CUDA archive is, it has such names.
if [[ -e gpu/libmillrace_gpu_cuda.a ]] && ! names gpu/libmillrace_gpu_cuda.a | grep -E "$cuda" >/dev/null; then
    complain "gpu/libmillrace_gpu_cuda.a should have names of CUDA; this test looks for the wrong ones"
fi
for file in gpu/libmillrace_gpu.a server/libmillrace_server.a server/millraced; do
    [[ -e $file ]] || { complain "$file is not built"; continue; }
    [[ $(names "$file" | wc -l) -gt 20 ]] || complain "$file: its names can not be read"
    found=$(names "$file" | grep -E "$cuda" | head -n 3 || true)
    [[ -z $found ]] || complain "$file has names of CUDA:" $found
done
for program in server/millraced gpu/millrace-gpu; do
    found=$(ldd "$program" | grep -iE 'libcuda|cudart|nvidia' || true)
    [[ -z $found ]] || complain "$program needs:" "$found" # millrace-gpu has the runtime inside, loads the driver late
done
[[ $failures == 0 ]] && echo "only millrace-gpu knows CUDA, and it starts without a driver"
exit $((failures > 0))
