"""The evaluate command refuses conflicting names before any computation."""

import pytest

from asr_jax.cli.evaluate import main
from asr_jax.core.errors import UserError
from asr_jax.data.manifests.manifest import write_manifest
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
