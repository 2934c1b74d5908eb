"""Files of the PyTorch writer are read by this package, and by PyTorch if the reference environment exists."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from asr_jax.pretrained.torch_files import load_torch
from asr_jax.pretrained.torch_writer import save_torch

REFERENCE = Path(__file__).parents[2] / ".venv-reference/bin/python"
TREE = {
    "model": {
        "encoder.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
        "scale": np.float32(2.5), "nothing": np.zeros((0, 3), np.float32), "ü.bias": np.full(300, -1.0, np.float32),
    },
    "counts": {"batches": np.array(7), "wide": np.array([2**40, -1])},
}  # fmt: skip


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    save_torch(TREE, tmp_path / "w.pt")
    found = load_torch(tmp_path / "w.pt")
    assert found.keys() == TREE.keys()
    for name, arrays in TREE.items():
        assert found[name].keys() == arrays.keys()
        for key, array in arrays.items():
            assert found[name][key].dtype == np.asarray(array).dtype, key
            np.testing.assert_array_equal(found[name][key], array, err_msg=key)


@pytest.mark.slow  # imports PyTorch
def test_pytorch_reads_it_without_running_code(tmp_path: Path) -> None:
    if not REFERENCE.exists():
        pytest.skip("no environment of scripts/setup_reference.sh")
    save_torch(TREE, tmp_path / "w.pt")
    code = (
        "import sys, torch; found = torch.load(sys.argv[1], weights_only=True); model = found['model'];"
        "assert model['encoder.weight'].tolist() == torch.arange(24.).view(2, 3, 4).permute(2, 0, 1).tolist();"
        "assert model['scale'].item() == 2.5 and model['nothing'].shape == (0, 3) and model['ü.bias'].sum() == -300;"
        "assert found['counts']['wide'].tolist() == [2**40, -1] and found['counts']['batches'].item() == 7"
    )
    done = subprocess.run([REFERENCE, "-c", code, tmp_path / "w.pt"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
