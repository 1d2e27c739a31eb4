#!/bin/sh
# Usage: tests/run_python.sh PYTHON LIBRARY: the tests of the Python module against that library. Skipped (77) where this Python
# has no torch, numpy or pytest.
cd "$(dirname "$0")/.." || exit 1
python=$1
library=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
command -v "$python" >/dev/null 2>&1 || { echo "no $python"; exit 77; }
"$python" -c 'import torch, numpy, pytest' 2>/dev/null || { echo "$python has no torch, numpy and pytest"; exit 77; }
MOTE_LIBRARY="$library" PYTHONPATH=python PYTHONDONTWRITEBYTECODE=1 exec "$python" -m pytest -q -p no:cacheprovider python/tests
