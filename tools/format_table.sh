#!/bin/sh
# Usage: tools/format_table.sh MOTE MODEL TEXT WINDOWS: perplexity and KL of MODEL with its experts in every type that
# quantize can write (attention and embedding q8_0), against MODEL itself, as a Markdown table.
set -eu
mote=$1 model=$2 text=$3 windows=$4
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
types=$("$mote" quantize a b --type '?' 2>&1 | sed -n 's/.*there are://p')
[ -n "$types" ]
field() { sed -n "s/.*\"$1\": \([-0-9.e+]*\).*/\1/p" "$tmp/json"; }
echo "| experts | bits a weight | perplexity | against float | KL mean | same best token |"
echo "|---|---|---|---|---|---|"
for type in $types; do
    "$mote" quantize "$model" "$tmp/x.gguf" --type q8_0 --expert-type "$type" 2>/dev/null
    bits=$("$mote" inspect "$tmp/x.gguf" | awk -v t="$type" '$1 == t && NF == 6 {print $6}')
    "$mote" parity -m "$model" --against "$tmp/x.gguf" -f "$text" -n "$windows" --json >"$tmp/json"
    awk -v t="$type" -v bits="$bits" -v a="$(field nll_a)" -v b="$(field nll_b)" -v kl="$(field kl_mean)" -v top="$(field top1)" \
        'BEGIN { printf "| %s | %s | %.3f | %+.2f %% | %.2e | %.2f %% |\n", t, bits, exp(b), 100 * (exp(b - a) - 1), kl, 100 * top }'
done
