"""A small model for each encoder and head, each with the front-end of its recipe."""

from dataclasses import replace

from asr_jax.audio import presets
from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.stages import NormaliseByDataSet, Stack
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer import Paraformer
from asr_jax.heads.paraformer_v2 import ParaformerV2
from asr_jax.heads.transducer import Transducer
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.models.encoder import Context
from asr_jax.models.lstm import LSTMEncoder
from asr_jax.models.quartznet import ConvBlock, QuartzNet
from asr_jax.models.sanm import SANM
from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.models.w2v_bert import W2VBert
from asr_jax.models.wav2vec2 import Wav2Vec2, WaveformConv
from asr_jax.models.zipformer import Zipformer
from asr_jax.nn.decoders.parallel_decoder import SANMDecoder, TransformerDecoder
from asr_jax.nn.recurrent.prediction import LSTMPrediction, StatelessPrediction
from asr_jax.search.transducer import TransducerDecoding

LAYERS_OF_LSTM = {"layers_before": 1, "layers_after": 1}
SMALL = {"dim": 24, "num_layers": 2, "num_heads": 2, "kernel_size": 5}
ZIPFORMER = Zipformer.tiny(
    dims=(16, 24, 24, 16), unmasked_dims=(16, 24, 24, 16), feedforward_dims=(24,) * 4, num_heads=(2,) * 4
)
CONVOLUTIONS = (
    ConvBlock(24, 5, stride=2, residual="none"),
    ConvBlock(24, 5, repeat=2),
    ConvBlock(32, 1, separable=False),
)
LAYERS = (WaveformConv(16, 10, 5), *(WaveformConv(16, 3, 2),) * 4, *(WaveformConv(16, 2, 2),) * 2)
STATELESS = Transducer(
    prediction=StatelessPrediction(16),
    joint_dim=24,
    activation="tanh",
    dropout=0.0,
    decoding=TransducerDecoding(max_symbols=1),  # as sherpa-onnx
)
RECURRENT = Transducer(prediction=LSTMPrediction(16, num_layers=2), joint_dim=24, dropout=0.0)
STATISTICS = NormaliseByDataSet(mean=(7.0,) * 560, deviation=(3.0,) * 560)

MODELS = {
    "zipformer": Model(ZIPFORMER, augment=()),
    "conformer": Model(Conformer(subsampling_channels=8, **SMALL), augment=(), front_end=presets.nemo()),  # type: ignore[arg-type]
    "fastconformer": Model(
        Conformer.tiny(subsampling_factor=8, subsampling_channels=8, **SMALL),  # type: ignore[arg-type]
        augment=(),
        front_end=presets.nemo(),
    ),
    "squeezeformer": Model(
        Squeezeformer.tiny(dim=16, num_layers=4, num_heads=2, subsampling_channels=8, kernel_size=5),
        augment=(),
        front_end=presets.squeezeformer(),
    ),
    "quartznet": Model(QuartzNet(num_mels=64, blocks=CONVOLUTIONS), augment=(), front_end=presets.quartznet()),
    "wav2vec2": Model(
        Wav2Vec2.tiny(extractor=LAYERS, dim=24, num_layers=2, num_heads=2, position_kernel=8, position_groups=2),
        augment=(),
        front_end=presets.wav2vec2_normalised(),
    ),
    "w2v_bert": Model(W2VBert.tiny(feedforward_dim=32, **SMALL), augment=(), front_end=presets.w2v_bert()),  # type: ignore[arg-type]
    "transducer": Model(ZIPFORMER, heads={"transducer": STATELESS}, augment=()),
    "lstm_transducer": Model(
        LSTMEncoder(dim=24, **LAYERS_OF_LSTM), heads={"transducer": RECURRENT}, augment=(), front_end=presets.rnnt()
    ),
    "paraformer_v2": Model(
        LSTMEncoder(dim=24, num_mels=80, **LAYERS_OF_LSTM),
        heads={
            "paraformer": ParaformerV2(decoder=TransformerDecoder(num_layers=1, num_heads=2, feedforward_dim=32)),
            "ctc": CTC(),
        },
        primary="paraformer",
        augment=(),
    ),
    "paraformer": Model(
        SANM.tiny(dim=24, num_layers=2, num_heads=2, feedforward_dim=32),
        heads={
            "paraformer": Paraformer(
                decoder=SANMDecoder(num_layers=2, num_attention_layers=1, num_heads=2, feedforward_dim=32)
            ),
            "ctc": CTC(),
        },
        primary="paraformer",
        augment=(),
        front_end=presets.funasr(STATISTICS),
    ),
}
"""Models by the names of their encoders or heads."""
CHUNKS = (Context(chunk_frames=8, left_frames=16),)
CAUSAL = {"causal": True, "contexts": CHUNKS}
STREAMING = {
    "streaming_zipformer": Model(replace(ZIPFORMER, **CAUSAL), augment=()),  # type: ignore[arg-type]
    "streaming_transducer": Model(replace(ZIPFORMER, **CAUSAL), heads={"transducer": STATELESS}, augment=()),  # type: ignore[arg-type]
    "streaming_conformer": Model(Conformer(subsampling_channels=8, norm="layer", **SMALL, **CAUSAL), augment=()),  # type: ignore[arg-type]
    "streaming_lstm": Model(
        LSTMEncoder(dim=24, num_mels=160, **LAYERS_OF_LSTM),
        augment=(),
        front_end=KaldiFbank(then=(NormaliseByDataSet((-6.0,) * 80, (4.0,) * 80), Stack(2, 2))),
    ),
    "streaming_rnnt": Model(
        LSTMEncoder(dim=24, **LAYERS_OF_LSTM),
        heads={"transducer": RECURRENT},
        augment=(),
        front_end=presets.rnnt(NormaliseByDataSet((-6.0,) * 80, (4.0,) * 80)),
    ),
}
"""Models that stream."""
