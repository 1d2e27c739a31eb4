#!/bin/sh
# mote info and mote kernels where there is no GPU, and perhaps no compiler: reasons instead of failures.
. "$(dirname "$0")/lib.inc"
export MOTE_CACHE="$work/cache"
expect_code 0 "$mote" info
expect out "devices" "cpu" "threads" "GB/s" "NVIDIA" "driver" "NVRTC" "$work/cache/kernels: 0 kernels"
expect_code 0 "$mote" info --quick --json
expect out '"id": "cpu"' '"bandwidth": 0' '"cache_entries": 0'
# No compiler: the reason in info, one message and exit 1 from kernels, nothing written.
MOTE_NVRTC="$work/none.so" expect_code 0 "$mote" info --quick
expect out "MOTE_NVRTC=$work/none.so does not open"
MOTE_NVRTC="$work/none.so" expect_code 1 "$mote" kernels --arch sm_90a
expect err "for sm_90a" "not in the kernel cache" "none.so"
[ ! -s out ]
expect_code 2 "$mote" info extra
expect err "extra"
expect_code 2 "$mote" kernels --arch avx2
expect err "avx2" "sm_90a"
# No driver: said by name. (Where there is one this part does not apply.)
if "$mote" info --quick --json | grep -q '"driver": 0'; then
    expect_code 1 "$mote" kernels
    expect err "CUDA"
fi
