#!/bin/sh
# Usage: tools/embed.sh FILE...: print C that holds the files' texts as a table of { name, text } (cuda/kernel_text.h).
# A line of a file becomes a string literal; question marks are escaped because ISO C reads trigraphs.
printf '%s\n\n%s\n\n' '/* Made by tools/embed.sh from the kernel texts: do not edit. */' '#include "cuda/kernel_text.h"'
printf 'const struct mote_kernel_text mote_kernel_texts[] = {\n'
for file in "$@"; do
    printf '{"%s",\n' "${file##*/}"
    sed -e 's/[\\"?]/\\&/g' -e 's/	/\\t/g' -e 's/.*/"&\\n"/' "$file" || exit 1
    printf '""},\n'
done
printf '{0, 0}};\n'
