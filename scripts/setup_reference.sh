#!/usr/bin/env bash
# Makes .venv-reference, the environment of other systems that benchmarks race against: lhotse, front-ends, and the torch they need.
# It is apart from .venv, which never sees torch. A second call does nothing when nothing changed.
#   ASR_JAX_REFERENCE_PYTHON   the Python to use instead of the first one found
#   PIP_EXTRA_INDEX_URL        pip's own: name PyTorch's index of CPU builds here, or torch brings gigabytes for CUDA
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# soundfile as in .venv: both sides of a race decode with the same libsndfile.
packages=(torch==2.13.0 torchaudio==2.11.0 lhotse==1.33.0 urllib3 soundfile==0.14.0 safetensors "numpy>=2" kaldi-native-fbank==1.22.5
    librosa==0.11.0 transformers==5.23.0)  # lhotse 1.33 imports urllib3 unasked
folder=.venv-reference
if [ -f $folder/.installed ] && [ "$(cat $folder/.installed)" = "${packages[*]}" ]; then
    exit 0
fi

works() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

for python in ${ASR_JAX_REFERENCE_PYTHON:-python3.11 python3.12 python3.13 python3}; do
    works "$python" && break
done
works "$python" || { echo "setup_reference.sh: no Python >= 3.10 with venv; set ASR_JAX_REFERENCE_PYTHON" >&2; exit 2; }

started=$SECONDS
echo "setup_reference: making $folder with $python: ${packages[*]}"
"$python" -m venv --clear $folder
$folder/bin/python -m pip install --quiet --disable-pip-version-check "${packages[@]}"
rm -f $folder/lib/python3*/site-packages/torchaudio/lib/*.so  # made for CUDA; what is raced is in its Python part
echo "${packages[*]}" > $folder/.installed
echo "setup_reference: done in $((SECONDS - started)) s"
