#!/bin/sh
# Usage: tests/run_all.sh BUILD [BUILD-SAN]: run everything that `make test` runs and count it.
# A line per program; the closing line is "N passed, N failed, N skipped".
cd "$(dirname "$0")/.." || exit 1
build=$1 san=$2
passed=0 failed=0 skipped=0
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

# one NAME COMMAND...: a check that passes (0), is skipped (77) or fails.
one() {
    name=$1; shift
    start=$(date +%s)
    "$@" >"$log" 2>&1; code=$?
    took=$(($(date +%s) - start))
    case $code in
    0) passed=$((passed + 1)); echo "ok    $name (${took}s)" ;;
    77) skipped=$((skipped + 1)); echo "skip  $name: $(tail -n 1 "$log")" ;;
    *) failed=$((failed + 1)); echo "FAIL  $name (exit $code)"; tail -n 40 "$log" | sed 's/^/      /' ;;
    esac
}
# group NAME COMMAND...: a cmocka program: its tests are counted one by one.
group() {
    name=$1; shift
    start=$(date +%s)
    CMOCKA_MESSAGE_OUTPUT=TAP "$@" >"$log" 2>&1; code=$?
    took=$(($(date +%s) - start))
    # cmocka says "not ok N # SKIP" for a test that was skipped.
    s=$(grep -c '^\(not \)*ok .*# SKIP' "$log")
    p=$(grep '^ok ' "$log" | grep -vc '# SKIP') f=$(grep '^not ok ' "$log" | grep -vc '# SKIP')
    # A crash ends the list early: it is a failure even when no test says so. So is a program without tests.
    if [ $code -ne 0 ] && [ "$f" -eq 0 ] || [ $((p + f + s)) -eq 0 ]; then f=$((f + 1)); fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" -gt 0 ]; then
        echo "FAIL  $name: $p passed, $f failed, $s skipped (exit $code)"
        grep -v '^ok ' "$log" | tail -n 40 | sed 's/^/      /'
    else
        echo "ok    $name: $p passed, $s skipped (${took}s)"
        grep '# SKIP' "$log" | sed 's/^not //' | sed 's/^/      /'
    fi
}

# tests DIR PREFIX [LEFT-OUT], examples DIR PREFIX, fuzzers DIR PREFIX: the programs below DIR, named with the prefix.
tests() {
    for program in "$1"/tests/test_*; do
        [ -f "$program" ] && [ -x "$program" ] || continue
        case " $3 " in *" $(basename "$program") "*) continue ;; esac
        group "$2$(basename "$program")" "$program"
    done
}
examples() {
    for program in "$1"/examples/*; do
        [ -f "$program" ] && [ -x "$program" ] && one "$2example $(basename "$program")" "$program"
    done
}
fuzzers() {
    for program in "$1"/tests/fuzz_*; do
        [ -f "$program" ] && [ -x "$program" ] || continue
        kind=$(basename "$program")
        one "$2$kind" "$program" "tests/fuzz/corpus/${kind#fuzz_}"
    done
}

# The same programs under ASan and UBSan; the long ones look at MOTE_TEST_SHORT and do less. Of four that are one text, compiled for two
# kinds of products and of activations, the two that have each once; of another four, for two kinds of pieces and of activations, too.
sanitized() {
    export MOTE_TEST_SHORT=1 ASAN_OPTIONS=detect_leaks=1
    tests "$san" "san " "test_prefill_mxfp4 test_prefill_wgmma test_mx_wide test_mx_narrow_planes"
    examples "$san" "san "
    fuzzers "$san" "san "
}

# Both at once: a program seldom keeps more than one CPU busy.
if [ -n "$san" ]; then
    said=$(mktemp) || exit 1
    (
        log=$(mktemp) || exit 1
        sanitized
        rm -f "$log"
        echo "$passed $failed $skipped"
    ) >"$said" 2>&1 &
fi

one layers tools/check_layers.sh
one names tools/check_names.sh
one headers tools/check_headers.sh
one symbols tools/check_symbols.sh "$build/libmote.so" "$build/libmote.a"
one clang-format tools/check_format.sh

tests "$build" ""
for script in tests/cli/*.sh; do
    [ -e "$script" ] && one "cli $(basename "$script" .sh)" "$script" "$build/mote"
done
examples "$build" ""
one python tests/run_python.sh "${PYTHON:-python3}" "$build/libmote.so"
fuzzers "$build" ""
if [ -n "$san" ]; then
    wait
    sed '$d' "$said"
    read -r p f s <<EOF
$(tail -n 1 "$said")
EOF
    rm -f "$said"
    case $p$f$s in *[!0-9]* | '') p=0 f=1 s=0; echo "FAIL  the programs under sanitizers did not end" ;; esac
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
