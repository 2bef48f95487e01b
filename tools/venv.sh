#!/bin/sh
# Makes .venv, or brings it up to requirements.lock: tools/venv.sh PYTHON
#
# uv, itself held to the lock's hashes, installs in a third of pip's time. Where it cannot (a mirror that only
# pip is configured for, a platform without its wheel) pip installs the same lock.
set -eu

python=${1:-}
if [ -z "$python" ]; then
    echo "Sfumato needs Python 3.11 or newer with its venv module (Debian, Ubuntu: apt install python3-venv)." >&2
    echo "If it is not on the PATH, say where it is: make PYTHON=/path/to/python3.12" >&2
    exit 1
fi

.venv/bin/python -m pip --version >/dev/null 2>&1 || {
    rm -rf .venv
    echo "Setting up .venv with $("$python" --version): a minute or so, once"
    "$python" -m venv .venv
}

pip() {
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"
}

with_uv() {
    sed -n '/^uv==/,/# via/p' requirements.lock >.venv/uv.lock
    pip --require-hashes --only-binary :all: -r .venv/uv.lock || return 1
    rm -f .venv/.failed
    { .venv/bin/uv pip install --python .venv/bin/python --no-progress --compile-bytecode \
        --require-hashes --only-binary :all: -r requirements.lock 2>&1 || touch .venv/.failed; } |
        sed -e '/^ [-+~] /d' -e '/^ Downloaded /d' # lines for each of a hundred packages
    test ! -e .venv/.failed
}

with_uv || {
    echo "uv did not manage: the same with pip, which takes longer" >&2
    pip --require-hashes --only-binary :all: -r requirements.lock
}
# The lock holds setuptools: the projects' own build asks no registry for anything.
pip --no-deps --no-build-isolation --editable sdk/python --editable .
touch .venv/.ready
