"""Traced programs, kept between starts: tracing a model takes longer than loading what was compiled from it.

JAX's cache of compiled programs is found by the text of a program, which has to be traced and lowered for that. Here
the text itself is found again, by what it was made of: the package's sources, the versions of the libraries, JAX's own
settings, the device, the shapes of the arguments, and what the caller names (`Programs.inputs`). The same text goes to
the compiler the first time and every other, kept or not, so that a continued run computes the same bits.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import logging
import os
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export
from jax.stages import Lowered

from asr_jax.core.files import write_whole

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy")
UNUSED_DAYS = 30.0
Kept = tuple[export.Exported, Any, float]
"""A program of the leaves of its arguments, the tree of its outputs, and its floating-point operations."""
logger = logging.getLogger(__name__)


class Program(NamedTuple):
    """What there is of a program before it is compiled."""

    lowered: Lowered
    flops: float
    """`products` of it, of all devices together."""


@dataclass(frozen=True)
class Programs:
    """Lowers functions, and keeps their traced programs between starts.

    A kept program is found by all that it is made of: the sources of this package, the versions of `LIBRARIES`, JAX's
    settings, XLA's flags, the devices, the function's name, the structure, shapes, types and shardings of its
    arguments, and `inputs`. What the function closes over belongs in `inputs`, or in these sources.
    """

    inputs: tuple[tuple[str, str], ...] | None = None
    """Names and values of what functions close over, such as settings and sizes. None: functions are traced at every
    start, as where a user's own classes are among them, whose sources are not watched."""

    def given(self, **more: object) -> "Programs":
        """With more inputs, by their names; without any, functions are still traced at every start."""
        if self.inputs is None:
            return self
        return Programs((*self.inputs, *((name, repr(value)) for name, value in sorted(more.items()))))

    def lower(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        donate_argnums: tuple[int, ...] = (),
        out_shardings: Any = None,
    ) -> Program:
        """The same as `jax.jit(function, …).lower(*arguments)`, and its floating-point operations, without tracing if
        the same program is kept.

        Args:
            name: of the function, one for each.
            arguments: trees of `jax.ShapeDtypeStruct`.
            out_shardings: one for all outputs, or None.
        """
        jitted = functools.partial(jax.jit, donate_argnums=donate_argnums)
        shardings = {} if out_shardings is None else {"out_shardings": out_shardings}
        if self.inputs is None:
            return _traced(jitted(function, **shardings), arguments)
        leaves, in_tree = jax.tree.flatten(arguments)
        key = _digest(
            SOURCES, _surroundings(), name, repr(self.inputs), str(in_tree),
            *(f"{leaf} {leaf.sharding}" for leaf in leaves),
        )  # fmt: skip
        folder = _folder()
        found = folder and _read(folder / f"{name}-{key}")
        if not found:
            try:
                found = _export(function, leaves, in_tree, shardings)
            except (ValueError, NotImplementedError) as error:  # a kernel that JAX does not promise to read again
                logger.warning("%s is traced at every start: %s", name, str(error).partition("\n")[0])
                return _traced(jitted(function, **shardings), arguments)
            if folder:
                _write(folder / f"{name}-{key}", *found)
        program, out_tree, flops = found

        def call(*arguments: Any) -> Any:
            return jax.tree.unflatten(out_tree, program.call(*jax.tree.leaves(arguments)))

        call.__name__ = name  # as profiles show it
        return Program(jitted(call, **shardings).lower(*arguments), flops)


TRACED = Programs()
"""Traces each function at every start."""


def _traced(jitted: Any, arguments: tuple[Any, ...]) -> Program:
    traced = jitted.trace(*arguments)
    return Program(traced.lower(), products(traced.jaxpr.jaxpr))


def _export(function: Callable[..., Any], leaves: list[Any], in_tree: Any, shardings: dict[str, Any]) -> Kept:
    """The function of the arguments' leaves, the tree of its outputs, and its floating-point operations."""
    out_trees = []

    def flat(*leaves: Any) -> list[Any]:
        outputs, out_tree = jax.tree.flatten(function(*jax.tree.unflatten(in_tree, leaves)))
        out_trees.append(out_tree)
        return outputs

    jitted = jax.jit(flat, **shardings)
    flops = products(jitted.trace(*leaves).jaxpr.jaxpr)
    return export.export(jitted)(*leaves), out_trees[0], flops  # without tracing again


def products(jaxpr: Any, *, loops: bool = True) -> float:
    """Floating-point operations of a jaxpr's matrix products and convolutions. With `loops` what is scanned counts as
    often as it runs; of the branches of a condition the largest counts; bodies of other loops count once.
    """
    total = 0.0
    for equation in jaxpr.eqns:
        name, inputs, params = equation.primitive.name, equation.invars, equation.params
        out = float(np.prod(equation.outvars[0].aval.shape)) if equation.outvars else 0.0
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            total += 2 * out * float(np.prod([inputs[0].aval.shape[axis] for axis in contracted]))
        elif name == "conv_general_dilated":
            kernel, numbers = inputs[1].aval.shape, params["dimension_numbers"]
            spread = float(np.prod(params["lhs_dilation"]))  # between the values lie zeros
            total += 2 * out * float(np.prod(kernel)) / kernel[numbers.rhs_spec[0]] / spread
        elif name == "cond":
            total += max(products(branch.jaxpr, loops=loops) for branch in params["branches"])
        else:
            times = params["length"] if name == "scan" and loops else 1
            inner = [getattr(value, "jaxpr", value) for value in params.values()]
            total += times * sum(products(each, loops=loops) for each in inner if hasattr(each, "eqns"))
    return total


def _folder() -> Path | None:
    """Beside JAX's compiled programs; None where it keeps none, or none on this machine, or where the sources that are
    running are no longer those that lie there.
    """
    folder = jax.config.jax_compilation_cache_dir
    if not folder or "://" in folder or not jax.config.jax_enable_compilation_cache or _sources() != SOURCES:
        return None
    return Path(folder) / "traced"


def _read(path: Path) -> Kept | None:
    """None where there is no such file, or not as it was written."""
    try:
        seal, content = path.read_bytes().split(b"\n", 1)
    except (OSError, ValueError):
        return None
    with contextlib.suppress(OSError):  # a folder that others fill
        os.utime(path)
    if seal.decode(errors="replace") != hashlib.sha256(content).hexdigest():
        return None
    # Pickled by this package, into a folder that holds machine code as well.
    program, out_tree, flops = pickle.loads(content)
    return export.deserialize(bytearray(program)), out_tree, flops


def _write(path: Path, program: export.Exported, out_tree: Any, flops: float) -> None:
    try:
        content = pickle.dumps((bytes(program.serialize()), out_tree, flops))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        for other in path.parent.iterdir():
            if time.time() - other.stat().st_mtime > UNUSED_DAYS * 86400:
                other.unlink(missing_ok=True)
    except (OSError, ValueError, NotImplementedError, pickle.PicklingError) as error:
        logger.warning("%s could not be kept, and the next start takes longer: %s", path, error)


def _sources() -> str:
    """A digest of the package's sources as they lie on the disk."""
    root = Path(__file__).parents[1]
    return _digest(*(f"{path.relative_to(root)} {path.read_text()}" for path in sorted(root.rglob("*.py"))))


def _surroundings() -> str:
    """Of the libraries, JAX's settings and the device."""
    versions = [importlib.metadata.version(library) for library in LIBRARIES]
    client = jax.devices()[0].client
    settings = {name: value for name, value in jax.config.values.items() if "cache" not in name}
    return _digest(
        *versions, client.platform_version, str(jax.devices()),
        str(sorted(settings.items(), key=str)), os.environ.get("XLA_FLAGS", ""),
    )  # fmt: skip


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


# As they were when this process loaded them; they may be edited while it reads its data.
SOURCES = _sources()
