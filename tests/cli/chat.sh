#!/bin/sh
# mote chat from a script: turns, /regen, /clear, /bye, several lines.
. "$(dirname "$0")/lib.inc"
printf 'Tell me a story.\n/bye\nnever read\n' | "$mote" chat -m "$model" -n 12 --temp 0 -q >one 2>err
[ -s one ]
# A second turn goes on; /clear then the same question gives the first answer again.
printf 'Tell me a story.\n/clear\nTell me a story.\n' | "$mote" chat -m "$model" -n 12 --temp 0 -q >two 2>err
cat one one >twice
same two twice
printf 'Tell me a story.\n/regen\n' | "$mote" chat -m "$model" -n 12 --temp 0 -q >two 2>err
same two twice
printf '"""Tell me\na story."""\n' | "$mote" chat -m "$model" -n 12 --temp 0 -q >lines 2>err
printf 'Tell me\\\na story.\n' | "$mote" chat -m "$model" -n 12 --temp 0 -q >back 2>err
same lines back
printf '/nope\n' | "$mote" chat -m "$model" -q >out 2>err
expect err "/nope" "/regen"
code=0
printf 'Tell me a story.\n' | "$mote" chat -m "$model" -c 8 -q >out 2>err || code=$?
[ $code = 1 ]
expect err "8" "/clear"
