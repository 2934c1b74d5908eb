"""Damaged checkpoints are refused, whichever of their files is damaged."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.checkpoints.integrity import damage
from asr_jax.checkpoints.store import Checkpoints, checkpoint_to_evaluate, refuse_damaged
from asr_jax.core.errors import RunError, UserError


def state_at(number):
    return {"w": jnp.arange(3000.0) * number, "stats": {"mean": jnp.full(7, number)}}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    with Checkpoints(folder, keep_last=3) as checkpoints:
        for number in (10, 20):
            average = {"params": {"w": jnp.full(5, number)}}
            checkpoints.save(
                number, state=state_at(number), average=average, meta={"at": number}, measured={"wer": 1 / number}
            )
    return folder


@pytest.fixture
def copy(written, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(written, folder)
    return folder


def files(folder):
    return sorted(path for path in (folder / "20").rglob("*") if path.is_file())


def restored(folder):
    with Checkpoints(folder) as checkpoints:
        shapes = jax.eval_shape(lambda: (state_at(0), {"params": {"w": jnp.zeros(5)}}))
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        state, average = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=here), shapes)
        return checkpoints.latest, checkpoints.restore(checkpoints.latest, state=state, average=average)


def test_whole_ones_are_left_alone(copy):
    assert damage(copy / "20") == ""
    assert refuse_damaged(copy) == []
    latest, (state, _, meta) = restored(copy)
    assert (latest, meta) == (20, {"at": 20})
    np.testing.assert_array_equal(state["w"], state_at(20)["w"])


def test_every_flipped_byte_is_found(written, tmp_path):
    """A byte at the beginning, in the middle and at the end of every file. Files that Orbax writes after the seal may
    differ, except for the names of item handlers, because Orbax does not read the rest."""
    flipped = found = 0
    for path in files(written):
        content = path.read_bytes()
        for position in sorted({0, len(content) // 2, len(content) - 1}):
            changed = bytearray(content)
            changed[position] ^= 0x10
            path.write_bytes(changed)
            flipped += 1
            found += bool(damage(written / "20"))
            if not damage(written / "20"):
                assert path.name in ("commit_success.txt", "_CHECKPOINT_METADATA"), (path, position)
        path.write_bytes(content)
    print(f"{flipped} bytes flipped in {len(files(written))} files, {found} found")
    assert found >= flipped - 4
    assert damage(written / "20") == ""


def test_every_cut_or_missing_file_is_found(written, tmp_path):
    for path in files(written):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        if path.parent.name != "20" or path.name != "commit_success.txt":
            assert damage(written / "20"), f"{path} cut"
        path.unlink()
        assert damage(written / "20"), f"{path} missing"
        path.write_bytes(content)
    assert damage(written / "20") == ""


@pytest.mark.parametrize("mark", ["seal.json", "commit_success.txt"])
def test_without_its_mark_of_completion_it_is_refused_and_the_one_before_is_used(copy, mark):
    (copy / "20" / mark).unlink()
    (line,) = refuse_damaged(copy)
    assert f"{copy / '20'} is refused: it has no {mark}" in line
    latest, (state, _, meta) = restored(copy)
    assert (latest, meta) == (10, {"at": 10})
    np.testing.assert_array_equal(state["w"], state_at(10)["w"])
    assert (copy.parent / "refused" / "20").is_dir()


def test_evaluation_refuses_it_and_names_the_others(copy):
    path = max((copy / "20" / "state").rglob("*"), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"20 is refused: .* bytes.*--checkpoint.* 10"):
        checkpoint_to_evaluate(copy)
    assert checkpoint_to_evaluate(copy, 10) == 10


def test_a_run_without_an_intact_checkpoint_does_not_start_again_silently(copy):
    for number in (10, 20):
        (copy / str(number) / "seal.json").write_text("{")
    for _ in range(2):  # a restart, for example by a scheduler, fails in the same way
        with pytest.raises(RunError, match=r"(?s)20 is refused.*10 is refused"):
            refuse_damaged(copy)


@pytest.mark.parametrize("change", ["cut", "flipped", "missing"])
def test_an_older_one_whose_error_rate_is_damaged_is_refused_as_well(copy, change):
    """Because the error rate determines the best checkpoint."""
    path = copy / "10" / "metrics" / "metrics"
    content = path.read_bytes()
    assert b"0.1" in content
    changed = {"cut": content[:-4], "flipped": content.replace(b"0.1", b"9.1"), "missing": None}[change]
    path.unlink() if changed is None else path.write_bytes(changed)
    with pytest.raises(UserError, match=r"10 is refused: metrics/metrics .*--checkpoint.* 20"):
        checkpoint_to_evaluate(copy)
    assert checkpoint_to_evaluate(copy, 20) == 20
    (line,) = refuse_damaged(copy)
    assert "10 is refused: metrics/metrics" in line
    assert checkpoint_to_evaluate(copy) == 20
    with Checkpoints(copy) as checkpoints:
        assert (checkpoints.latest, checkpoints.best) == (20, 20)
