"""A cache of traced programs: tracing a model takes longer than loading its compiled program.

JAX's compilation cache is keyed by the text of a program, so a program is traced and lowered before each look-up. This
cache stores that text. Its key has the package's sources, the versions of the libraries, JAX's settings, the device,
the shapes of the arguments and the inputs that the caller adds (`Programs.inputs`). The compiler gets the same text on
the first start and on later ones, with and without the cache, so a continued run computes the same bits.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import logging
import math
import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export
from jax.experimental.compilation_cache.compilation_cache import reset_cache
from jax.sharding import NamedSharding
from jax.stages import Compiled, Lowered

from asr_jax.core.devices import devices, tracing_for
from asr_jax.core.environment import has_default_cache
from asr_jax.core.files import write_whole
from asr_jax.core.processes import check_shared
from asr_jax.core.text_files import read_text

LIBRARIES = ("asr-jax", "jax", "jaxlib", "flax", "optax", "numpy")
UNUSED_DAYS = 30.0
Kept = tuple[export.Exported, Any, float]
"""An exported program of the flat arguments, the tree structure of its outputs, and its floating-point operations."""
logger = logging.getLogger(__name__)


class Program(NamedTuple):
    """A program before compilation."""

    lowered: Lowered
    flops: float
    """Floating-point operations on all devices together, as `products` counts them."""
    options: tuple[tuple[str, Any], ...] = ()
    """Names and values of options of the compiler."""

    def compile(self) -> Compiled:
        return self.lowered.compile(dict(self.options) or None)


@dataclass(frozen=True)
class Programs:
    """Lowers functions and caches their traced programs between starts.

    The key of a program consists of the package's sources, the versions of `LIBRARIES`, JAX's settings, XLA's flags,
    the devices, the function's name, the tree structure, shapes, dtypes and shardings of its arguments,
    the sharding of its outputs, and `inputs`.
    All values that the function closes over must be in `inputs` or be constants of the package's sources.
    """

    inputs: tuple[tuple[str, str], ...] | None = None
    """Names and values that functions close over, such as settings and sizes. None: functions are traced at every
    start, for example because a user's own classes are used, which are not part of the package's sources."""
    options: tuple[tuple[str, Any], ...] = ()
    """Names and values of options of the compiler."""
    kernels: tuple[tuple[str, str], ...] = ()
    """Names of kernels and of their selected implementations, for functions of arrays with shardings."""

    def given(self, **more: object) -> "Programs":
        """Returns `Programs` with more named inputs. If `inputs` is None, it remains None."""
        if self.inputs is None:
            return self
        return replace(self, inputs=(*self.inputs, *((name, repr(value)) for name, value in sorted(more.items()))))

    def lower(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        donate_argnums: tuple[int, ...] = (),
        out_shardings: Any = None,
    ) -> Program:
        """Returns `jax.jit(function, …).lower(*arguments)` and its floating-point operations; traces only if needed.

        Args:
            *arguments: Trees of `jax.ShapeDtypeStruct`.
            donate_argnums: Arguments whose buffers are donated to the outputs, as for `jax.jit`.
            out_shardings: One sharding for all outputs, or None for JAX's choice.
        """
        jitted = functools.partial(jax.jit, donate_argnums=donate_argnums)
        shardings = {} if out_shardings is None else {"out_shardings": out_shardings}
        leaves, in_tree = jax.tree.flatten(arguments)
        chosen = _devices_of(leaves)
        function = _traced_for(chosen, self.kernels, name, function)
        are_present = not chosen or chosen[0] in devices()
        found = (
            None if self.inputs is None or not are_present else self._kept(name, function, leaves, in_tree, shardings)
        )
        if not found:
            traced = jitted(function, **shardings).trace(*arguments)
            return Program(traced.lower(), products(traced.jaxpr.jaxpr), self.options)
        program, out_tree, flops = found

        def call(*arguments: Any) -> Any:
            return jax.tree.unflatten(out_tree, program.call(*jax.tree.leaves(arguments)))

        call.__name__ = name  # profiles show it
        return Program(jitted(call, **shardings).lower(*arguments), flops, self.options)

    def _kept(
        self, name: str, function: Callable[..., Any], leaves: list[Any], in_tree: Any, shardings: dict[str, Any]
    ) -> Kept | None:
        """Returns the traced program of the cache, which is added if necessary; None if it cannot be serialised."""
        folder = _folder()
        path = folder and folder / f"{name}-{self._key(name, leaves, in_tree, shardings)}"
        if path and (found := _read(path)):
            return found
        try:
            found = _export(function, leaves, in_tree, shardings)
        except (ValueError, NotImplementedError) as error:  # a kernel that jax.export cannot serialise stably
            logger.warning("%s is traced at every start: %s", name, str(error).partition("\n")[0])
            return None
        if path:
            _write(path, *found)
        return found

    def memory(self, name: str, function: Callable[..., Any], *arguments: Any, out_shardings: Any = None) -> int:
        """Returns the memory of a compiled function on one device in bytes, as `memory_of`; arguments as of `lower`."""
        leaves, in_tree = jax.tree.flatten(arguments)
        folder = None if self.inputs is None else _folder()
        key = self._key(name, leaves, in_tree, {"out_shardings": out_shardings})
        path = folder and folder / f"{name}-memory-{key}"
        if path:
            with contextlib.suppress(OSError, ValueError):
                found = int(read_text(path))
                os.utime(path)
                return found
        program = self.lower(name, function, *arguments, out_shardings=out_shardings)
        found = memory_of(program.compile())
        if path:
            with contextlib.suppress(OSError):  # without the file, the next start takes longer
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, f"{found}\n")
        return found

    def _key(self, name: str, leaves: list[Any], in_tree: Any, shardings: dict[str, Any]) -> str:
        return _digest(
            SOURCES,
            str(sorted(_surroundings().items())),
            name,
            repr(self),
            str(in_tree),
            str(shardings),
            *(f"{leaf} {leaf.sharding}" for leaf in leaves),
            *sorted({f"{each.platform} {each.device_kind}" for each in _devices_of(leaves)}),
        )


@contextlib.contextmanager
def compiled_in(folder: Path, platform: str) -> Iterator[None]:
    """Keeps traced and compiled programs in the folder of a run, unless they are for a CPU.

    XLA chooses kernels for GPUs by timing them, and the kernels determine the rounding: a run that is continued on
    another machine computes the same bits only with the programs that it began with. In addition, all processes must
    share the folder (`core.processes.join`), as they share that of the run.

    If JAX_COMPILATION_CACHE_DIR is set, its folder is used instead, which all processes must share too.

    Args:
        folder: Folder for the programs. It is created when the first one is written.
        platform: JAX's name of the kind of devices: cpu, gpu or tpu.

    Raises:
        UserError: If the folder of JAX_COMPILATION_CACHE_DIR is not shared.
    """
    before = jax.config.jax_compilation_cache_dir
    if platform == "cpu" or not has_default_cache():
        if platform != "cpu" and before and "://" not in before:
            check_shared(Path(before), "JAX_COMPILATION_CACHE_DIR")
        yield
        return
    try:
        _set_cache(str(folder.absolute()))
        yield
    finally:
        _set_cache(before)


def _set_cache(folder: str | None) -> None:
    jax.config.update("jax_compilation_cache_dir", folder)
    reset_cache()  # JAX opens the folder at the first program


def _devices_of(leaves: Sequence[Any]) -> list[jax.Device]:
    """Returns the devices of the shardings of arguments; empty if the arguments have none."""
    meshes = (leaf.sharding.mesh for leaf in leaves if isinstance(leaf.sharding, NamedSharding))
    mesh = next(meshes, None)
    return [] if mesh is None else list(mesh.devices.flat)


def _traced_for(
    chosen: Sequence[jax.Device], kernels: tuple[tuple[str, str], ...], name: str, function: Callable[..., Any]
) -> Callable[..., Any]:
    """Returns the function, which is traced for the given devices, if there are any, with the given kernels."""
    if not chosen:
        return function

    def traced(*arguments: Any) -> Any:
        with tracing_for(chosen, kernels):
            return function(*arguments)

    traced.__name__ = name  # profiles show it
    return traced


def memory_of(compiled: Any) -> int:
    """Returns the memory of an executable on one device in bytes, according to XLA's analysis.

    It is the sum of arguments, temporary values and outputs, without those that share memory. The resident memory grows
    by this sum. `peak_memory_in_bytes` is far off on CPUs.
    """
    memory = compiled.memory_analysis()
    used = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes
    return int(used - memory.alias_size_in_bytes)


TRACED = Programs()
"""Traces every function at every start."""


def _export(function: Callable[..., Any], leaves: list[Any], in_tree: Any, shardings: dict[str, Any]) -> Kept:
    """Exports a function of the flat arguments. Returns it, the tree structure of its outputs, and its operations."""
    out_trees = []

    def flat(*leaves: Any) -> list[Any]:
        outputs, out_tree = jax.tree.flatten(function(*jax.tree.unflatten(in_tree, leaves)))
        out_trees.append(out_tree)
        return outputs

    jitted = jax.jit(flat, **shardings)
    flops = products(jitted.trace(*leaves).jaxpr.jaxpr)
    return export.export(jitted)(*leaves), out_trees[0], flops  # jit's cache avoids a second trace


def products(jaxpr: Any, *, loops: bool = True) -> float:
    """Returns the floating-point operations of a jaxpr's matrix products and convolutions.

    Of the branches of a condition, the one with the most operations counts. The body of a while loop counts once.

    Args:
        loops: Whether the body of a scan counts as often as it runs; otherwise it counts once.
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
            spread = float(np.prod(params["lhs_dilation"]))  # products with the zeros between values do not count
            total += 2 * out * float(np.prod(kernel)) / kernel[numbers.rhs_spec[0]] / spread
        elif name == "cond":
            total += max(products(branch.jaxpr, loops=loops) for branch in params["branches"])
        else:
            times = params["length"] if name == "scan" and loops else 1
            if name == "shard_map":  # its body has the rows of one device
                times = math.prod(params["mesh"].shape[axis] for axis in params["newly_manual_axes"])
            inner = [getattr(value, "jaxpr", value) for value in params.values()]
            total += times * sum(products(each, loops=loops) for each in inner if hasattr(each, "eqns"))
    return total


def _folder() -> Path | None:
    """Returns the folder of traced programs, beside JAX's compiled ones.

    Returns None if JAX has no cache or a remote one, or if the sources on disk were edited since this process loaded
    them.
    """
    folder = jax.config.jax_compilation_cache_dir
    if not folder or "://" in folder or not jax.config.jax_enable_compilation_cache or _sources() != SOURCES:
        return None
    return Path(folder) / "traced"


def _read(path: Path) -> Kept | None:
    """Returns the program of a file, or None if the file is missing or damaged."""
    try:
        seal, content = path.read_bytes().split(b"\n", 1)
    except (OSError, ValueError):
        return None
    with contextlib.suppress(OSError):  # the file may belong to another user
        os.utime(path)
    if seal.decode(errors="replace") != hashlib.sha256(content).hexdigest():
        return None
    # JAX's cache has machine code in the same place, so unpickling from it adds no risk.
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
        logger.warning("%s cannot be written, so the next start takes longer: %s", path, error)


def _sources() -> str:
    """Returns a digest of the package's sources on disk."""
    root = Path(__file__).parents[1]
    return _digest(
        *(
            f"{path.relative_to(root)} {read_text(path)}"
            for path in sorted((*root.rglob("*.py"), *root.rglob("*.json")))
        )
    )


def _surroundings() -> dict[str, str]:
    """Returns the versions of the libraries, JAX's settings, XLA's flags and the devices. The keys are their names."""
    settings = {name: value for name, value in jax.config.values.items() if "cache" not in name}
    return library_versions() | {
        "jax-triton": _version("jax-triton"),
        "platform version": jax.devices()[0].client.platform_version,
        "devices": f"{jax.devices()} {devices()}",
        "settings": str(sorted(settings.items(), key=str)),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }


def _version(library: str) -> str:
    """Returns the version of a library that may be missing, as this package is if it was not installed."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def library_versions() -> dict[str, str]:
    """Returns the versions of this package and of the libraries that compute."""
    return {library: _version(library) for library in LIBRARIES}


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


# Digest at the time this process loads the sources; they may be edited later.
SOURCES = _sources()
