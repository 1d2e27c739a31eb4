#!/bin/sh
# Usage: check_symbols.sh LIBMOTE.SO LIBMOTE.A
# Only mote_* leaves the shared library, and the static one defines no other global name.
bad=0
out=$(nm -D --defined-only "$1" | awk '$2 ~ /[A-Z]/ && $3 !~ /^(mote_|_init$|_fini$|__bss_start$|_edata$|_end$)/ {print $3}')
[ -z "$out" ] || { echo "$1 exports: $out"; bad=1; }
out=$(nm --defined-only "$2" 2>/dev/null | awk '$2 ~ /^[TDBRCV]$/ && $3 !~ /^mote_/ {print $3}')
[ -z "$out" ] || { echo "$2 defines: $out"; bad=1; }
exit $bad
