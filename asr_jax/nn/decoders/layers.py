"""Settings that the layers of all decoders share."""

from asr_jax.core.settings import PositiveInt, ShareBelow1, settings
from asr_jax.nn.remat import Remat


@settings
class DecoderLayers:
    """Settings of the layers of a decoder."""

    num_layers: PositiveInt = 6
    """Number of layers."""
    num_heads: PositiveInt = 4
    """Number of attention heads."""
    feedforward_dim: PositiveInt = 2048
    """Hidden width of the feed-forward modules."""
    dropout: ShareBelow1 = 0.1
    """Dropout rate within the feed-forward modules and after each part of a layer."""
    remat: Remat = "elementwise"
    """Rematerialisation policy of the layers (see `nn.remat`)."""
