"""The evaluate command refuses conflicting names before any computation."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asr_jax.cli.evaluate import EvaluateOptions, chosen, main
from asr_jax.core.errors import UserError
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Utterance


def test_tensors_of_two_sets_that_would_have_one_name_are_refused_before_any_run_is_loaded(tmp_path):
    manifests = [str(tmp_path / f"{name}.jsonl") for name in ("clean", "noisy", "other")]
    for manifest, names in zip(manifests, ("ab", "cb", "de"), strict=True):
        write_manifest(manifest, [Utterance(name, str(tmp_path / f"{name}.flac"), "word", 1.0) for name in names])
    clean, noisy, other = manifests
    command = [str(tmp_path / "no_run"), "--log-probs", str(tmp_path / "out.safetensors"), "--data"]
    with pytest.raises(UserError, match=rf"{clean} and {noisy} .*recording b"):
        main([*command, clean, other, noisy])
    command[2] = str(tmp_path / "out")  # numbered files, whose index contains the set
    for data in ((clean, other, noisy), (clean, other)):
        with pytest.raises(UserError, match="is not a run"):
            main([*command, *data])


def test_a_set_is_limited_by_duration_and_number(capsys):
    durations = [1.0, 30.0, 2.0, float("nan"), 16.7, 3.0, 17.0]
    utterances = Utterances.of([Utterance(f"{n}", f"{n}.wav", "a", each) for n, each in enumerate(durations)])
    options = EvaluateOptions(runs=(Path("run"),), data=("a.jsonl",))
    assert [*chosen(utterances, options).ids()] == [*"0123456"]
    assert not capsys.readouterr().err
    shorter = replace(options, ignore_above=16.7)
    assert [*chosen(utterances, shorter).ids()] == [*"02345"]
    assert capsys.readouterr().err == "5 of 7 utterances are evaluated\n"
    assert len(chosen(utterances, replace(shorter, max_samples=2))) == 2
    assert len(chosen(utterances, replace(options, max_samples=8))) == 7
    with pytest.raises(UserError, match=r"--ignore-above 0.5: all 6 utterances are longer"):
        chosen(utterances.select(np.array([0, 1, 2, 4, 5, 6])), replace(options, ignore_above=0.5))
