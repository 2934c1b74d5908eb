"""A program is traced once; later starts load it only if nothing that it depends on has changed."""

import importlib.metadata
import os
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from asr_jax.core import programs
from asr_jax.core.meshes import by_rows, data_mesh, replicated
from asr_jax.core.programs import TRACED, Programs, compiled_in

X = jax.ShapeDtypeStruct((8, 3), jnp.float32)


@pytest.fixture(autouse=True)
def _cache(tmp_path):
    kept = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield
    jax.config.update("jax_compilation_cache_dir", kept)


def of(made_of):
    """Returns `Programs` with one input. None: functions are traced at every start."""
    return TRACED if made_of is None else Programs(()).given(made_of=made_of)


class Scaled:
    """A function that counts how often it is traced."""

    def __init__(self, scale: float) -> None:
        self.scale, self.traced = scale, 0

    def __call__(self, x, extra):
        self.traced += 1
        return {"y": x * self.scale, "state": extra}


def test_the_second_time_nothing_is_traced(tmp_path):
    x, extra = np.arange(24.0, dtype=np.float32).reshape(8, 3), optax.ScaleByAdamState(jnp.int32(3), (), {"w": X})
    shapes = jax.eval_shape(lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), extra))
    for times in (1, 0):
        function = Scaled(2.0)
        lowered = of("2.0").lower("scaled", function, X, shapes).lowered
        assert function.traced == times
        assert lowered.out_info["y"].shape == (8, 3)
        assert isinstance(lowered.out_info["state"], optax.ScaleByAdamState)
        given = optax.ScaleByAdamState(jnp.int32(3), (), {"w": x})
        found = lowered.compile()(x, given)
        np.testing.assert_array_equal(found["y"], 2 * x)
        np.testing.assert_array_equal(found["state"].nu["w"], x)
    assert len(list((tmp_path / "traced").iterdir())) == 1


def test_jax_still_traces_before_it_reads_its_cache():
    """If this fails, JAX caches traced programs itself: measure a warm start without `Programs`, which may then go."""
    function = Scaled(2.0)
    for times in (1, 2):
        jax.jit(lambda x, function=function: function(x, x)).lower(X).compile()
        assert function.traced == times


def test_it_is_the_same_text_the_first_time_and_every_other():
    texts = {of("2.0").lower("scaled", Scaled(2.0), X, X).lowered.as_text() for _ in range(3)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    "other",
    ["made_of", "name", "shape", "type", "sharding", "tree", "outputs", "versions", "settings", "flags", "sources"],
)
def test_what_would_be_another_program_is_traced_again(other, monkeypatch):
    of("2.0").lower("scaled", Scaled(2.0), X, X)
    extra = {
        "shape": jax.ShapeDtypeStruct((8, 4), jnp.float32),
        "type": jax.ShapeDtypeStruct((8, 3), jnp.int32),
        "sharding": jax.ShapeDtypeStruct((8, 3), jnp.float32, sharding=replicated(data_mesh(4))),
        "tree": {"x": X},
    }.get(other, X)
    precision = jax.config.jax_default_matmul_precision  # other tests leave different values
    if other == "settings":
        precision = "highest" if precision != "highest" else "tensorfloat32"
    if other == "versions":
        monkeypatch.setattr(importlib.metadata, "version", lambda library: "of tomorrow")
    if other == "flags":
        monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", "") + " --another")
    if other == "sources":
        monkeypatch.setattr(programs, "SOURCES", "another version")
        monkeypatch.setattr(programs, "_sources", lambda: "another version")
    function, name = Scaled(3.0), "other" if other == "name" else "scaled"
    out = replicated(data_mesh(4)) if other == "outputs" else None
    with jax.default_matmul_precision(precision):
        of("3.0" if other == "made_of" else "2.0").lower(name, function, X, extra, out_shardings=out)
    assert function.traced == 1


@pytest.mark.parametrize(
    "part",
    ["jax", "jaxlib", "flax", "optax", "numpy", "platform version", "devices", "settings", "XLA_FLAGS"],
)
def test_each_part_of_the_surroundings_is_an_input(part, monkeypatch):
    of("2.0").lower("scaled", Scaled(2.0), X, X)
    surroundings = programs._surroundings()
    monkeypatch.setattr(programs, "_surroundings", lambda: surroundings | {part: surroundings[part] + " of tomorrow"})
    function = Scaled(3.0)
    of("2.0").lower("scaled", function, X, X)
    assert function.traced == 1


def test_sources_that_were_edited_since_they_were_loaded_are_not_taken_for_what_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "SOURCES", "as they were loaded")
    for _ in range(2):
        function = Scaled(2.0)
        of("2.0").lower("scaled", function, X, X)
        assert function.traced == 1
    assert not (tmp_path / "traced").exists()


def test_a_cache_that_is_not_on_this_machine_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    jax.config.update("jax_compilation_cache_dir", "gs://bucket/folder")
    of("2.0").lower("scaled", Scaled(2.0), X, X)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("made_of", [None, "x"])
def test_options_reach_the_compiler(made_of):
    programs = replace(of(made_of), options=(("xla_none", 1),))
    program = programs.lower("sine", jnp.sin, jax.ShapeDtypeStruct((3,), jnp.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option: 'xla_none'"):
        program.compile()
    assert programs.given(y=1).options == programs.options


def test_profiles_show_its_name():
    assert "module @jit_scaled" in of("2.0").lower("scaled", Scaled(2.0), X, X).lowered.as_text()


@pytest.mark.parametrize("harm", ["flipped", "cut", "empty", "text"])
def test_a_damaged_file_is_traced_and_written_again(tmp_path, harm):
    of("2.0").lower("scaled", Scaled(2.0), X, X)
    (path,) = (tmp_path / "traced").iterdir()
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    path.write_bytes({"flipped": bytes(flipped), "cut": whole[:-9], "empty": b"", "text": b"\xff\nno"}[harm])
    function = Scaled(2.0)
    of("2.0").lower("scaled", function, X, X)
    assert function.traced == 1
    again = Scaled(2.0)
    of("2.0").lower("scaled", again, X, X)
    assert again.traced == 0


def test_without_a_description_or_a_cache_nothing_is_kept(tmp_path):
    functions = [Scaled(2.0) for _ in range(4)]
    for function in functions[:2]:
        TRACED.lower("scaled", function, X, X)
    jax.config.update("jax_compilation_cache_dir", None)
    for function in functions[2:]:
        of("2.0").lower("scaled", function, X, X)
    assert [function.traced for function in functions] == [1, 1, 1, 1]
    assert not (tmp_path / "traced").exists()


def test_a_program_that_cannot_be_kept_runs_all_the_same(tmp_path):
    def on_the_host(x):
        return jax.pure_callback(lambda x: np.asarray(x) + 1, X, x)

    for _ in range(2):
        compiled = of("").lower("callback", on_the_host, X).lowered.compile()
        np.testing.assert_array_equal(compiled(np.ones((8, 3), np.float32)), 2)
    assert not (tmp_path / "traced").exists()


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "traced").write_text("a file where the folder would be")
    compiled = of("2.0").lower("scaled", Scaled(2.0), X, X).lowered.compile()
    assert compiled(np.ones((8, 3), np.float32), np.ones((8, 3), np.float32))["y"].shape == (8, 3)


def test_donation_and_shardings_hold():
    mesh = data_mesh(4)
    rows = jax.ShapeDtypeStruct((8, 3), jnp.float32, sharding=by_rows(mesh))
    same = jax.ShapeDtypeStruct((3,), jnp.float32, sharding=replicated(mesh))
    for _ in range(2):
        compiled = of("").lower(
            "mean", lambda x, total: total + x.sum(0), rows, same, donate_argnums=(1,),
            out_shardings=replicated(mesh),
        ).lowered.compile()  # fmt: skip
        assert compiled.memory_analysis().alias_size_in_bytes >= 12
        x = jax.device_put(np.ones((8, 3), np.float32), by_rows(mesh))
        total = jax.device_put(np.ones(3, np.float32), replicated(mesh))
        found = compiled(x, total)
        np.testing.assert_array_equal(found, 9)
        assert found.sharding.is_equivalent_to(replicated(mesh), 1)
        assert total.is_deleted()


def test_what_was_not_used_for_a_month_goes(tmp_path, monkeypatch):
    of("old").lower("scaled", Scaled(2.0), X, X)
    monkeypatch.setattr(programs, "UNUSED_DAYS", -1.0)
    of("new").lower("scaled", Scaled(2.0), X, X)
    assert not list((tmp_path / "traced").iterdir())


@pytest.mark.parametrize("made_of", ["", None], ids=["kept", "traced"])
def test_operations_are_counted_as_often_as_a_loop_runs_them(tmp_path, made_of):
    def powers(x):
        return jax.lax.scan(lambda y, _: (y @ y, None), x, None, length=5)[0]

    square = jax.ShapeDtypeStruct((6, 6), jnp.float32, sharding=X.sharding)
    for _ in range(2):  # the second program is loaded from the cache
        assert of(made_of).lower("powers", powers, square).flops == 5 * 2 * 6**3


def entries(folder):
    return {path.name for path in folder.glob("*-cache")}


@pytest.fixture
def _all_are_kept():
    kept = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    yield
    jax.config.update("jax_persistent_cache_min_compile_time_secs", kept)


@pytest.mark.usefixtures("_all_are_kept")
def test_programs_of_a_run_for_gpus_and_tpus_are_in_its_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(programs, "has_default_cache", lambda: True)
    run, x = tmp_path / "run/compiled", jnp.arange(3.0)
    with compiled_in(run, "gpu"):
        jax.block_until_ready(jax.jit(lambda x: x * 3 + 1)(x))
        Programs(()).lower("doubled", lambda x: 2 * x, X)
    assert {name.partition("-")[0] for name in entries(run)} >= {"jit__lambda"}
    assert [path.name.partition("-")[0] for path in (run / "traced").iterdir()] == ["doubled"]
    assert not (tmp_path / "traced").exists()
    jax.clear_caches()
    loaded = []

    def record(event, _, **__):
        loaded.append(event)

    jax.monitoring.register_event_duration_secs_listener(record)
    with compiled_in(run, "tpu"):  # a job that continues the run
        jax.block_until_ready(jax.jit(lambda x: x * 3 + 1)(x))
    jax.monitoring.unregister_event_duration_listener(record)
    assert "/jax/compilation_cache/cache_retrieval_time_sec" in loaded
    other = entries(tmp_path)
    jax.block_until_ready(jax.jit(lambda x: x * 5 - 7)(x))
    assert entries(tmp_path) > other, "the next run in this process has other folders"


@pytest.mark.usefixtures("_all_are_kept")
@pytest.mark.parametrize(("platform", "is_given"), [("cpu", False), ("gpu", True)])
def test_programs_for_cpus_and_a_folder_that_is_set_are_not_in_the_run(tmp_path, monkeypatch, platform, is_given):
    if not is_given:
        monkeypatch.setattr(programs, "has_default_cache", lambda: True)
    with compiled_in(tmp_path / "run/compiled", platform):
        assert jax.config.jax_compilation_cache_dir == str(tmp_path)
    assert not (tmp_path / "run").exists()
