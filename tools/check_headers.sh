#!/bin/sh
# Every header compiles alone: public ones as C99 and C++17, internal ones as C11. Texts without an include guard are
# parts of the files that include them.
cd "$(dirname "$0")/.." || exit 1
CC=${CC:-cc} CXX=${CXX:-c++}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
bad=0
command -v "$CXX" >/dev/null 2>&1 || { echo "no C++ compiler: cannot check the public headers"; exit 1; }
for h in $(cd include && find . -name '*.h' | sed 's/^\.\///'); do
    echo "#include \"$h\"" >"$tmp/one.c"
    cp "$tmp/one.c" "$tmp/one.cc"
    $CC -std=c99 -Wall -Wextra -Wpedantic -Werror -Iinclude -fsyntax-only "$tmp/one.c" || bad=1
    $CXX -std=c++17 -Wall -Wextra -Wpedantic -Werror -Iinclude -fsyntax-only "$tmp/one.cc" || bad=1
done
for h in $(cd src && find . -name '*.h' | sed 's/^\.\///'); do
    echo "#include \"$h\"" >"$tmp/one.c"
    grep -q '^#ifndef MOTE_.*_H$' "src/$h" || continue
    case $h in *_avx512*) isa="-mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni" ;;
    *_avx2* | *_x86*) isa="-mavx2 -mfma -mf16c -mbmi2" ;; *) isa= ;; esac
    # A header of inline functions may leave some unused: that is what it is for.
    $CC -std=c11 $isa -Wall -Wextra -Wpedantic -Werror -Wno-unused-function -Wno-psabi -Isrc -Iinclude -fsyntax-only "$tmp/one.c" || bad=1
done
exit $bad
