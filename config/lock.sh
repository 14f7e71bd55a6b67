#!/bin/sh
# Resolve pyproject.toml anew for every supported Python: sh config/lock.sh PYTHON
set -eu
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"$1" -m venv "$tools/venv"
"$tools/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'uv>=0.9'
{
    echo "# Exact versions of everything the repository installs, good for Python 3.11 to 3.14."
    echo "# Made by \`make lock\`; installed by every other target."
    "$tools/venv/bin/uv" pip compile --quiet --universal --upgrade --python-version 3.11 \
        --no-header --no-annotate --all-extras --group build --group demo --group servers \
        --group test --group lint pyproject.toml
} >"$tools/constraints.txt"
mv "$tools/constraints.txt" constraints.txt
echo "constraints.txt: $(grep -c == constraints.txt) packages"
