"""The command line over the tree of settings: all mistakes are reported at once, and every field has help."""

import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from asr_jax.cli import train, transcribe
from asr_jax.cli.command_line import flags_of_experiment, load_config, parse_experiment, run_command
from asr_jax.config import (
    Experiment,
    differences,
    experiment_of,
    from_json,
    load_experiment,
    may_change,
    save_experiment,
    to_json,
)
from asr_jax.core import options
from asr_jax.core.errors import UserError
from asr_jax.core.run_folder import CHECKPOINTS, EXPERIMENT
from asr_jax.models.conformer import PARAFORMER

CONFIG = "configs/quickstart.py"
ZIPFORMER = "configs/digits.py"
CONFIGS = sorted(Path(__file__).parents[2].glob("configs/*.py"))


def parse(*arguments, config=CONFIG):
    return parse_experiment(["--config", config, *arguments], prog="train")


@pytest.mark.parametrize(
    "spelling",
    [
        ("--optim.schedule.peak-lr", "3e-4"),
        ("--optim.schedule.peak_lr=3e-4",),
        ("--config.optim.schedule.peak_lr=3e-4",),
    ],
)
def test_three_spellings_of_an_override(spelling):
    assert parse(*spelling).optim.schedule.peak_lr == 3e-4


def test_an_hourglass_can_be_switched_on(monkeypatch):
    monkeypatch.setenv("STAGE", "pretrain")
    sizes = ("--model.encoder.hourglass.before", "1", "--model.encoder.hourglass.middle", "2")
    glass = parse_experiment(["--config", "configs/wav2vec2_tiny.py", *sizes], prog="train").model.encoder.hourglass
    assert (bool(glass), glass.before, glass.middle, glass.after) == (True, 1, 2, 0)


def test_fields_of_optional_settings_are_flags(monkeypatch):
    """They are in the help if the config has these settings, `Pruning | None`."""
    monkeypatch.setenv("MODEL", "zipformer_transducer")
    flags = ("--model.heads.transducer.pruning.size", "3", "--model.heads.transducer.pruning.acoustic-scale", "0.1")
    found = parse_experiment(["--config", "configs/digits.py", *flags], prog="train").model.heads["transducer"].pruning
    assert (found.size, found.acoustic_scale, found.warmup) == (3, 0.1, 300)
    with pytest.raises(UserError, match=r"acoustic_scale is 0\.9 and language_scale is 0\.25"):
        parse_experiment(["--config", "configs/digits.py", *flags[:3], "0.9"], prog="train")


def test_overrides_reach_every_kind_of_field():
    experiment = parse(
        "--data.train", "a.jsonl", "b.jsonl", "--model.heads.ctc.dropout", "0.3", "--model.augment.0.max-warp", "0.1",
        "--model.encoder.dims", "64", "64", "64", "64", "--model.encoder.unmasked-dims", "32", "32", "32", "32",
        "--training.precision", "bf16", "--fresh", "True",
        "--log-every", "7", config=ZIPFORMER,
    )  # fmt: skip
    assert experiment.data.train == ("a.jsonl", "b.jsonl")
    assert experiment.model.heads["ctc"].dropout == 0.3
    assert experiment.model.augment[0].max_warp == 0.1
    assert experiment.model.encoder.dims == (64, 64, 64, 64)
    assert experiment.training.precision == "bf16"
    assert experiment.fresh
    assert experiment.training.log_every == 7


def test_the_middle_of_a_name_may_be_left_out_where_it_is_one_fields_alone():
    found = parse("--model.num-layers", "2", "--optim.peak_lr=1e-4", "--optim.schedule.warmup-updates", "7")
    assert found.model.encoder.num_layers == 2
    assert found.optim.schedule.peak_lr == 1e-4
    with pytest.raises(UserError) as caught:
        parse("--model.tap", "x", "--model.frobnicate", "1", "--model.probability", "0.5")
    message = str(caught.value)
    assert "--model.frobnicate is not a flag" in message
    assert (
        "--model.probability is not a flag; expected one of --model.augment.0.probability, --model.augment." in message
    )


def test_a_new_run_takes_the_settings_of_the_run_of_its_weights(tmp_path):
    run, new = tmp_path / "run", tmp_path / "run-2"
    run.mkdir()
    (older := tmp_path / "older.safetensors").touch()
    parent = parse("--run-dir", str(run), "--seed", "7", "--init-from", str(older), "--fresh", "--dry-run")
    save_experiment(parent, run / EXPERIMENT)
    for path in (run, run / CHECKPOINTS / "20"):
        given = ["--init-from", str(path), "--run-dir", str(new), "--optim.schedule.peak-lr", "1e-4"]
        found = parse_experiment(given, prog="train")
        changed = {name: value for name, _, value in differences(parent, found)}
        assert changed == {
            "init.path": str(path), "run_dir": str(new), "optim.schedule.peak_lr": 1e-4,
            "fresh": False, "dry_run": False,
        }  # fmt: skip
    with pytest.raises(UserError, match=r"--run-dir is missing: --init-from .* expected --run-dir DIR"):
        parse_experiment(["--init-from", str(run)], prog="train")
    with pytest.raises(UserError, match=r"--config is missing"):
        parse_experiment(["--init-from", str(tmp_path / "a.nemo")], prog="train")


def test_all_mistakes_are_named_at_once_with_the_nearest_field():
    with pytest.raises(UserError) as caught:
        parse(
            "--optim.schedule.peak-rl", "3", "--data.batching.num-buckets", "many", "--training.precision", "f17",
            "--model.heads.ctc.dropout", "1.5", "--training.ema.decay", "2",
        )  # fmt: skip
    message = str(caught.value)
    assert len(message.splitlines()) == 6
    assert message.endswith("\ntrain --config configs/quickstart.py --help lists the flags")
    for part in ("--optim.schedule.peak-lr", "many", "f17", "1.5", "decay is 2.0", "--data.batching.num-buckets"):
        assert part in message, f"{part!r} is not in\n{message}"
    assert caught.value.exit_code == 2


def test_a_value_of_another_type_hides_no_mistake_in_other_settings():
    with pytest.raises(UserError) as caught:
        parse("--data.batching.row-multiple", "x", "--model.encoder.dropout", "7", "--data.filters.min-chars", "-1")
    assert len(str(caught.value).splitlines()) == 4


def test_what_is_wrong_between_fields_is_named_beside_what_is_wrong_in_them():
    with pytest.raises(UserError) as caught:
        parse(
            "--data.filters.min-duration-s",
            "5",
            "--data.filters.max-duration-s",
            "2",
            "--data.batching.num-buckets",
            "x",
        )
    assert len(str(caught.value).splitlines()) == 3
    assert "--data.batching.num-buckets x: expected a whole number" in str(caught.value)
    assert "expected 0 ≤ min < max" in str(caught.value)


@pytest.mark.parametrize(
    ("weights", "more", "message"),
    [
        (["1", "1", "1"], ["--data.trim-db", "-1"], "--data.trim-db -1: "),
        (["1", "2"], [], "2 numbers for 3 entries"),
    ],
)
def test_settings_that_need_each_other_are_not_accused_of_what_others_do(weights, more, message):
    with pytest.raises(UserError) as caught:
        parse(
            "--data.train", "a", "b", "c", "--data.mixing.kind", "absolute", "--data.mixing.weights", *weights, *more
        )  # fmt: skip
    assert len(str(caught.value).splitlines()) == 2
    assert message in str(caught.value)


def test_fields_that_are_right_together_only_are_no_mistakes():
    sizes = ["--model.encoder.dims", *["64"] * 4, "--model.encoder.unmasked-dims", *["32"] * 4]
    with pytest.raises(UserError) as caught:
        parse(*sizes, "--data.batching.num-buckets", "many", config=ZIPFORMER)
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "a", "--data.train", "b"), "--data.train is given twice: expected all values behind one"),
        (("--seed", "-1"), "seed is -1"),
        (("--optim.schedule.peak-lr", "nan"), "peak_lr is nan: expected above 0"),
        (("--model.heads.ctc.scale", "-1"), "scale is -1.0"),
        (("--model.front-end.num-mels", "40"), "num_mels is 80, but frames of the front-end have 40 values"),
    ],
)
def test_impossible_values_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        parse(*arguments)


def test_a_config_may_not_define_what_evaluation_could_not_load(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass, replace\n"
        "from asr_jax.audio.specaugment import SpecAugment\nfrom tests.toy_config import experiment as toy\n"
        "@dataclass(frozen=True)\nclass Mine(SpecAugment):\n    mine: int = 1\n"
        "def experiment():\n    e = toy()\n    return replace(e, model=replace(e.model, augment=(Mine(),)))\n"
    )
    with pytest.raises(UserError, match="asr_jax_config_own:Mine"):
        load_config(str(path))


def test_fresh_needs_no_value():
    assert parse("--fresh", "--seed", "3").fresh
    assert not parse("--fresh", "--no-fresh").fresh


def test_commands_in_the_place_of_files_are_allowed_by_a_flag():
    assert not parse().data.allow_pipes
    for flags in (["--allow-pipes"], ["--allow-pipes", "--seed", "3"], ["--data.allow-pipes", "True"]):
        assert parse(*flags).data.allow_pipes


def test_values_without_a_field_are_named():
    with pytest.raises(UserError, match="'3' belongs to no flag"):
        parse("3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def experiment():\n    return 3\n", "returned int"),
        ("x = 1\n", "no attribute 'experiment'"),
        ("def experiment():\n    return 1 / 0\n", ":2: ZeroDivisionError"),
        ("def experiment(:\n", "SyntaxError"),
        ("from asr_jax.config import Training\ndef experiment():\n    Training(precison='f32')\n", "mean 'precision'?"),
    ],
)
def test_wrong_configs_are_named(tmp_path, text, message):
    path = tmp_path / "c.py"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_config(str(path))


def test_missing_config_suggests_the_nearest():
    with pytest.raises(UserError, match=r"did you mean 'configs/quickstart.py'"):
        load_config("configs/quikstart.py")


def test_configs_of_the_package_are_found_in_any_folder_unless_it_has_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config("configs/digits.py").name == load_config(str(CONFIGS[0].with_name("digits.py"))).name
    with pytest.raises(UserError, match=r"config elsewhere/digits\.py does not exist"):
        load_config("elsewhere/digits.py")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "digits.py").write_text("x = 1\n")
    with pytest.raises(UserError, match="no attribute 'experiment'"):
        load_config("configs/digits.py")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_loads_and_survives_json(path, tmp_path):
    experiment = load_config(str(path))
    assert from_json(to_json(experiment)) == experiment
    save_experiment(experiment, tmp_path / "experiment.json")
    assert load_experiment(tmp_path / "experiment.json") == experiment
    flags = [flag.name for flag in flags_of_experiment(experiment)]
    assert len(flags) == len(set(flags)) > 40


@pytest.mark.parametrize(
    ("path", "variable"),
    [
        pytest.param(path, variable, id=f"{path.stem} {variable}")
        for path in CONFIGS
        for variable in re.findall(r'environ\.get\("(\w+)"', path.read_text())
    ],
)
def test_configs_of_several_models_or_recipes_name_and_load_them_all(path, variable, monkeypatch):
    monkeypatch.setenv(variable, "none")
    with pytest.raises(UserError, match=f"{variable} is none: expected ") as rejected:
        load_config(str(path))
    named = re.sub(r" \(.*?\)", "", str(rejected.value).partition("expected ")[2])  # without other names in brackets
    choices = re.split(", | or ", named.removeprefix("one of "))
    assert len(choices) > 1
    loaded = []
    for choice in choices:
        monkeypatch.setenv(variable, choice)
        loaded.append(load_config(str(path)))
        assert from_json(to_json(loaded[-1])) == loaded[-1]
    assert len({repr(each) for each in loaded}) == len(choices)


def test_the_enhanced_paraformer_has_a_name_of_its_own(monkeypatch):
    path = str(Path(__file__).parents[2] / "configs" / "paraformer_rust.py")
    assert load_config(path).name == "paraformer_rust"
    monkeypatch.setenv("ENHANCED", "1")
    assert load_config(path).name == "paraformer_rust_enhanced"
    for variant, dim in PARAFORMER.items():
        monkeypatch.setenv("VARIANT", variant)
        assert load_config(path).model.encoder.dim == dim
    monkeypatch.setenv("ENHANCED", "true")
    with pytest.raises(UserError, match="ENHANCED is true: expected 0 or 1"):
        load_config(path)


def test_a_recipe_of_fine_tuning_takes_the_sizes_of_the_run_that_it_begins_with(tmp_path, monkeypatch):
    monkeypatch.setenv("RECIPE", "base")
    pretrained = load_config("configs/wav2vec2_pretrain.py")
    pretrained = replace(
        pretrained, model=replace(pretrained.model, encoder=replace(pretrained.model.encoder, dim=384))
    )
    save_experiment(pretrained, tmp_path / EXPERIMENT)
    (tmp_path / CHECKPOINTS / "500").mkdir(parents=True)
    monkeypatch.setenv("RECIPE", "base_10h")
    for path in (tmp_path, tmp_path / CHECKPOINTS / "500"):
        fine_tuned = load_config("configs/wav2vec2_finetune.py", init_from=str(path)).model
        assert (fine_tuned.encoder.dim, bool(fine_tuned.encoder.hourglass)) == (384, False)
        assert fine_tuned.front_end == pretrained.model.front_end
    assert load_config("configs/wav2vec2_finetune.py").model.encoder.hourglass
    assert experiment_of("") is experiment_of(str(tmp_path / CHECKPOINTS)) is None


def test_a_tilde_is_the_home_folder_wherever_a_path_is_given(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    text = Path(CONFIG).read_text(encoding="utf-8").replace('"data/quickstart', '"~/data')
    (tmp_path / "config.py").write_text(text)
    found = parse_experiment(
        ["--config=~/config.py", "--run-dir=~/runs/x", "--init.path", "~/w", "--data.tokenizer.path=~/bpe.model"],
        prog="train",
    )
    assert found.data.train == (f"{tmp_path}/data/manifests/train.jsonl",)
    assert (found.run_dir, found.init.path) == (f"{tmp_path}/runs/x", f"{tmp_path}/w")
    assert found.data.tokenizer.path == f"{tmp_path}/bpe.model"
    given = ["~/run", "~/a.wav", "-", "--out=~/out"]
    assert options.parse(transcribe.TranscribeOptions, given, prog="", about="") == (
        transcribe.TranscribeOptions(run=tmp_path / "run", inputs=(f"{tmp_path}/a.wav", "-"), out=tmp_path / "out")
    )


def test_differences_name_fields_and_pass_over_what_may_change():
    before = parse()
    after = parse(
        "--seed", "3", "--training.log-every", "9", "--data.batching.num-buckets", "5", "--run-dir", "elsewhere"
    )
    found = differences(before, after)
    assert [change for change in found if not may_change(change[0])] == [
        ("data.batching.num_buckets", 2, 5),
        ("seed", 0, 3),
    ]
    assert [change for change in found if may_change(change[0])] == [
        ("run_dir", os.path.abspath("runs/quickstart"), os.path.abspath("elsewhere")),
        ("training.log_every", 50, 9),
    ]


def test_help_lists_every_field_quickly():
    command = [sys.executable, "-m", "asr_jax.train", "--config", CONFIG, "--help-all"]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.monotonic() - start
    for flag in flags_of_experiment(load_config(CONFIG)):
        assert flag.name in done.stdout, flag.name
    assert isinstance(load_config(CONFIG), Experiment)
    print(f"{seconds:.1f} s")
    assert seconds < 30  # 3 s are promised on an idle machine; tests share theirs


def test_a_mistake_writes_nothing_and_exits_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        run_command(train.main, ["--config", CONFIG, "--run-dir", str(tmp_path / "r"), "--sed", "1"])
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert "--sed" in message
    assert "did you mean '--seed'" in message
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "error",
    [
        jax.errors.JaxRuntimeError("INTERNAL: Error dispatching computation: Out of memory allocating 18 bytes.\nat x"),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 18 bytes."),
        MemoryError(),
    ],
)
def test_a_full_memory_is_an_error_without_traceback(error, capsys):
    def command(arguments):
        raise error

    with pytest.raises(SystemExit) as end:
        run_command(command, [])
    assert end.value.code == 1
    message = capsys.readouterr().err
    assert message.startswith("error: the memory is full (")
    assert "--training.split 2" in message
    assert "Traceback" not in message


def test_a_run_is_continued_by_its_folder_alone(tmp_path):
    before = parse("--run-dir", str(tmp_path), "--seed", "7")
    save_experiment(before, tmp_path / "experiment.json")
    arguments = ["--run-dir", str(tmp_path), "--training.num-updates", "9"]
    again = parse_experiment(arguments, prog="train")
    assert again.seed == 7
    assert again.training.num_updates == 9
    assert differences(before, again) == [("training.num_updates", before.training.num_updates, 9)]


@pytest.mark.parametrize(
    ("options", "given", "expected"),
    [
        ({}, {}, (None, "false")),
        ({"on_cpu": True}, {}, ("cpu", "false")),
        ({"on_cpu": True}, {"JAX_PLATFORMS": "cuda"}, ("cuda", "false")),
        ({"reserves_memory": True}, {}, (None, None)),
        ({}, {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}, (None, "true")),
    ],
)
def test_commands_leave_gpus_and_their_memory_to_a_training(options, given, expected, monkeypatch) -> None:
    names = ("JAX_PLATFORMS", "XLA_PYTHON_CLIENT_PREALLOCATE")
    for name in names:
        monkeypatch.setenv(name, "")  # is restored after the test
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ASR_JAX_NATIVE_LOG", "-")
    monkeypatch.setattr(sys, "argv", ["command"])
    found = []
    run_command(lambda arguments: found.append(tuple(map(os.environ.get, names))), **options)
    assert found == [expected]
