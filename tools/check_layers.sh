#!/bin/sh
# A layer may include only headers of the layers listed before it (DESIGN.md section 3), its own, and the public ones.
cd "$(dirname "$0")/.." || exit 1
bad=0
check() { # layer, allowed...
    layer=$1; shift
    for file in src/"$layer"/*.[ch]; do
        [ -e "$file" ] || continue
        for used in $(sed -n 's/^ *# *include *"\([a-z_]*\)\/.*/\1/p' "$file" | sort -u); do
            case " mote $layer $* " in
            *" $used "*) ;;
            *) echo "$file includes $used/, but $layer may see only: $*"; bad=1 ;;
            esac
        done
    done
}
check base
check quant base
check file base quant
check text base
check cpu base quant
check cuda base quant
check backend base quant cpu cuda
check model base quant file cpu backend
check engine base quant file text cpu backend model
check api base quant file text cpu cuda backend model engine
check cli base
exit $bad
