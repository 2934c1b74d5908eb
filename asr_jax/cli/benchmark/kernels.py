"""Benchmark of kernels: `python -m asr_jax.benchmark kernels [--batch 8 --seq-len 512 --channels 512 --json OUT]`.

Measures each implementation of each operation that runs on this device, on random arrays: the median time of a
call, the bytes of its compiled program, the bytes of its arguments and results, the floating-point operations of the
first implementation's products, and the least time that these two and the device's bandwidth and peak rate of bfloat16
allow, as a share of the measured one. Operations with gradients are also measured with them, for random cotangents. A
CPU has XLA's implementations alone, and no limit is known for it.
"""

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from asr_jax.core.errors import UserError
from asr_jax.core.files import check_writable, write_whole
from asr_jax.core.options import parse
from asr_jax.core.settings import NonNegativeInt, PositiveInt, command_options


@command_options
class KernelOptions:
    """Options of `asr_jax.benchmark kernels`."""

    batch: PositiveInt = 8
    """Number of rows."""
    seq_len: PositiveInt = 512
    """Number of frames."""
    channels: PositiveInt = 512
    """Number of channels of each frame."""
    heads: PositiveInt = 8
    """Number of heads of attention, which must divide the channels."""
    labels: PositiveInt = 64
    """Number of labels of each row, for the recursions of losses and for the joint network."""
    vocab_size: PositiveInt = 1024
    """Number of labels of the vocabulary, for the joint network, whose frames are a quarter as many."""
    taps: PositiveInt = 31
    """Number of taps of convolutions."""
    iterations: PositiveInt = 100
    """Number of measured calls."""
    warm_ups: NonNegativeInt = 10
    """Number of calls before the measured ones."""
    precision: Literal["f32", "bf16"] = "f32"
    """Precision of the arrays. The recursions of CTC and of transducers always have float32."""
    operations: tuple[str, ...] = ()
    """Names of the operations, such as ctc_sweep. Empty: all."""
    json: Path | None = None
    """File to write the figures to, in JSON."""

    def problems(self) -> Iterator[str]:
        if self.channels % self.heads:
            yield f"heads is {self.heads}: expected a divisor of channels, {self.channels}"


class Case(NamedTuple):
    """An operation with its implementations."""

    name: str
    arguments: tuple[Any, ...]
    forms: Mapping[str, Callable[..., Any]]
    num_gradients: int = 1
    """Number of the first arguments that have gradients."""
    folder: str = ""
    """Folder of the kernel in `asr_jax.kernels`. Empty: the name."""


def main(arguments: Sequence[str]) -> None:
    options = parse(KernelOptions, arguments, prog="python -m asr_jax.benchmark kernels", about=__doc__)
    if options.json:
        check_writable(options.json)

    from asr_jax.core.devices import devices
    from asr_jax.kernels.implementations import KERNELS, CannotCompute
    from asr_jax.observe.tables import print_table

    device, rows, omitted = devices()[0], list[dict[str, Any]](), list[dict[str, Any]]()
    sizes = {name: value for name, value in vars(options).items() if isinstance(value, int)}
    figures = {
        "device": device.device_kind, **sizes, "precision": options.precision, "rows": rows, "omitted": omitted,
    }  # fmt: skip
    platforms = {platform: name for name, (_, platform) in KERNELS.items()}
    made = cases(options, platforms.get(device.platform, ""))
    names = [case.name for case in made]
    if unknown := [name for name in options.operations if name not in names]:
        raise UserError(f"--operations {unknown[0]}: expected names of {', '.join(names)}")
    for case in made:
        if options.operations and case.name not in options.operations:
            continue
        for form, with_gradient in itertools.product(case.forms, (False, True)[: 1 + (case.num_gradients > 0)]):
            operation = {"operation": case.name + " with gradient" * with_gradient, "implementation": form}
            try:
                figures_of_form = _measured(case, form, options, device, with_gradient=with_gradient)
            except Exception as error:  # a kernel that fails must not cost the figures of the others
                has_failed = not isinstance(error, CannotCompute)
                reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                omitted.append(operation | {"has_failed": has_failed, "reason": reason})
                print(f"{operation['operation']}, {form}: not measured: {reason}", file=sys.stderr, flush=True)
            else:
                rows.append({"kernel": case.folder or case.name} | operation | figures_of_form)
                print(f"{operation['operation']}, {form}: {rows[-1]['ms']:.3f} ms", file=sys.stderr, flush=True)
            if options.json:
                write_whole(options.json, json.dumps(figures, indent=1) + "\n")
    shape = f"{options.batch} × {options.seq_len} frames, {options.channels} channels"
    title = f"{shape}, {options.precision}, on {device.device_kind}"
    print_table([{name: row[name] for name in row if name not in ("kernel", "times_s")} for row in rows], title=title)
    if failed := [f"{each['operation']}, {each['implementation']}" for each in omitted if each["has_failed"]]:
        raise UserError(f"failed, with the messages above: {'; '.join(failed)}")


def cases(options: KernelOptions, kernel: str) -> list[Case]:
    """Returns operations and their implementations.

    Args:
        kernel: Name of the implementation for a kind of device, which is added if it is installed. Empty: none.
    """
    import importlib.util
    from functools import partial

    import jax.numpy as jnp
    import numpy as np

    from asr_jax.kernels.bias_norm.api import bias_norm
    from asr_jax.kernels.ctc_sweep.api import ctc_sweep
    from asr_jax.kernels.ctc_viterbi.api import ctc_viterbi
    from asr_jax.kernels.depthwise_conv.api import depthwise_conv
    from asr_jax.kernels.glu.api import glu
    from asr_jax.kernels.lattice_sweep.api import lattice_sweep
    from asr_jax.kernels.lattice_sweep.reference import Start
    from asr_jax.kernels.masking import api as masking
    from asr_jax.kernels.pairwise_downsample.api import pairwise_downsample
    from asr_jax.kernels.relative_attention.api import relative_attention
    from asr_jax.kernels.relative_shift.api import relative_shift
    from asr_jax.kernels.swoosh import api as swoosh
    from asr_jax.kernels.transducer_joint.api import transducer_joint
    from asr_jax.nn.normalization import masked_batch_norm

    random, rows, frames, labels = np.random.default_rng(0), options.batch, options.seq_len, options.labels
    if kernel == "triton" and importlib.util.find_spec("jax_triton") is None:
        kernel = ""
    attentions: list[Any] = ["reference", "xla", *filter(None, [kernel])]
    recursions: list[Any] = ["scan", *filter(None, [kernel])]
    norms: list[Any] = ["reference", *filter(None, [kernel])]
    convolutions: list[Any] = ["lax", "shifted", *filter(None, [kernel])]
    joints: list[Any] = ["reference", "xla", *filter(None, [kernel])]

    precision = {"f32": jnp.float32, "bf16": jnp.bfloat16}[options.precision]

    def drawn(*shape: int, dtype: Any = precision) -> Any:
        return jnp.asarray(random.normal(size=shape), dtype)

    x, full = drawn(rows, frames, options.channels), jnp.full(rows, frames, jnp.int32)
    of_head = (options.heads, options.channels // options.heads)
    padding = ((options.taps - 1) // 2, options.taps // 2)
    numbers = jnp.asarray(random.integers(1, 64, (2, rows, labels)), jnp.int32)
    emissions = -jnp.abs(drawn(frames, rows, labels + 2, dtype=jnp.float32))
    scores = -jnp.abs(drawn(rows, frames, 500, dtype=jnp.float32))
    weights = tuple(-jnp.abs(drawn(frames + labels, 2, rows, labels + 1, dtype=jnp.float32)) for _ in range(2))
    start = Start(jnp.zeros((2, rows), jnp.int32), jnp.broadcast_to(jnp.arange(labels + 1) == 0, (2, rows, labels + 1)))
    lengths, heads = jnp.asarray(random.integers(1, frames + 1, rows), jnp.int32), options.heads

    def small(function: Callable[..., Any], *arrays: Any, **constants: Any) -> Case:
        """Case of an operation whose arrays of floats, before its lengths, have gradients."""
        names: list[Any] = ["reference", *filter(None, [kernel])]
        forms = {name: partial(function, implementation=name, **constants) for name in names}
        floats = sum(jnp.issubdtype(each.dtype, jnp.floating) for each in arrays)
        return Case(function.__name__, arrays, forms, floats, function.__module__.split(".")[-2])

    return [
        *(small(getattr(swoosh, name), x) for name in ("swoosh_l", "swoosh_r", "shifted_swish_l", "shifted_swish_r")),
        small(glu, drawn(rows, frames, 2 * options.channels)),
        small(glu, drawn(rows, 2 * options.channels, frames), axis=-2)._replace(name="glu of channels"),
        small(relative_shift, drawn(rows, heads, frames, 2 * frames - 1)),
        small(pairwise_downsample, x, drawn(2), lengths),
        small(masking.mask_time, x, lengths),
        small(masking.mask_channel_time, drawn(rows, options.channels, frames), lengths),
        small(masking.residual_add_mask_time, x, drawn(*x.shape), lengths),
        small(masking.sequence_mask, lengths, num_frames=frames),
        small(masking.padding_mask, lengths, num_frames=frames),
        small(masking.attention_mask, lengths, num_queries=frames, num_keys=frames),
        small(masking.attention_mask_4d, lengths, num_heads=heads, num_queries=frames, num_keys=frames),
        Case(
            "depthwise_conv", (x, drawn(options.taps, options.channels)),
            {name: partial(depthwise_conv, padding=padding, implementation=name) for name in convolutions},
            num_gradients=2,
        ),
        Case(
            "bias_norm", (x, drawn(options.channels), jnp.zeros(())),
            {name: partial(bias_norm, implementation=name) for name in norms}, num_gradients=3,
        ),
        Case(
            "masked_batch_norm", (x, drawn(options.channels), drawn(options.channels)),
            {
                name: lambda x, gain, bias, name=name: masked_batch_norm(x, full, gain, bias, 1e-5, name)[0]
                for name in norms
            },
            num_gradients=3,
        ),
        Case(
            "relative_attention",
            (
                *(drawn(rows, frames, *of_head) for _ in range(4)), drawn(2 * frames - 1, *of_head),
                jnp.full(rows, frames),
            ),
            {name: partial(relative_attention, scale=of_head[1] ** -0.5, implementation=name) for name in attentions},
            num_gradients=5,
        ),
        Case(
            "ctc_sweep", (emissions, numbers, jnp.full(rows, labels, jnp.int32)),
            {name: partial(ctc_sweep, implementation=name) for name in recursions}, num_gradients=0,
        ),
        Case(
            "lattice_sweep", (weights, start),
            {
                name: partial(lattice_sweep, spans=(1, 1), moves=(0, 1), implementation=name) for name in recursions
            },
            num_gradients=0,
        ),
        Case(
            "ctc_viterbi", (scores, full, numbers[0], jnp.full(rows, labels, jnp.int32)),
            {name: partial(ctc_viterbi, blank_id=0, implementation=name) for name in recursions}, num_gradients=0,
        ),
        Case(
            "transducer_joint",
            (
                drawn(rows, -(-frames // 4), options.channels), drawn(rows, labels + 1, options.channels),
                drawn(options.channels, options.vocab_size), drawn(options.vocab_size),
                jnp.asarray(random.integers(0, options.vocab_size, (rows, labels)), jnp.int32),
                jnp.full(rows, -(-frames // 4)), jnp.full(rows, labels),
            ),
            {
                name: partial(transducer_joint, blank_id=0, activation="tanh", implementation=name)
                for name in joints
            },
            num_gradients=4,
        ),
    ]  # fmt: skip


def _measured(case: Case, form: str, options: KernelOptions, device: Any, *, with_gradient: bool) -> dict[str, Any]:
    """Times an implementation, and counts what its arguments, results and products need at least."""
    import jax
    import numpy as np

    from asr_jax.core.hlo import Module
    from asr_jax.core.programs import products
    from asr_jax.core.pytrees import num_bytes
    from asr_jax.core.targets import accelerator_of

    def called(name: str) -> Callable[..., Any]:
        """Returns the function to measure; with gradients, it has the cotangents of its outputs as first argument."""
        if not with_gradient:
            return case.forms[name]

        def gradient(cotangents: Any, *arguments: Any) -> Any:
            first, others = arguments[: case.num_gradients], arguments[case.num_gradients :]
            outputs, backward = jax.vjp(lambda *each: case.forms[name](*each, *others), *first)
            return outputs, backward(cotangents)

        return gradient

    arguments = case.arguments
    if with_gradient:  # random, since XLA simplifies a gradient of ones
        random = np.random.default_rng(1)
        outputs = jax.eval_shape(case.forms[form], *arguments)
        arguments = (jax.tree.map(lambda each: random.normal(size=each.shape).astype(each.dtype), outputs), *arguments)
    program = jax.jit(called(form)).lower(*arguments).compile()
    times = list[float]()
    for number in range(options.warm_ups + options.iterations):
        begun = time.perf_counter()
        jax.block_until_ready(program(*arguments))
        if number >= options.warm_ups:
            times.append(time.perf_counter() - begun)
    median = statistics.median(times)
    flops = products(jax.make_jaxpr(called(next(iter(case.forms))))(*arguments).jaxpr)
    least_bytes = num_bytes((arguments, program.out_info))
    row: dict[str, Any] = {
        "ms": 1000 * median,
        "MB": Module(program.as_text() or "").bytes / 1e6, "MB at least": least_bytes / 1e6,
        "GFLOP of products": flops / 1e9,
    }  # fmt: skip
    if known := accelerator_of(device.device_kind):
        least = max(least_bytes / (1e9 * known.memory_gb_per_s), flops / (1e12 * known.peak_tflops))
        row["of the limit"] = f"{least / median:.0%}"
    return row | {"times_s": times}
