"""wav2vec 2.0 Base with CTC on letters, without frozen parts; sizes of the paper, training of transformers.

python -m asr_jax.benchmark model --config benchmarks/wav2vec2_base_ctc.py --vocabulary 32 [--peer]
"""

from asr_jax.audio.presets import wav2vec2
from asr_jax.config import Experiment
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.wav2vec2 import Wav2Vec2
from asr_jax.nn.wav2vec.span_masks import SpanMask
from asr_jax.optim.optimizers import AdamW


def experiment() -> Experiment:
    encoder = Wav2Vec2.base(extractor_gradient=1.0, time_mask=SpanMask(0.05, 10), layer_drop=0.1)
    model = Model(front_end=wav2vec2(), augment=(), encoder=encoder, heads={"ctc": CTC(dropout=0.1)})
    return Experiment(name="wav2vec2_base_ctc", model=model, data=Data(train=("none",)), optim=AdamW())
