"""Every row of a batch is computed once, whatever the devices, the processes and the parts."""

import numpy as np
import pytest

from asr_jax.core.errors import UserError
from asr_jax.core.layout import Layout


def layouts(num_devices: int, num_processes: int, **settings: int) -> list[Layout]:
    return [Layout(num_devices, process_index=i, num_processes=num_processes, **settings) for i in range(num_processes)]


@pytest.mark.parametrize("batch_size", [1, 5, 8, 13])
@pytest.mark.parametrize("split", [1, 2, 3])
@pytest.mark.parametrize(("num_devices", "num_processes"), [(1, 1), (2, 1), (4, 2), (3, 3)])
def test_every_row_is_in_one_part_on_one_process(
    batch_size: int, split: int, num_devices: int, num_processes: int
) -> None:
    processes = layouts(num_devices, num_processes, split=split)
    rows, parts = processes[0].num_rows(batch_size), processes[0].num_parts(batch_size)
    assert rows % num_devices == 0
    assert parts <= split
    assert (parts - 1) * rows < batch_size <= parts * rows, "no part has only padding"
    loaded = [each.parts(each.places(batch_size), batch_size) for each in processes]
    together = np.concatenate([np.concatenate(part) for part in zip(*loaded, strict=True)])
    assert together.tolist() == [*range(batch_size), *[-1] * (parts * rows - batch_size)]


def test_padding_does_not_move_rows_between_micro_batches() -> None:
    layout = Layout(4, sub_batches=2)
    assert layout.places(6).reshape(2, -1).tolist() == [[0, 1, 2, -1], [3, 4, 5, -1]]
    parts = Layout(4, split=2, sub_batches=2).parts(Layout(4, split=2, sub_batches=2).places(6), 6)
    assert [part.tolist() for part in parts] == [[0, 1, 2, -1], [3, 4, 5, -1]]


def test_what_cannot_be_laid_out_is_refused() -> None:
    with pytest.raises(UserError, match="3 devices in 2 processes"):
        Layout(3, num_processes=2)
    with pytest.raises(UserError, match=r"training\.split is 3 and model\.sub_batches is 4"):
        Layout(1, split=3, sub_batches=4)
