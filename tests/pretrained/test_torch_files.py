"""Files that PyTorch wrote (scripts/goldens/torch_files.py), read without it: both formats, complete and truncated."""

import io
import pickle
import sys
import types
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from asr_jax.core.errors import UserError
from asr_jax.pretrained.torch_files import load_torch, state_dict
from tests.support import GOLDENS, golden_cases

FILES = Path(__file__).parent / "files"


@pytest.mark.parametrize("name", ["archive.pt", "legacy.pt"])
def test_tensors_of_all_kinds_come_back(name):
    loaded = load_torch(FILES / name)
    assert loaded["epoch"] == 3
    assert vars(loaded["args"]) == {"lr": 0.1, "layers": [1, 2]}
    found = state_dict(loaded)
    base = np.arange(24, dtype=np.float32)
    expected = {
        "whole": base.reshape(4, 6), "transposed": base.reshape(4, 6).T, "part": base[5:9],
        "bf16": np.array([1.5, -2.0], ml_dtypes.bfloat16), "f16": np.array([0.25], np.float16),
        "count": np.array(7), "flags": np.array([True, False]), "empty": np.zeros((0, 3), np.float32),
        "parameter": np.full(2, 3.0, np.float32),
    }  # fmt: skip
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        assert found[key].dtype == array.dtype, key
        np.testing.assert_array_equal(found[key], array, err_msg=key)


@pytest.mark.parametrize("name", ["archive.pt", "legacy.pt"])
def test_every_cut_of_a_file_is_an_error_and_no_traceback(name, tmp_path):
    content, path = (FILES / name).read_bytes(), tmp_path / "cut.pt"
    for size in range(0, len(content) - 1, 37):
        path.write_bytes(content[:size])
        with pytest.raises(UserError, match=r"cut\.pt cannot be read"):
            load_torch(path)
    with pytest.raises(UserError, match="No such file"):
        load_torch(tmp_path / "none.pt")


def test_nothing_of_a_file_is_run(tmp_path):
    class Command:
        def __reduce__(self):
            return Path.touch, (tmp_path / "touched",)

    path = tmp_path / "evil.pt"
    with path.open("wb") as file:
        for value in (0x1950A86A20F9469CFC6C, 1001, {}, {"model": Command()}, []):
            pickle.dump(value, file, protocol=2)
    loaded = load_torch(path)
    assert not (tmp_path / "touched").exists()
    with pytest.raises(UserError, match="contains no named weights"):
        state_dict(loaded)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes an archive like torch.save, with a tensor of given offset, size and stride in a storage of six values."""
    stand_in = types.ModuleType("torch._utils")
    exec("def _rebuild_tensor_v2(*arguments): pass\nclass FloatStorage: pass", vars(stand_in))
    for name in ("torch", "torch._utils"):
        monkeypatch.setitem(sys.modules, name, stand_in)
    stand_in._rebuild_tensor_v2.__module__, stand_in.FloatStorage.__module__ = "torch._utils", "torch"
    storage = object()

    class Tensor:
        def __init__(self, *place):
            self.place = place

        def __reduce__(self):
            return stand_in._rebuild_tensor_v2, (storage, *self.place)

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            return ("storage", stand_in.FloatStorage, "0", "cpu", 6) if value is storage else None

    def write(*place):
        content = io.BytesIO()
        Pickler(content, protocol=2).dump({"weight": Tensor(*place)})
        with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
            archive.writestr("model/data.pkl", content.getvalue())
            archive.writestr("model/data/0", np.arange(6, dtype=np.float32).tobytes())
        return tmp_path / "model.pt"

    return write


def test_a_tensor_is_a_view_of_its_storage(written):
    np.testing.assert_array_equal(load_torch(written(1, (2, 2), (2, 1)))["weight"], [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    "place",
    [(0, (7,), (1,)), (-1, (2,), (1,)), (2, (3, 2), (-1, 2)), (5, (2,), (-3,)), (0, (-2,), (1,))],
    ids=["too long", "before the start", "negative stride", "backwards", "negative size"],
)
def test_a_tensor_outside_of_its_storage_is_an_error(written, place):
    with pytest.raises(UserError, match="exceeds its storage of 6 values"):
        load_torch(written(*place))


def cases():
    """Golden cases that have a checkpoint of fairseq."""
    found = golden_cases("fairseq_w2v2", "*")
    files = sorted((GOLDENS / "fairseq_w2v2").glob("*.pt"))
    known = {case.values[0].path.stem: case.values[0] for case in found if case.values[0]}
    return [
        pytest.param(path, known[stem], id=path.stem)
        for path in files
        for stem in [path.stem.removesuffix("_oldargs")]
        if stem in known
    ] or [pytest.param(None, None, marks=pytest.mark.skip(reason=f"no *.pt under {GOLDENS}/fairseq_w2v2"))]


@pytest.mark.golden
@pytest.mark.parametrize(("path", "case"), cases())
def test_fairseq_checkpoints_hold_what_it_computed_with(path, case):
    prefix = "param/"
    expected = {name.removeprefix(prefix): it for name, it in case.arrays().items() if name.startswith(prefix)}
    found = state_dict(load_torch(path))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
