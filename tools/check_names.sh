#!/bin/sh
# One word, one file: no two source files share a name (status.h of the public folder aside, none may).
cd "$(dirname "$0")/.." || exit 1
twice=$(find src include tests tools -name '*.[ch]' -o -name '*.cu' -o -name '*.sh' -o -name '*.py' | sed 's/.*\///' | sort | uniq -d)
[ -z "$twice" ] || { echo "file names used twice: $twice"; exit 1; }
long=$(find src include -name '*.[ch]' | xargs wc -l | awk '$2 != "total" && $1 > 900 {print $2 " (" $1 " lines)"}' | grep -v -e iq_grid -e _table)
[ -z "$long" ] || { echo "files too long, their idea has split: $long"; exit 1; }
