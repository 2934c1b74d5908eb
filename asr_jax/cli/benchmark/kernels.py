"""Benchmark of kernels: `python -m asr_jax.benchmark kernels [--batch 8 --seq-len 512 --channels 512 --json OUT]`.

Measures each implementation of each operation that runs on this device, on random arrays: the median time of a
call in a sequence of calls that the host does not wait for, the bytes of its compiled program, the bytes of its
arguments and results, the floating-point operations of the first implementation's products, and the least time that
these two and the device's bandwidth and peak rate of bfloat16 allow, as a share of the measured one. Operations with
gradients are also measured with them, for random cotangents. A CPU has XLA's implementations alone, and no limit is
known for it.
"""

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

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
    iterations: PositiveInt = 20
    """Number of measurements."""
    calls: PositiveInt = 10
    """Number of calls of a measurement. The host waits for the last one: a single call of a GPU can take less time than
    its start and the wait."""
    warm_ups: NonNegativeInt = 2
    """Number of measurements before those that count."""
    precision: Literal["f32", "bf16"] = "f32"
    """Precision of the arrays. The recursions of CTC and of transducers always have float32."""
    operations: tuple[str, ...] = ()
    """Names of the operations, such as ctc_sweep. Empty: all."""
    json: Path | None = None
    """File to write the figures to, in JSON."""

    def problems(self) -> Iterator[str]:
        if self.channels % self.heads:
            yield f"heads is {self.heads}: expected a divisor of channels, {self.channels}"


def main(arguments: Sequence[str]) -> None:
    options = parse(KernelOptions, arguments, prog="python -m asr_jax.benchmark kernels", about=__doc__)
    check_writable(options.json)

    from asr_jax.core.devices import devices
    from asr_jax.kernels.cases import Sizes, cases
    from asr_jax.kernels.implementations import KERNELS, CannotCompute
    from asr_jax.observe.tables import print_table

    device, rows, omitted = devices()[0], list[dict[str, Any]](), list[dict[str, Any]]()
    sizes = {name: value for name, value in vars(options).items() if isinstance(value, int)}
    figures = {
        "device": device.device_kind,
        **sizes,
        "precision": options.precision,
        "is_complete": False,
        "rows": rows,
        "omitted": omitted,
    }
    kernels = [name for name, (_, platform) in KERNELS.items() if platform == device.platform]
    shape = Sizes(*(sizes[name] for name in ("batch", "seq_len", "channels", "heads", "labels", "vocab_size", "taps")))
    every = cases(shape, whole=True)
    if unknown := [name for name in options.operations if name not in every]:
        raise UserError(f"--operations {unknown[0]}: expected names of {', '.join(every)}")
    dtype = {"f32": "float32", "bf16": "bfloat16"}[options.precision]
    for name in options.operations or every:
        case = every[name].in_dtype(dtype)
        forms = itertools.product((*case.portable, *kernels), (False, True)[: 1 + (case.num_gradients > 0)])
        for form, with_gradient in forms:
            operation = {"operation": name + " with gradient" * with_gradient, "implementation": form}
            try:
                figures_of_form = _measured(case, form, options, device, with_gradient=with_gradient)
            except Exception as error:  # a kernel that fails must not cost the figures of the others
                has_failed = not isinstance(error, CannotCompute)
                reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                omitted.append(operation | {"has_failed": has_failed, "reason": reason})
                print(f"{operation['operation']}, {form}: not measured: {reason}", file=sys.stderr, flush=True)
            else:
                rows.append({"kernel": case.kernel} | operation | figures_of_form)
                print(f"{operation['operation']}, {form}: {rows[-1]['ms']:.3f} ms", file=sys.stderr, flush=True)
            if options.json:
                write_whole(options.json, json.dumps(figures, indent=1) + "\n")
    figures["is_complete"] = True
    if options.json:
        write_whole(options.json, json.dumps(figures, indent=1) + "\n")
    title = f"{options.batch} × {options.seq_len} frames, {options.channels} channels"
    title = f"{title}, {options.precision}, on {device.device_kind}"
    print_table([{name: row[name] for name in row if name not in ("kernel", "times_s")} for row in rows], title=title)
    if failed := [f"{each['operation']}, {each['implementation']}" for each in omitted if each["has_failed"]]:
        raise UserError(f"failed, with the messages above: {'; '.join(failed)}")


def _measured(case: Any, form: str, options: KernelOptions, device: Any, *, with_gradient: bool) -> dict[str, Any]:
    """Times an implementation, and counts what its arguments, results and products need at least."""
    import jax
    import numpy as np

    from asr_jax.core.hlo import Module
    from asr_jax.core.programs import products
    from asr_jax.core.pytrees import num_bytes
    from asr_jax.core.targets import accelerator_of

    def called(name: str) -> Callable[..., Any]:
        """Returns the function to measure; with gradients, it has the cotangents of its outputs as first argument."""
        function = partial(case.function, implementation=name)
        if not with_gradient:
            return function

        def gradient(cotangents: Any, *arguments: Any) -> Any:
            first, others = arguments[: case.num_gradients], arguments[case.num_gradients :]
            outputs, backward = jax.vjp(lambda *each: function(*each, *others), *first)
            return outputs, backward(cotangents)

        return gradient

    arguments = jax.device_put(case.arguments)
    if with_gradient:  # random, since XLA simplifies a gradient of ones
        random = np.random.default_rng(1)
        outputs = jax.eval_shape(partial(case.function, implementation=form), *arguments)
        arguments = (jax.tree.map(lambda each: random.normal(size=each.shape).astype(each.dtype), outputs), *arguments)
    program = jax.jit(called(form)).lower(*arguments).compile()
    times = list[float]()
    for number in range(options.warm_ups + options.iterations):
        begun = time.perf_counter()
        jax.block_until_ready([program(*arguments) for _ in range(options.calls)])
        if number >= options.warm_ups:
            times.append((time.perf_counter() - begun) / options.calls)
    median = statistics.median(times)
    flops = products(jax.make_jaxpr(called(case.portable[0]))(*arguments).jaxpr)
    least_bytes = num_bytes((arguments, program.out_info))
    row: dict[str, Any] = {
        "ms": 1000 * median,
        "MB": Module(program.as_text() or "").bytes / 1e6,
        "MB at least": least_bytes / 1e6,
        "GFLOP of products": flops / 1e9,
    }
    if known := accelerator_of(device.device_kind):
        least = max(least_bytes / (1e9 * known.memory_gb_per_s), flops / (1e12 * known.peak_tflops))
        row["of the limit"] = f"{least / median:.0%}"
    return row | {"times_s": times}
