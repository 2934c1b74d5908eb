"""Makes programs that initialise many parameters smaller: one loop draws all random bits.

XLA compiles each draw to hundreds of operations, and the derivation of each key to a loop. The program of the initial
state of a small Zipformer, with 176 draws, therefore took longer to compile than that of its gradient.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun, jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import Array, UInt32

from asr_jax.core.pytrees import Tree

GENERATOR = "rbg"
"""Generator of the draws. Its words come in blocks of four, each of which depends only on the key and a counter."""
OF_KEYS = ("random_seed", "random_fold_in", "random_split", "random_clone")
TRANSPARENT = ("jit", "remat2", "checkpoint", "scan")
"""Operations with an inner program from which draws can be moved."""
FEWEST_WORDS, MOST_WORDS, NUM_ITERATIONS = 2**10, 2**19, 512
"""Limits of the number of words that an iteration draws, and desired number of iterations."""


class Draw(NamedTuple):
    """Random words of an array, or of the arrays of all layers of a scan."""

    keys: UInt32[np.ndarray, "L 4"]
    shape: tuple[int, ...]
    """Shape of the array of one layer."""
    is_scanned: bool


def drawn_at_once(function: Callable[[], Tree]) -> Callable[[], Tree]:
    """Returns a function with the same results, in which one loop draws all random bits.

    On CPUs, the results are equal bit by bit. Operations that do not contribute to the results are left out.

    Args:
        function: Function without arguments that draws with keys of `GENERATOR`. If it draws with other keys, in
            branches or in loops with a carry, the returned function calls it unchanged.
    """

    def at_once() -> Tree:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)()
        leaves, tree = jax.tree.flatten(shapes)
        jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(leaves), instantiate=True)
        draws: list[Draw] = []
        try:
            with jax.ensure_compile_time_eval():  # keys depend only on constants
                _collect(jaxpr, closed.consts, (), draws, length=0)
        except NotImplementedError:
            return function()
        return jax.tree.unflatten(tree, _replay(jaxpr, closed.consts, (), _drawn(draws)))

    return at_once


def _collect(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any], draws: list[Draw], *, length: int) -> list[Any]:
    """Computes the keys of a program and adds its draws to a list.

    Args:
        args: Arguments of the program; None for those that are not known.
        length: Length of the scan that the program is the body of; keys then have a leading axis of this length.
            0: no scan.

    Returns:
        Outputs that are keys; None for all other outputs.
    """
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        inputs = _inputs(equation, values)
        outputs: Sequence[Any] = [None] * len(equation.outvars)
        if name in OF_KEYS and all(each is not None for each in inputs):
            bind = functools.partial(equation.primitive.bind, **params)
            axes = [
                0 if np.ndim(each) > _num_axes(var) else None for each, var in zip(inputs, equation.invars, strict=True)
            ]
            outputs = [jax.vmap(bind, axes)(*inputs) if 0 in axes else bind(*inputs)]
        elif name == "random_bits":
            draws.append(_draw(inputs[0], params, _num_axes(equation.invars[0]), length))
        elif inner := _drawing(params):
            is_scan = name == "scan"
            if name not in TRANSPARENT or (is_scan and (length or _has_carry(equation, inner[0]))):
                raise NotImplementedError(f"draws in {name}")
            outputs = _collect(*inner, inputs, draws, length=params["length"] if is_scan else length)
        values |= dict(zip(equation.outvars, outputs, strict=True))
    return [None if isinstance(each, Literal) else values.get(each) for each in jaxpr.outvars]


def _draw(key: Any, params: dict[str, Any], num_axes: int, length: int) -> Draw:
    if key is None or num_axes or params["bit_width"] != 32 or str(jax.random.key_impl(key)) != GENERATOR:
        raise NotImplementedError("a draw of another generator, or with a key that is not known")
    keys = np.asarray(jax.random.key_data(key)).reshape(-1, 4)
    return Draw(np.broadcast_to(keys, (max(length, 1), 4)), tuple(params["shape"]), bool(length))


def _replay(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any], bits: Iterator[Array]) -> list[Any]:
    """Computes a program with given random bits.

    Returns:
        The outputs; None for keys.
    """
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        inputs = _inputs(equation, values)
        outputs: Sequence[Any] = [None] * len(equation.outvars)
        if name == "random_bits":
            outputs = [next(bits)]
        elif (inner := _drawing(params)) and name == "scan":
            outputs = _replay_scan(equation, *inner, inputs, bits)
        elif inner:
            outputs = _replay(*inner, inputs, bits)
        elif name not in OF_KEYS[1:] and all(each is not None for each in inputs):
            known = list(dict.fromkeys(var for var in equation.invars if not isinstance(var, Literal)))
            alone = jaxpr.replace(constvars=[], invars=known, outvars=equation.outvars, eqns=[equation])
            outputs = jaxpr_as_fun(ClosedJaxpr(alone, ()))(*(values[var] for var in known))
        values |= dict(zip(equation.outvars, outputs, strict=True))
    return [each.val if isinstance(each, Literal) else values[each] for each in jaxpr.outvars]


def _replay_scan(
    scan: Any, jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[Any], bits: Iterator[Array]
) -> list[Any]:
    """Computes all iterations of a scan at once."""
    axes = [
        0 if _num_axes(outer) > _num_axes(var) else None for outer, var in zip(scan.invars, jaxpr.invars, strict=True)
    ]
    drawn = [next(bits) for _ in range(_num_draws(jaxpr))]

    def iteration(inputs: Sequence[Any], drawn: Sequence[Array]) -> list[Any]:
        return _replay(jaxpr, consts, inputs, iter(drawn))

    outputs: list[Any] = jax.vmap(iteration, (axes, 0), axis_size=scan.params["length"])(list(inputs), drawn)
    return outputs


def _has_carry(scan: Any, jaxpr: Jaxpr) -> bool:
    return any(_num_axes(outer) == _num_axes(var) for outer, var in zip(scan.outvars, jaxpr.outvars, strict=True))


def _drawn(draws: Sequence[Draw]) -> Iterator[Array]:
    """Yields the bits of each draw, of a scanned one with the leading axis of the scan."""
    sizes = [math.prod(draw.shape) for draw in draws]
    total = sum(size * len(draw.keys) for size, draw in zip(sizes, draws, strict=True))
    words = min(max(2 ** math.ceil(math.log2(max(total / NUM_ITERATIONS, 1))), FEWEST_WORDS), MOST_WORDS)
    nums = [-(-size // words) for size in sizes]
    keys = np.concatenate([_keys(draw.keys, num, words) for num, draw in zip(nums, draws, strict=True)])
    found = jax.lax.map(lambda key: jax.random.bits(jax.random.wrap_key_data(key, impl=GENERATOR), (words,)), keys)
    first = 0
    for draw, size, num in zip(draws, sizes, nums, strict=True):
        last = first + num * len(draw.keys)
        bits = found[first:last].reshape(len(draw.keys), -1)[:, :size].reshape(-1, *draw.shape)
        yield bits if draw.is_scanned else bits[0]
        first = last


def _keys(keys: UInt32[np.ndarray, "L 4"], num: int, words: int) -> UInt32[np.ndarray, "N 4"]:
    """Returns the keys of the iterations of a draw: the second half of a key is a counter of blocks of four words."""
    counters = keys[:, 2:].copy().view(np.uint64) + np.arange(num, dtype=np.uint64) * np.uint64(words // 4)
    halves = np.broadcast_to(keys[:, None, :2], (len(keys), num, 2))
    return np.concatenate([halves, counters[..., None].view(np.uint32)], axis=-1).reshape(-1, 4)


def _num_axes(var: Any) -> int:
    return len(var.aval.shape)


def _inputs(equation: Any, values: dict[Any, Any]) -> list[Any]:
    return [each.val if isinstance(each, Literal) else values.get(each) for each in equation.invars]


def _drawing(params: dict[str, Any]) -> tuple[Jaxpr, Sequence[Any]] | None:
    """Returns the inner program of an operation, with its constants, if it draws."""
    for value in params.values():
        for each in value if isinstance(value, tuple) else (value,):
            jaxpr = getattr(each, "jaxpr", each)
            if isinstance(jaxpr, Jaxpr) and _num_draws(jaxpr):
                return jaxpr, getattr(each, "consts", ())
    return None


def _num_draws(jaxpr: Jaxpr) -> int:
    inner = sum(_num_draws(each) for equation in jaxpr.eqns for each in jaxprs_in_params(equation.params))
    return inner + sum(equation.primitive.name == "random_bits" for equation in jaxpr.eqns)
