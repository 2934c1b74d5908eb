"""Experiments of earlier versions: a decoding outside of the model, renamed fields, and no primary head."""

import dataclasses
import json
from dataclasses import replace

import pytest

from asr_jax.config import (
    Experiment,
    Training,
    differences,
    from_json,
    load_experiment,
    may_change,
    save_experiment,
    to_json,
)
from asr_jax.core.errors import UserError
from asr_jax.data.batching.buckets import Buckets
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.zipformer import Zipformer
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import NovoGrad
from asr_jax.search.ctc import CTCDecoding
from asr_jax.search.hypotheses import Search

BEAM = CTCDecoding(kind="beam", search=Search(beam_width=7))


def written_before(experiment, *, decoding):
    """JSON of an experiment as the previous version wrote it."""

    def rewritten(values):
        if isinstance(values, list):
            return [rewritten(value) for value in values]
        if not isinstance(values, dict):
            return values
        values = {name: rewritten(value) for name, value in values.items()}
        name = values.get("class", "").partition(":")[2]
        if name == "CTC":
            del values["decoding"]
        if name == "Model":
            del values["primary"]
        return values

    return rewritten(to_json(experiment)) | {"decoding": rewritten(to_json(decoding))}


def experiment(**heads):
    model = Model(Zipformer.tiny(taps=("stack_1",)), heads=heads, primary="second" if len(heads) > 1 else "")
    return Experiment(name="old", model=model, data=Data(train=("train.jsonl",), buckets=Buckets(num=2)))


def test_the_decoding_becomes_that_of_the_head(tmp_path):
    before = written_before(experiment(ctc=CTC()), decoding=BEAM)
    (tmp_path / "experiment.json").write_text(json.dumps(before))
    found = load_experiment(tmp_path / "experiment.json")
    assert found == experiment(ctc=CTC(decoding=BEAM))
    assert found.primary_decoding == BEAM
    changed = [name for name, *_ in differences(found, experiment(ctc=CTC()))]
    assert changed
    assert all(map(may_change, changed)), "another decoding continues the run"
    save_experiment(found, tmp_path / "again.json")
    assert load_experiment(tmp_path / "again.json") == found


def test_renamed_fields_are_read():
    now = experiment(ctc=CTC())
    data = replace(now.data, max_train_utterances=3, max_validation_utterances=2)
    now = replace(
        now, data=data, optim=NovoGrad(clip_at=0.5), training=Training(num_updates=1, max_rejected=7, ema=EMA(0.9))
    )
    values = to_json(now)
    data, optim, training = values["data"], values["optim"], values["training"]
    training["ema_decay"] = training.pop("ema")["decay"]
    for fields, former, name in (
        (data, "max_train_samples", "max_train_utterances"),
        (data, "max_validation_samples", "max_validation_utterances"),
        (optim, "clip_norm", "clip_at"),
        (training, "max_skipped", "max_rejected"),
    ):
        fields[former] = fields.pop(name)
    assert from_json(values) == now
    training["ema_dekay"] = 0.9
    with pytest.raises(UserError, match="ema_dekay"):
        from_json(values)


def test_texts_come_from_the_head_that_they_came_from():
    """The primary head is the first CTC head on the output of the encoder, not an earlier one on an inner layer."""
    heads = {"first": CTC(tap="stack_1"), "second": CTC(), "third": CTC()}
    found = from_json(written_before(experiment(**heads), decoding=BEAM))
    assert found.model.primary == found.model.recognising == "second"
    assert found.model.heads == heads | {"second": CTC(decoding=BEAM)}


def test_a_module_that_never_was_is_named():
    values = to_json(experiment(ctc=CTC()))
    values["data"]["class"] = "asr_jax.data.none:Data"
    with pytest.raises(UserError, match=r"asr_jax\.data\.none:Data, which cannot be loaded"):
        from_json(values)


def test_configs_may_give_the_decoding_to_the_experiment():
    model = Model(encoder=Zipformer.tiny(), heads={"ctc": CTC()})
    data = Data(train=("train.jsonl",), buckets=Buckets(num=2))
    found = Experiment(name="old", model=model, data=data, decoding=BEAM)
    assert found.model.heads == {"ctc": CTC(decoding=BEAM)}
    assert dataclasses.replace(found, seed=3).primary_decoding == BEAM
