#!/usr/bin/env bash
# The first run on a GPU, on a machine that need not have a network: checks in an order in which each rests on those
# before, stopping at the first hard failure, then rates. The report (--out) is for machines too. Not run on a GPU yet.
#
#   benches/gpu/run.sh [--wheels DIR] [options of measure.py]
#   benches/gpu/run.sh --wheels wheels --out gpu.json           # rlz-*.whl, and what the machine lacks of its dependencies
#   benches/gpu/run.sh --device cpu --quick --out quick.json    # the same code in a minute, to try it
#
# Python is $PYTHON, else the checkout's .venv, else python3. With --wheels every wheel of the folder is unpacked for this
# one call and found first (no pip, nothing is installed); all else, torch for instance, is that Python's. Without, and
# where rlz cannot be imported, the checkout is built (needs cargo, and a network or uv's cache).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
wheels=
if [[ ${1:-} == --wheels ]]; then
    wheels=$(cd "${2:?--wheels needs a folder}" && pwd)
    shift 2
fi
python=${PYTHON:-}
[[ -z $python && -x $root/.venv/bin/python ]] && python=$root/.venv/bin/python
python=${python:-python3}

if [[ -n $wheels ]]; then
    unpacked=$(mktemp -d)
    trap 'rm -rf "$unpacked"' EXIT
    for wheel in "$wheels"/*.whl; do
        "$python" -m zipfile -e "$wheel" "$unpacked"
    done
    export PYTHONPATH=$unpacked${PYTHONPATH:+:$PYTHONPATH}
elif ! (cd / && "$python" -c 'import rlz, torch') 2>/dev/null; then
    make -C "$root" setup
    python=$root/.venv/bin/python
fi
"$python" "$here/measure.py" "$@"
