#!/usr/bin/env bash
# Makes the environment .venv; the other scripts call this one. A second call does nothing if nothing has changed.
#   ASR_JAX_PYTHON   Python >= 3.12 to use (default: the first one found)
#   ASR_JAX_EXTRAS   additional extras, comma-separated: cuda12 cuda13 tpu kernels lm formats text tensorboard launch
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

is_recent() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; }

find_python() {
    local candidate root
    # A pyenv shim of an inactive version is on the PATH but fails when it is called, so each candidate is called once.
    for candidate in "${ASR_JAX_PYTHON:-}" python3.12 python3.13 python3.14 python3; do
        [ -n "$candidate" ] && is_recent "$candidate" && { command -v "$candidate"; return; }
    done
    for root in "${PYENV_ROOT:-}" "$(pyenv root 2>/dev/null || true)" "$HOME/.pyenv"; do
        for candidate in "$root"/versions/3.1[2-9]*/bin/python3; do
            is_recent "$candidate" && { echo "$candidate"; return; }
        done
    done
    if command -v uv >/dev/null && uv python install 3.12 >&2 && candidate=$(uv python find 3.12); then
        is_recent "$candidate" && { echo "$candidate"; return; }
    fi
    echo "setup.sh: no Python >= 3.12 with venv found (JAX needs it)." >&2
    echo "  Tried ASR_JAX_PYTHON, python3.12, python3.13, python3.14, python3, pyenv's versions and uv." >&2
    echo "  Install one (apt install python3.12 python3.12-venv; pyenv install 3.12; uv python install 3.12) or set" >&2
    echo "  ASR_JAX_PYTHON=/path/to/python3.12, and run this script again." >&2
    return 1
}

cuda_extra() {   # the extra for the CUDA version of the driver, from nvidia-smi; empty without a GPU
    local version
    version=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p' | head -n 1)
    [ -z "$version" ] && return
    if [ "$version" -ge 13 ]; then echo ",cuda13"; else echo ",cuda12"; fi
}

extras="dev,quickstart$(cuda_extra)${ASR_JAX_EXTRAS:+,$ASR_JAX_EXTRAS}"
versions=$(cat pyproject.toml constraints.txt | cksum)
installed="" missing=""
if [ -f .venv/.installed ] && is_recent .venv/bin/python; then
    read -r extras_there versions_there < .venv/.installed
    if [ "$versions_there" = "$versions" ]; then installed="$extras_there,"; fi
fi
for extra in ${extras//,/ }; do
    [[ ",$installed" == *",$extra,"* ]] || missing+="$extra,"
done
[ -z "$missing" ] && exit 0

started=$SECONDS
if ! { [ -x .venv/bin/python ] && is_recent .venv/bin/python; }; then
    [ -n "${ASR_JAX_PYTHON:-}" ] && ! is_recent "$ASR_JAX_PYTHON" && {
        echo "setup.sh: ASR_JAX_PYTHON=$ASR_JAX_PYTHON is not a Python >= 3.12 with venv" >&2; exit 2; }
    python=$(find_python)
    echo "setup: making .venv with $python"
    "$python" -m venv --clear .venv
fi
echo "setup: installing asr-jax[$extras] as pinned in constraints.txt; a new .venv takes some minutes and 2 GB (more with CUDA)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[$extras]"
installed+=$missing
echo "${installed%,} $versions" > .venv/.installed
echo "setup: done in $((SECONDS - started)) s"
