"""Compiles, times, counts and traces the forward pass and the training step of one batch."""

import functools
import gzip
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from asr_jax.audio.features import FrontEnd
from asr_jax.cli.benchmark.updating import SETTLED
from asr_jax.config import Experiment
from asr_jax.core.batch import Batch
from asr_jax.core.devices import devices
from asr_jax.core.meshes import data_mesh
from asr_jax.core.precision import set_products
from asr_jax.core.programs import products
from asr_jax.core.pytrees import num_elements
from asr_jax.core.random_streams import random_streams
from asr_jax.optim.schedules import RunLength
from asr_jax.training.initial_state import initial_state, lower_initial_state
from asr_jax.training.recipe import make_recipe
from asr_jax.training.step import apply_update, gradient_of

CONTAINERS = ("while", "call", "conditional")
"""XLA operations that contain others; a trace lists both, so these are not counted."""


class Stepping:
    """A model with initial weights and a random batch of ready features, without augmentation."""

    def __init__(self, experiment: Experiment, *, rows: int, seconds: float, labels: int, vocabulary: int) -> None:
        settings, precision = replace(experiment.model, augment=()), experiment.training.precision
        set_products(precision)
        model = settings.build(vocab_size=vocabulary, blank_id=vocabulary - 1, precision=precision)
        recipe = make_recipe(replace(experiment, model=settings), model, RunLength(10 * SETTLED, SETTLED))
        state, self._average = initial_state(lower_initial_state(recipe, seed=0).compile(), data_mesh(1))
        self._state = state.replace(updates=jnp.int32(SETTLED))
        self._batch = _batch(settings.front_end, rows, seconds, labels, vocabulary)
        self.num_frames = int(self._batch.signal.shape[1])
        self._arguments: tuple[Any, ...] = (self._state, self._state.carried, self._batch, None, jnp.int32(0), {})

        def forward(state: Any, batch: Batch) -> Any:
            streams = random_streams(state.key, state.updates)
            return model.apply(recipe.of_model(state), batch, step=state.updates, mutable=["batch_stats"], rngs=streams)

        self._function = functools.partial(gradient_of, recipe)
        self._forward = jax.jit(forward).lower(self._state, self._batch).compile()
        self._gradient = jax.jit(self._function).lower(*self._arguments).compile()
        self._accumulated = self._gradient(*self._arguments)
        update = jax.jit(functools.partial(apply_update, recipe))
        self._update = update.lower(self._state, self._average, self._accumulated).compile()

    def times(self, repeats: int, *, settling_s: float = 0.0) -> dict[str, list[float]]:
        """Seconds of each part, measured `repeats` times after `settling_s` seconds of other calls."""
        forward, gradient, update = (
            _seconds(call, repeats, settling_s)
            for call in (
                lambda: self._forward(self._state, self._batch),
                lambda: self._gradient(*self._arguments),
                lambda: self._update(self._state, self._average, self._accumulated),
            )
        )
        step = [a + b for a, b in zip(gradient, update, strict=True)]
        return {"forward": forward, "gradient": gradient, "update": update, "step": step}

    def cost(self) -> dict[str, float]:
        """Cost of the gradient.

        Returns:
            Number of parameters; floating-point operations of the products (multiplications and additions); bytes of
            temporary memory; bytes read and written; and the factor by which loops multiply the products (`loops`).
            XLA counts the bytes of the body of a loop once; they are multiplied by `loops`, which is exact if the
            layers of a scanned stack dominate.
        """
        jaxpr = jax.make_jaxpr(self._function)(*self._arguments).jaxpr
        flops, once = products(jaxpr), products(jaxpr, loops=False)
        found = self._gradient.cost_analysis() or {}
        return {
            "parameters": num_elements(self._state.params),
            "flops": flops,
            "memory": float(getattr(self._gradient.memory_analysis(), "temp_size_in_bytes", "nan")),
            "bytes": float(found.get("bytes accessed", float("nan"))) * flops / max(once, 1.0),
            "loops": flops / max(once, 1.0),
        }

    def operations(self, *, number: int) -> list[dict[str, Any]]:
        """Operations that take most of the time of the gradient, named after their modules.

        Returns an empty list if the trace of the device does not contain names of operations.
        """
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder, profiler_options=options):
                jax.block_until_ready(self._gradient(*self._arguments))
            files = list(Path(folder).rglob("*.trace.json.gz"))
            events = [e for file in files for e in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]]
        return largest_operations(events, self._gradient.as_text() or "", number=number)


def largest_operations(events: list[dict[str, Any]], program: str, *, number: int) -> list[dict[str, Any]]:
    """Operations of a trace that take most of the time.

    Args:
        program: Text of the compiled program, which maps operations to modules.

    Returns:
        Name, share of the time of all operations, and number of calls of each operation.
    """
    sources = dict(re.findall(r'^\s*(?:ROOT )?%?([\w.\-]+) = .*?op_name="([^"]*)"', program, re.MULTILINE))
    times, calls = Counter[str](), Counter[str]()
    for event in events:
        operation = event.get("args", {}).get("hlo_op", "")
        if event.get("ph") == "X" and operation and operation.split(".")[0] not in CONTAINERS:
            name = readable(sources.get(operation, operation))
            times[name] += event["dur"]
            calls[name] += 1
    total = sum(times.values())
    return [{"name": name, "share": us / total, "calls": calls[name]} for name, us in times.most_common(number)]


def readable(source: str) -> str:
    """Converts JAX's name of an operation to its path of modules, such as `backward: encoder/stack_*/dot_general`.

    Numbers of modules are replaced by `*`.
    """
    outside = ("while", "body", "closed_call")
    parts = [part for part in source.split("/") if not re.search(r"\(|^Recogniser\b", part) and part not in outside]
    alike = [re.sub(r"_\d+$", "_*", re.sub(r"\.\d+$", "", part)) for part in parts or [source]]
    return ("backward: " if "transpose(" in source else "") + "/".join(alike)


def machine_rates(repeats: int) -> dict[str, float]:
    """Measures this machine: operations per second of products of square matrices, and bytes copied per second.

    Bytes copied are the sum of bytes read and bytes written.
    """
    on_cpu = devices()[0].platform == "cpu"
    size, elements = (1536, 2**25) if on_cpu else (8192, 2**28)
    found: dict[str, float] = {"size": size}
    multiply = jax.jit(lambda a, b: a @ b)
    for name, dtype in (("f32", jnp.float32), ("bf16", jnp.bfloat16)):
        a = jnp.ones((size, size), dtype)
        found[name] = 2 * size**3 / min(_seconds(functools.partial(multiply, a, a), repeats))
    array = jnp.ones(elements, jnp.float32)
    found["copy"] = 2 * array.nbytes / min(_seconds(functools.partial(jax.jit(lambda x: x + 1), array), repeats))
    return found


def _seconds(call: Callable[[], Any], repeats: int, settling_s: float = 0.0) -> list[float]:
    settled = time.perf_counter() + settling_s
    jax.block_until_ready(call())
    while time.perf_counter() < settled:
        jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - begun)
    return times


def _batch(front_end: FrontEnd, rows: int, seconds: float, labels: int, vocabulary: int) -> Batch:
    size = int(seconds * front_end.rate_hz)
    lengths = jnp.full(rows, size, jnp.int32)
    audio = jax.ShapeDtypeStruct((rows, size), jnp.int16)
    shape = jax.eval_shape(lambda audio: front_end(audio, lengths).values, audio).shape
    rng = np.random.default_rng(0)
    return Batch(
        audio=None,
        features=jnp.asarray(rng.normal(size=shape), jnp.float32),
        lengths=jnp.full(rows, shape[1], jnp.int32),
        tokens=jnp.asarray(rng.integers(0, vocabulary - 1, (rows, labels)), jnp.int32),
        token_lengths=jnp.full(rows, labels, jnp.int32),
        weights=jnp.ones(rows),
        utterances=jnp.arange(rows, dtype=jnp.int32),
    )
