"""Pytrees of nested dicts as flat dicts with paths such as `encoder/stack_0/layers/norm/bias`."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

Tree = Any
AnyArray = Any
"""A NumPy array, a JAX array, or a placeholder such as `jax.ShapeDtypeStruct`. Shapes are checked for all of them."""


class Node(struct.PyTreeNode):
    """Base of frozen dataclasses that are pytrees.

    Field types are not checked at run time, because JAX and Orbax also build nodes from placeholders without shapes.
    """

    __no_type_check__: ClassVar[bool] = True


def flatten(tree: Tree) -> dict[str, Any]:
    """Returns the leaves of any pytree by path, with parts joined by '/'. `unflatten` inverts it for nested dicts."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested dicts from leaves by path."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return tree


def pick(tree: Tree, chosen: Callable[[str], bool]) -> dict[str, Any]:
    """Returns the part of nested dicts for whose paths `chosen` returns True."""
    return unflatten({path: leaf for path, leaf in flatten(tree).items() if chosen(path)})


def join(*parts: Tree) -> dict[str, Any]:
    """Merges nested dicts that have no path in common."""
    return unflatten({path: leaf for part in parts for path, leaf in flatten(part).items()})


def where_rows(chosen: AnyArray, new: Tree, old: Tree) -> Tree:
    """Returns a tree of arrays with the chosen rows of `new` and the other rows of `old`."""
    return jax.tree.map(lambda a, b: jnp.where(chosen.reshape(-1, *(1,) * (a.ndim - 1)), a, b), new, old)


def digest_of(tree: Tree) -> str:
    """Returns a digest of all paths, types, shapes and values of a tree."""
    digest = hashlib.sha256()
    for path, leaf in flatten(tree).items():
        array = np.asarray(leaf)
        digest.update(f"{path}{array.dtype}{array.shape}".encode())
        digest.update(np.asarray(array, order="C"))
    return digest.hexdigest()[:16]


def num_elements(tree: Tree) -> int:
    """Returns the number of values in a tree of arrays or shapes; for parameters, their count."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


def num_bytes(tree: Tree) -> int:
    """Returns the size in bytes of a tree of arrays or shapes."""
    return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
