#!/usr/bin/env bash
# Makes .venv-reference, the environment of the other systems in benchmarks: lhotse, front-ends, pyctcdecode, and torch.
# It is separate from .venv, which does not contain torch. A second call does nothing if nothing has changed.
# With --peers, also downloads the sources of the originals in PyTorch, at the measured commits, to .peers (20 MB), for
# `python -m benchmarks.model --peer`.
#   ASR_JAX_REFERENCE_PYTHON   Python >= 3.10 to use (default: the first one found)
#   PIP_EXTRA_INDEX_URL        option of pip: PyTorch's index of CPU builds avoids gigabytes of CUDA libraries
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

peer() {  # folder, repository, commit, paths
    local folder=.peers/$1 repository=$2 commit=$3
    shift 3
    [ "$(git -C "$folder" rev-parse HEAD 2>/dev/null)" = "$commit" ] && [ -f "$folder/.fetched" ] && return
    rm -rf "$folder"
    git clone --quiet --filter=blob:none --no-checkout "https://github.com/$repository" "$folder"
    git -C "$folder" sparse-checkout set --no-cone "$@"
    git -C "$folder" checkout --quiet "$commit"
    touch "$folder/.fetched"
    echo "setup_reference: $folder is $repository at $commit"
}

if [ "${1:-}" = --peers ]; then
    peer icefall k2-fsa/icefall 36e0420c7e3e849a25b3d24dbf913c424f3d23c9 \
        /icefall/utils.py /egs/librispeech/ASR/zipformer /egs/librispeech/ASR/transducer_stateless \
        /egs/librispeech/ASR/pruned_transducer_stateless2
    peer DeepLearningExamples NVIDIA/DeepLearningExamples 729963dd47e7c8bd462ad10bfac7a7b0b604e6dd \
        /PyTorch/SpeechRecognition/QuartzNet /PyTorch/SpeechRecognition/wav2vec2/common /PyTorch/SpeechRecognition/wav2vec2/wav2vec2
    peer NeMo NVIDIA/NeMo 8cfedd7203462cb251a914e700e5605444277561 /nemo/collections/asr /nemo/collections/common/parts
    peer FunASR modelscope/FunASR 3c58cb56a56598232c3efffa15d313d7e82a4307 /funasr
    peer caiman-asr MyrtleSoftware/caiman-asr 08d60d8059fa8c9fda89f9d030f9c2fce8811751 /training/caiman_asr_train
    peer fairseq facebookresearch/fairseq 3d262bb25690e4eb2e7d3c1309b1e9c406ca4b99 \
        /fairseq /examples/__init__.py /examples/speech_recognition
elif [ $# -gt 0 ]; then
    echo "setup_reference.sh $*: expected --peers or nothing" >&2
    exit 2
fi

# soundfile as in .venv, since both systems in a comparison must decode with the same libsndfile.
packages=(torch==2.13.0 torchaudio==2.11.0 lhotse==1.33.0 urllib3 soundfile==0.14.0 safetensors "numpy>=2" kaldi-native-fbank==1.22.5
    librosa==0.11.0 transformers==5.23.0 jiwer==4.0.0 kenlm==0.3.0 pygtrie==2.6.2 hypothesis==6.170.15
    sentencepiece protobuf pyyaml hydra-core==1.0.7 omegaconf==2.0.6 bitarray sacrebleu regex)  # fairseq's, from hydra-core on
# lhotse 1.33 imports urllib3 without requiring it; kenlm has no wheel and needs a C++ compiler.
alone=(pyctcdecode==0.5.0)  # without dependencies: it requires numpy < 2 but runs with numpy 2
folder=.venv-reference
if [ -f $folder/.installed ] && [ "$(cat $folder/.installed)" = "${packages[*]} ${alone[*]}" ]; then
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
$folder/bin/python -m pip install --quiet --disable-pip-version-check "pip<24.1"  # newer ones refuse omegaconf 2.0.6
$folder/bin/python -m pip install --quiet --disable-pip-version-check "${packages[@]}"
$folder/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "${alone[@]}"
rm -f $folder/lib/python3*/site-packages/torchaudio/lib/*.so  # built for CUDA; benchmarks use only its Python code
echo "${packages[*]} ${alone[*]}" > $folder/.installed
echo "setup_reference: done in $((SECONDS - started)) s"
