import errno
import os
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import struct
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_jax.checkpoints import store
from asr_jax.checkpoints.store import (
    Checkpoints,
    checkpoint_to_evaluate,
    refuse_damaged,
    replace_average,
    restore_item,
    restore_meta,
    save_weights_alone,
)
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.meshes import abstract, data_mesh, mesh_of, replicated
from asr_jax.core.pytrees import flatten
from asr_jax.core.sharding import Sharding
from tests.support import assert_close


class State(struct.PyTreeNode):
    updates: jax.Array
    params: dict
    key: jax.Array


def state_at(number):
    params = {"w": jnp.full((3, 2), float(number)), "half": jnp.full(4, number, jnp.bfloat16)}
    return State(jnp.int32(number), params, jax.random.key_data(jax.random.key(number)))


@pytest.fixture
def on_mesh():
    return lambda tree: jax.device_put(tree, replicated(data_mesh(2)))


def save(checkpoints, number, on_mesh, wer, *, measure="wer"):
    average = on_mesh({"params": {"w": jnp.full(2, number / 10)}})
    checkpoints.save(
        number, state=on_mesh(state_at(number)), average=average, meta={"data_position": number},
        measured=None if wer is None else {measure: wer},
    )  # fmt: skip


@pytest.mark.parametrize("sizes", [{"fsdp": 4}, {"fsdp": 2}, {"model": 2}, {}])
def test_a_checkpoint_of_sharded_arrays_is_restored_on_another_mesh(tmp_path, sizes):
    values, sharding = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32), Sharding(((".*w", -1),), 1)

    def placed_on(mesh):
        return sharding.of({"params": {"w": values}}, {"params": {"w": values}}, mesh, zero=False)

    written, read = mesh_of(jax.devices()[:4], fsdp=2, model=2), mesh_of(jax.devices()[:4], **sizes)
    tree = jax.device_put({"params": {"w": values}}, placed_on(written))
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(1, state=tree, average=tree, meta={})
    wanted = placed_on(read)["params"]["w"]
    shapes = {"params": {"w": jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=wanted)}}
    restored = restore_item(tmp_path / "checkpoints", 1, "state", shapes)["params"]["w"]
    assert restored.sharding == wanted
    np.testing.assert_array_equal(restored, values)
    assert refuse_damaged(tmp_path / "checkpoints") == []


ODD = (b"proj [2024]", b"a*b", b"**", b"a\\b", b"{1..3}", b"\xff\xfe")


def saved_and_restored(folder):
    """Saves a checkpoint and weights alone in a folder, and reads them back."""
    average = {"params": {"w": jnp.arange(3.0)}}
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(7, state={"n": jnp.int32(7)}, average=average, meta={"a": 1}, measured={"wer": 0.5})
        checkpoints.wait()
        assert checkpoints.finished() == 7
    assert checkpoint_to_evaluate(folder) == 7
    assert refuse_damaged(folder) == []
    shapes = abstract(average, average["params"]["w"].sharding)
    assert_close(restore_item(folder, 7, "average", shapes)["params"]["w"], [0.0, 1.0, 2.0])
    assert restore_meta(folder, 7) == {"a": 1}
    with Checkpoints(folder) as checkpoints:
        assert (checkpoints.latest, checkpoints.best) == (7, 7)


@pytest.mark.parametrize("name", ODD)
def test_checkpoints_in_a_folder_of_any_name(name, tmp_path):
    (tmp_path / "a1b").mkdir()  # `a?b` and `a*b` would match it
    folder = tmp_path / os.fsdecode(name) / "checkpoints"
    saved_and_restored(folder)
    save_weights_alone(folder, 8, {"params": {"w": jnp.zeros(2)}}, {})
    replace_average(folder, 7, {"params": {"w": jnp.ones(3)}})
    assert checkpoint_to_evaluate(folder, 7) == 7
    assert sorted(path.name for path in folder.iterdir()) == ["7", "8"]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=60).filter(lambda name: not {*name} & {0, ord("/")} and name.strip(b".")))
def test_checkpoints_in_folders_of_all_legal_names(name):
    with tempfile.TemporaryDirectory() as place:
        saved_and_restored(Path(place, os.fsdecode(name), "checkpoints"))


def test_a_link_that_cannot_be_named_either_is_refused(tmp_path, monkeypatch):
    (tmp_path / "[tmp]").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "[tmp]"))
    with pytest.raises(UserError, match=r"run \[2\].* choose another --run-dir, or another TMPDIR"):
        Checkpoints(tmp_path / "run [2]" / "checkpoints")


def test_a_checkpoint_that_cannot_be_read_back_is_not_saved(tmp_path, monkeypatch, on_mesh):
    """A path that Orbax takes for a pattern stands for all causes: it finds none of its files and merges nothing."""
    monkeypatch.setattr(store, "_plain", lambda folder: folder.absolute())
    folder = tmp_path / "run [2]" / "checkpoints"
    message = r"7 could not be written: 4 of 4 arrays of .*/state cannot be read back"
    with pytest.raises(RunError, match=message), Checkpoints(folder) as checkpoints:
        save(checkpoints, 7, on_mesh, 0.5)
    assert not (folder / "7").exists()
    with pytest.raises(RunError, match=r"1 of 1 arrays of .*/average cannot be read back, such as params/w"):
        save_weights_alone(folder, 8, {"params": {"w": jnp.zeros(2)}}, {})


def test_what_is_kept_and_what_comes_back(tmp_path, on_mesh):
    wers = {10: 0.9, 20: 0.3, 30: 0.5, 40: 0.4, 50: 0.6}
    folder = tmp_path / "checkpoints"
    with Checkpoints(folder, keep_last=1, keep_best=1, milestones=(30,)) as checkpoints:
        assert checkpoints.latest is None
        for number, wer in wers.items():
            save(checkpoints, number, on_mesh, wer)
        checkpoints.wait()
        assert sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit()) == [20, 30, 50]
    with Checkpoints(folder) as again:
        assert again.latest == 50
        assert again.best == 20
        sharding = replicated(data_mesh(2))
        shapes = abstract(jax.eval_shape(lambda: state_at(0)), sharding)
        average_shapes = {"params": {"w": jax.ShapeDtypeStruct((2,), jnp.float32, sharding=sharding)}}
        state, average, meta = again.restore(50, state=shapes, average=average_shapes)
    assert meta == {"data_position": 50}
    for path, leaf in flatten(state).items():
        expected = flatten(state_at(50))[path]
        assert leaf.dtype == expected.dtype
        np.testing.assert_array_equal(leaf, expected)
    assert_close(average["params"]["w"], 5.0)
    assert checkpoint_to_evaluate(folder) == 20
    assert checkpoint_to_evaluate(folder, 30) == 30
    assert_close(restore_item(folder, 20, "average", average_shapes)["params"]["w"], 2.0)


def test_error_rates_of_another_decoding_do_not_make_the_best(tmp_path, on_mesh):
    folder = tmp_path / "checkpoints"
    with Checkpoints(folder, keep_last=1, decoding="beam") as checkpoints:
        for number, wer in ((10, 0.2), (20, 0.1), (30, 0.3)):
            save(checkpoints, number, on_mesh, wer)
    with Checkpoints(folder, keep_last=1, decoding="greedy") as checkpoints:
        assert checkpoints.best == 20  # until there is an error rate of its own decoding
        for number, wer in ((40, 0.5), (50, 0.4), (60, 0.6)):
            save(checkpoints, number, on_mesh, wer)
        checkpoints.wait()
        assert checkpoints.best == 50
    assert sorted(int(path.name) for path in folder.iterdir()) == [50, 60]
    with Checkpoints(folder, keep_last=1, decoding="beam") as checkpoints:
        save(checkpoints, 70, on_mesh, 0.45)
        checkpoints.wait()
        assert checkpoints.best == 70
    assert checkpoint_to_evaluate(folder) == 70


def test_error_rates_of_another_validation_set_do_not_make_the_best(tmp_path, on_mesh):
    folder = tmp_path / "checkpoints"
    with Checkpoints(folder, keep_last=1) as checkpoints:
        for number, wer in ((10, 0.1), (20, 0.2)):
            save(checkpoints, number, on_mesh, wer)
    with Checkpoints(folder, keep_last=1, best_of="mean") as checkpoints:
        for number, wer in ((30, 0.4), (40, 0.5)):
            save(checkpoints, number, on_mesh, wer)
        checkpoints.wait()
        assert checkpoints.best == 30
    assert sorted(int(path.name) for path in folder.iterdir()) == [30, 40]
    assert checkpoint_to_evaluate(folder) == 30


def test_word_error_rates_are_not_compared_with_character_error_rates(tmp_path, on_mesh):
    folder = tmp_path / "checkpoints"
    with Checkpoints(folder, keep_last=1, measure="wer") as checkpoints:
        save(checkpoints, 10, on_mesh, 0.1)
    with Checkpoints(folder, keep_last=1, measure="cer") as checkpoints:
        for number, cer in ((20, 0.4), (30, 0.5)):
            save(checkpoints, number, on_mesh, cer, measure="cer")
        checkpoints.wait()
        assert checkpoints.best == 20
    assert checkpoint_to_evaluate(folder) == 20


def test_losses_are_ranked_as_error_rates_are_and_what_is_no_number_comes_last(tmp_path, on_mesh):
    with Checkpoints(tmp_path, keep_last=9) as checkpoints:
        for number, loss in ((10, 6.5), (20, float("nan")), (30, 2.5), (40, 3.0)):
            save(checkpoints, number, on_mesh, loss, measure="loss")
        checkpoints.wait()
        assert checkpoints.best == 30
    assert checkpoint_to_evaluate(tmp_path) == 30


def test_saved_arrays_may_be_overwritten_at_once(tmp_path, on_mesh):
    overwrite = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    with Checkpoints(tmp_path) as checkpoints:
        state = on_mesh({"w": jnp.zeros(1_000_000)})
        average = on_mesh({"params": {"w": jnp.ones(2)}, "batch_stats": {}})
        checkpoints.save(1, state=state, average=average, meta={}, measured={"wer": 1.0})
        overwrite(state)
    with Checkpoints(tmp_path) as checkpoints:
        sharding = replicated(data_mesh(2))
        shape = {"w": jax.ShapeDtypeStruct((1_000_000,), jnp.float32, sharding=sharding)}
        state, restored, _ = checkpoints.restore(1, state=shape, average=abstract(average, sharding))
    assert restored["batch_stats"] == {}
    assert (np.asarray(state["w"]) == 0).all()


def test_a_checkpoint_that_is_written_again_is_there_all_the_while(tmp_path, on_mesh, monkeypatch):
    """A run that was stopped before its last validation is saved without an error rate, and later with one."""
    folder = tmp_path / "checkpoints"
    with Checkpoints(folder, keep_last=1) as checkpoints:
        save(checkpoints, 10, on_mesh, None)
        checkpoints.wait()
        assert checkpoints.best is None
    with Checkpoints(folder, keep_last=1) as checkpoints, monkeypatch.context() as patched:
        patched.setattr(ocp.CheckpointManager, "save", lambda *args, **options: None)  # killed before it is written
        save(checkpoints, 10, on_mesh, 0.5)
    assert not (folder / "10").exists()
    assert refuse_damaged(folder) == []
    with Checkpoints(folder, keep_last=1) as checkpoints:
        assert (checkpoints.latest, checkpoints.best) == (10, None)
        save(checkpoints, 10, on_mesh, 0.5)
        checkpoints.wait()
        assert checkpoints.finished() == 10
        assert (checkpoints.latest, checkpoints.best) == (10, 10)
    assert not (tmp_path / "replaced").exists()
    assert refuse_damaged(folder) == []


def test_the_error_of_a_save_is_stored_for_the_other_processes(tmp_path, on_mesh, monkeypatch):
    def full(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("asr_jax.checkpoints.store.seal", full)  # one of the last steps, in process 0 alone
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        save(checkpoints, 1, on_mesh, wer=None)
        with pytest.raises(RunError, match="No space left on device"):
            checkpoints.wait()
        assert checkpoints._manager.error.errno == errno.ENOSPC


def test_missing_checkpoints_are_named(tmp_path, on_mesh):
    with pytest.raises(UserError, match="its first validation is not done yet"):
        checkpoint_to_evaluate(tmp_path / "none")
    with Checkpoints(tmp_path) as checkpoints:
        save(checkpoints, 10, on_mesh, 0.5)
    with pytest.raises(UserError, match="no checkpoint 7: expected one of 10"):
        checkpoint_to_evaluate(tmp_path, 7)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no complete checkpoint"):
        checkpoint_to_evaluate(tmp_path / "empty")
