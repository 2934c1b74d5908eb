"""Training programs of each family of models, compiled for GPUs and TPUs that need not be present.

They are compiled as by `plan --quick`: collectives, dtypes and aliases are decided before what that omits (trials of
kernels for products on GPUs, and the optimisation of generated code on TPUs).

tests/training/test_lowering.py compares sums over devices on CPUs; these programs come from other compilers.

The compilers are in the extras cuda12 and tpu; without them, these tests are skipped.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import pytest

from asr_jax.audio.presets import w2v_bert, wav2vec2
from asr_jax.core.errors import UserError
from asr_jax.core.hlo import Module
from asr_jax.core.programs import Programs
from asr_jax.core.pytrees import num_bytes
from asr_jax.core.targets import QUICK, target_of
from asr_jax.data.batching.buckets import Bucket, Scale
from asr_jax.heads.attention_decoder import AttentionDecoder
from asr_jax.heads.contrastive import Contrastive
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer_v2 import ParaformerV2
from asr_jax.heads.transducer import Pruning, Transducer
from asr_jax.kernels.implementations import selected_kernels
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.models.quartznet import QuartzNet
from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.models.w2v_bert import W2VBert
from asr_jax.models.wav2vec2 import Wav2Vec2
from asr_jax.models.zipformer import Zipformer
from asr_jax.nn.decoders.label_decoder import LabelDecoder
from asr_jax.nn.decoders.parallel_decoder import TransformerDecoder
from asr_jax.nn.recurrent.prediction import StatelessPrediction
from asr_jax.nn.wav2vec.quantizer import Quantizer
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import RunLength
from asr_jax.training.initial_state import abstract_state, lower_initial_state
from asr_jax.training.programs import StepPrograms
from asr_jax.training.recipe import Recipe
from tests.support import approx

pytestmark = pytest.mark.slow

TARGETS = ("h100:4", "v5e:2x2")
BUCKET = Bucket(32000, 8, 8, 32000)
HEADS = {"ctc": CTC()}
MODELS = {
    "zipformer": Model(encoder=Zipformer.tiny(), heads=HEADS),
    "conformer": Model(encoder=Conformer.tiny(), heads=HEADS),
    "fastconformer": Model(encoder=Conformer.tiny(subsampling_factor=8, kernel_size=9), heads=HEADS),
    "squeezeformer": Model(encoder=Squeezeformer.tiny(), heads=HEADS),
    "quartznet": Model(encoder=QuartzNet.tiny(num_mels=80), heads=HEADS),
    "transducer": Model(
        encoder=Conformer.tiny(),
        heads={"transducer": Transducer(prediction=StatelessPrediction(64, 2), joint_dim=64, pruning=Pruning())},
    ),
    "paraformer": Model(
        encoder=Conformer.tiny(),
        heads={"paraformer": ParaformerV2(decoder=TransformerDecoder(num_layers=1, num_heads=2)), **HEADS},
        primary="paraformer",
    ),
    "attention": Model(
        encoder=Conformer.tiny(),
        heads={"attention": AttentionDecoder(decoder=LabelDecoder(dim=96, num_layers=1, num_heads=2)), **HEADS},
        primary="attention",
    ),
    "w2v_bert": Model(front_end=w2v_bert(), augment=(), encoder=W2VBert.tiny(), heads=HEADS),
    "wav2vec2": Model(front_end=wav2vec2(), augment=(), encoder=Wav2Vec2.tiny(), heads=HEADS),
    "pretraining": Model(
        front_end=wav2vec2(), augment=(), encoder=Wav2Vec2.tiny(taps=("features", "extractor")),
        heads={"pretrain": Contrastive(quantizer=Quantizer(groups=2, entries=64), codes_dim=64, dim=64)},
    ),
}  # fmt: skip


PLACES = (".augmented/", "/heads_", "/downsample/", "._masked/", "._mask/")
"""Parts of a model that look up or order frames and labels: features and augmentation, heads, the last frame of a row,
and spans of masks."""


class Compiled(NamedTuple):
    """Programs of a step for four devices."""

    gradient: Module
    update: Module
    params_bytes: int
    state_bytes: int
    alias_bytes: int
    """Memory that arguments and outputs of the update share."""
    flops: float
    """Floating-point operations of the products of the gradient on all devices, as traced."""


def step_of(settings: Model, target: str, kernels: Sequence[str] = ()) -> StepPrograms:
    try:
        described = target_of(target)
    except UserError as error:
        pytest.skip(str(error))
    model = settings.build(vocab_size=32, blank_id=31, precision="bf16")
    recipe = Recipe(model, dict.fromkeys(settings.heads, 1.0), AdamW().build(RunLength(100, 10)), most_rows=8)
    shapes = abstract_state(lower_initial_state(recipe, seed=0), described.mesh)
    programs = Programs(options=QUICK[described.accelerator.platform], kernels=selected_kernels(kernels))
    return StepPrograms(recipe, shapes, described.mesh, Scale(16000, 160, 80), 2, programs=programs)


@cache
def compiled(name: str, target: str) -> Compiled:
    step = step_of(MODELS[name], target)
    shapes, gradient = step.shapes, step.gradient(BUCKET)
    update = step.update(step.accumulated(gradient)).compile()
    memory: Any = update.memory_analysis()
    return Compiled(
        Module(gradient.compile().as_text()), Module(update.as_text()), num_bytes(shapes.state.params),
        num_bytes(shapes.state), memory.alias_size_in_bytes, gradient.flops,
    )  # fmt: skip


each_program = pytest.mark.parametrize(("name", "target"), [(name, target) for target in TARGETS for name in MODELS])


@each_program
def test_gradients_are_summed_once_per_update(name: str, target: str) -> None:
    found = compiled(name, target)
    of_gradient = found.gradient.collectives()
    assert set(of_gradient) <= {"all-reduce"}
    assert sum(moved for _, moved in of_gradient.values()) < 0.02 * found.params_bytes  # sums of losses and metrics
    of_update = found.update.collectives()
    assert set(of_update) == {"all-reduce"}
    assert of_update["all-reduce"][0] <= 2
    assert of_update["all-reduce"][1] == approx(found.params_bytes, rel=0.02)


@each_program
def test_nothing_is_computed_in_float64_or_by_the_host(name: str, target: str) -> None:
    found = compiled(name, target)
    for module in (found.gradient, found.update):
        arrays = (each.outputs for computation in module.computations.values() for each in computation.values())
        assert not {"f64", "c128"} & {array.dtype for outputs in arrays for array in outputs}
        kinds = {each.kind for each in module.operations}
        assert not {kind for kind in kinds if "callback" in kind or kind in ("infeed", "outfeed", "send", "recv")}


def flops_of(found: Compiled, field: str) -> float:
    """Floating-point operations of the gradient, without the computation of features.

    Features are computed in float32, and on TPUs, products compute their Fourier transform.
    """
    operations = [each for each in found.gradient.operations if ".augmented/" not in each.op_name]
    return float(sum(each.times * getattr(each, field) for each in operations))


@each_program
def test_products_have_operands_of_16_bits(name: str, target: str) -> None:
    found = compiled(name, target)
    assert flops_of(found, "flops_16bit") > 0.9 * flops_of(found, "flops")


@each_program
def test_all_products_are_read_from_the_program(name: str, target: str) -> None:
    found = compiled(name, target)
    assert flops_of(found, "flops") == approx(found.flops / 4, rel=0.1)  # of one of four devices


@each_program
def test_layers_have_no_operations_that_are_slow_on_accelerators(name: str, target: str) -> None:
    found = compiled(name, target)
    slow = {
        each.op_name for module in (found.gradient, found.update) for computation in module.computations.values()
        for each in computation.values() if each.opcode in ("fft", "gather", "scatter", "sort") and each.op_name
    }  # fmt: skip
    assert not {each for each in slow if not any(place in each for place in PLACES)}


@each_program
def test_the_state_is_updated_in_place(name: str, target: str) -> None:
    found = compiled(name, target)
    assert found.alias_bytes >= 0.95 * found.state_bytes


@pytest.mark.parametrize(("target", "kernel"), [("h100", "triton"), ("v5e", "mosaic_tpu")])
@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("zipformer", ("bias_norm", "ctc_sweep", "depthwise_conv", "relative_shift", "swoosh")),
        ("conformer", ("ctc_sweep", "depthwise_conv", "glu", "masked_batch_norm", "relative_shift")),
        ("rnnt", ("lattice_sweep", "transducer_joint")),
    ],
)
def test_selected_kernels_are_part_of_the_programs(
    name: str, kernels: tuple[str, ...], target: str, kernel: str
) -> None:
    rnnt = Transducer(prediction=StatelessPrediction(64, 2), joint_dim=64, dropout=0.0)
    settings = MODELS.get(name) or Model(encoder=QuartzNet.tiny(num_mels=80), heads={"transducer": rnnt})
    program = step_of(settings, target, [f"{each}={kernel}" for each in kernels]).gradient(BUCKET)
    text = program.lowered.as_text()
    called = {"triton": "triton_kernel_call", "mosaic_tpu": "tpu_custom_call"}[kernel]
    assert text.count(called) >= len(kernels)
    program.compile()
