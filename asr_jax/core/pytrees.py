"""Pytrees of nested dicts seen as flat dicts with readable paths: `encoder/stack_0/layers/norm/bias`."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import numpy as np
from flax import struct

Tree = Any
AnyArray = Any
"""NumPy's on the host, JAX's on a device, or what stands for one before it is computed: shapes are checked of all."""


class Node(struct.PyTreeNode):
    """A frozen dataclass that is a pytree. Its fields are not checked: JAX and Orbax build it of stand-ins as well,
    which have no shapes.
    """

    __no_type_check__: ClassVar[bool] = True


def flatten(tree: Tree) -> dict[str, Any]:
    """Leaves by path, its parts joined by '/', of any pytree; `unflatten` inverts it for nested dicts."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts from paths."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return tree


def pick(tree: Tree, chosen: Callable[[str], bool]) -> dict[str, Any]:
    """The part of nested dicts whose paths are chosen."""
    return unflatten({path: leaf for path, leaf in flatten(tree).items() if chosen(path)})


def join(*parts: Tree) -> dict[str, Any]:
    """Nested dicts from parts that have no path in common."""
    return unflatten({path: leaf for part in parts for path, leaf in flatten(part).items()})


def digest_of(tree: Tree) -> str:
    """Equal where all leaves are."""
    digest = hashlib.sha256()
    for path, leaf in flatten(tree).items():
        array = np.asarray(leaf)
        digest.update(f"{path}{array.dtype}{array.shape}".encode())
        digest.update(np.asarray(array, order="C"))
    return digest.hexdigest()[:16]


def num_elements(tree: Tree) -> int:
    """How many numbers a tree of arrays or shapes holds: for parameters, their count."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


def num_bytes(tree: Tree) -> int:
    """Bytes of a tree of arrays or shapes."""
    return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
