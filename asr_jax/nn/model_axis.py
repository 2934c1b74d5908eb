"""Rules that spread the products of attention and feed-forward modules over the axis model of a mesh.

The first product of a module is spread by its outputs and the last one by its inputs, so that one sum over the axis
follows each module. The number of heads should be a multiple of the size of the axis.

Source: Shoeybi et al. 2019, "Megatron-LM" (arXiv:1909.08053), section 3.
"""

from asr_jax.core.sharding import ModelRules

ATTENTION: ModelRules = (
    (r".*/attention/(query|key|value|positions)/kernel", -1),
    (r".*/attention/(query|key|value)/bias", -1),
    (r".*/attention/out/kernel", -2),
)
FEED_FORWARD: ModelRules = (
    (r".*/feed_forward\w*/in/(kernel|bias)", -1),
    (r".*/feed_forward\w*/out/kernel", -2),
)
