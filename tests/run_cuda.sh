#!/bin/sh
# Usage: tests/run_cuda.sh BUILD: the tests that need a CUDA device; without one they fail. Then the same under
# compute-sanitizer, where it is installed, on the subset of MOTE_CUDA_QUICK.
cd "$(dirname "$0")/.." || exit 1
build=$1 failed=
export MOTE_CUDA_REQUIRED=1
for name in kernels linear moe mx api choice route attend model formats; do
    start=$(date +%s)
    "$build/tests/test_cuda_$name" || failed="$failed test_cuda_$name"
    echo "test_cuda_$name: $(($(date +%s) - start)) s"
done
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -n 1)
if [ -n "$sanitizer" ]; then
    for name in linear moe mx api choice route attend; do
        MOTE_CUDA_QUICK=1 "$sanitizer" --error-exitcode 9 --print-limit 10 "$build/tests/test_cuda_$name" ||
            failed="$failed sanitizer:test_cuda_$name"
    done
else
    echo "compute-sanitizer is not installed: left out"
fi
[ -z "$failed" ] || { echo "FAILED:$failed"; exit 1; }
echo "test-cuda: passed"
