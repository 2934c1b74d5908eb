"""Distribution of the rows of a batch over parts, devices and processes.

Padding rows make the number of rows divisible.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from asr_jax.core.errors import UserError
from asr_jax.core.meshes import num_row_devices


@dataclass(frozen=True)
class Layout:
    """Places of the rows of a batch.

    A batch is computed in parts, one after another. All parts have the same number of rows, which the number of devices
    divides, and each process loads consecutive rows of each part. Padding rows follow the rows of a batch, or
    the rows of each micro-batch with `sub_batches`.
    """

    num_devices: int = 1
    split: int = 1
    """Largest number of parts of a batch."""
    sub_batches: int = 1
    """Number of micro-batches of a batch. All parts have the same number of micro-batches."""
    process_index: int = 0
    num_processes: int = 1

    def __post_init__(self) -> None:
        if self.num_devices % self.num_processes:
            raise UserError(
                f"{self.num_devices} devices in {self.num_processes} processes: expected the same number of devices in "
                "every process"
            )
        if self.sub_batches % self.split and self.sub_batches > 1:
            raise UserError(
                f"training.split is {self.split} and model.sub_batches is {self.sub_batches}: expected a split that "
                "divides the micro-batches of a batch"
            )

    @classmethod
    def of(cls, mesh: Mesh, *, split: int = 1, sub_batches: int = 1) -> "Layout":
        """Returns the layout for the devices of a mesh and for this process.

        Args:
            mesh: Devices of all processes, or of this one alone.
            split: Largest number of parts of a batch.
            sub_batches: Number of micro-batches of a batch.
        """
        processes = sorted({device.process_index for device in mesh.devices.flat})
        return cls(num_row_devices(mesh), split, sub_batches, processes.index(jax.process_index()), len(processes))

    def num_rows(self, batch_size: int) -> int:
        """Returns the number of rows of a part on all devices, with padding rows."""
        return self._groups_of_part * self._group(batch_size)[1]

    def shape(self, bucket: Any) -> Any:
        """Returns a `Bucket` with the rows of a part."""
        return replace(bucket, batch_size=self.num_rows(bucket.batch_size))

    def num_parts(self, batch_size: int) -> int:
        """Returns the number of parts of a batch."""
        own, _ = self._group(batch_size)
        return math.ceil(math.ceil(batch_size / own) / self._groups_of_part)

    def places(self, batch_size: int) -> Int[np.ndarray, " N"]:
        """Returns the number in the batch of each row that this process computes, part by part; -1 for padding rows."""
        own, padded = self._group(batch_size)
        num_parts = self.num_parts(batch_size)
        rows = np.arange(num_parts * self._groups_of_part)[:, None] * own + np.arange(own)
        places = np.pad(np.where(rows < batch_size, rows, -1), ((0, 0), (0, padded - own)), constant_values=-1)
        return places.reshape(num_parts, self.num_processes, -1)[:, self.process_index].ravel()

    def parts(self, batch: Any, batch_size: int) -> list[Any]:
        """Returns the parts of a batch whose arrays have this process's rows in the order of `places`."""
        size = self.num_rows(batch_size) // self.num_processes
        firsts = range(0, self.num_parts(batch_size) * size, size)
        return [jax.tree.map(lambda rows: rows[first : first + size], batch) for first in firsts]  # noqa: B023

    @property
    def _groups_of_part(self) -> int:
        return max(self.sub_batches // self.split, 1)

    def _group(self, batch_size: int) -> tuple[int, int]:
        """Returns the number of rows of a group without and with padding; a group is a micro-batch or a part."""
        unit = self.num_devices // math.gcd(self.num_devices, self._groups_of_part)
        own = math.ceil(batch_size / max(self.sub_batches, self.split))
        padded = math.ceil(own / unit) * unit
        return (own if self.sub_batches > 1 else padded), padded
