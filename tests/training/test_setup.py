import json
import re
from dataclasses import replace

import numpy as np
import pytest

from asr_jax.audio.distort import Babble, BackgroundNoise, Gain, NarrowBand, Reverberation, UniformNoise
from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.presets import PRESETS
from asr_jax.audio.ramp import Ramp
from asr_jax.audio.specaugment import Cutout, SpecAugment, TimeWarp
from asr_jax.audio.stages import NormaliseByDataSet
from asr_jax.config import (
    Experiment,
    Init,
    Limits,
    Resume,
    Saving,
    Training,
    Validation,
    from_json,
    is_among,
    leaves,
    to_json,
)
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import MeshSizes
from asr_jax.core.programs import TRACED
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data, PlannedData, check_labels, plan_training
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.inference.model import NOT_IN_PROGRAMS, make_model, programs_of
from asr_jax.models.base import Model
from asr_jax.models.quartznet import QuartzNet
from asr_jax.models.zipformer import Zipformer
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import RunLength
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.text.tokenizers import TokenizerSettings
from asr_jax.training.initial_state import lower_initial_state
from asr_jax.training.profile import traced_processes
from asr_jax.training.recipe import layer_factors, make_recipe
from asr_jax.training.setup import set_up
from tests.support import assert_close
from tests.training.toy import Toy

TOKENIZER = CharacterTokenizer(symbols=("a", None, "b"), normaliser="none")


def planned(labels: dict[str, list[int]]) -> PlannedData:
    """Planned training data with the given texts and labels."""
    return plan_training(
        Utterances.of(
            Utterance(f"id-{text}", f"/{text}.flac", text, 1.0, labels=tuple(ids)) for text, ids in labels.items()
        ),
        Data(train=("t",), validation=("v",), tokenizer=TokenizerSettings(kind="ids")),
        tokenizer=TOKENIZER,
        output_length=lambda samples, of_features: np.asarray(samples) // 160,
        frames_needed=np.add,
        front_end=KaldiFbank(),
        seed=0,
    )


def test_labels_of_the_vocabulary_pass():
    check_labels(planned({"x": [0, 2], "y": [2]}), TOKENIZER)


@pytest.mark.parametrize("label", [1, 3])
def test_a_target_with_the_blank_or_beyond_the_vocabulary_names_its_utterance(label):
    with pytest.raises(UserError, match=re.escape(f"utterance id-y: label {label} of 'y' is the blank (1) or outside")):
        check_labels(planned({"x": [0, 2], "y": [0, label], "z": [2]}), TOKENIZER)


EXPERIMENT = Experiment(
    name="x", model=Model(encoder=Zipformer.tiny()), data=Data(train=("t",), validation=("v",)), optim=AdamW(),
    training=Training(num_updates=10),
)  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        {"model": Model(encoder=Zipformer.tiny(dropout_end=0.2))},
        {"model": Model(encoder=Zipformer.tiny(), augment=())},
        {"optim": AdamW(b2=0.99)},
        {"training": Training(num_updates=10, ema=EMA(0.5))},
        {"training": Training(num_updates=10, precision="bf16")},
    ],
)
def test_settings_that_a_program_holds_describe_it(other):
    assert programs_of(EXPERIMENT, TOKENIZER, length=RunLength(10, 5)) != programs_of(
        replace(EXPERIMENT, **other), TOKENIZER, length=RunLength(10, 5)
    )


def test_so_do_the_vocabulary_and_the_length_of_the_run():
    described = {
        programs_of(EXPERIMENT, TOKENIZER, length=RunLength(10, 5)),
        programs_of(EXPERIMENT, TOKENIZER, length=RunLength(11, 5)),
        programs_of(EXPERIMENT, TOKENIZER, length=RunLength(10, 4)),
        programs_of(EXPERIMENT, replace(TOKENIZER, symbols=("a", None, "b", "c")), length=RunLength(10, 5)),
    }
    assert len(described) == 4


@pytest.mark.parametrize(
    "other",
    [
        {"run_dir": "elsewhere", "fresh": True, "seed": 3},
        {"data": Data(train=("other",), validation=("v",))},
        {"training": Training(num_updates=10, log_every=7, validation=Validation(every=3))},
    ],
)
def test_settings_that_no_program_holds_do_not(other):
    assert programs_of(EXPERIMENT, TOKENIZER, length=RunLength(10, 5)) == programs_of(
        replace(EXPERIMENT, **other), TOKENIZER, length=RunLength(10, 5)
    )


def test_fields_that_are_left_out_change_no_program():
    """All fields of NOT_IN_PROGRAMS are changed at once."""
    changed = {
        "name": "other",
        "run_dir": "elsewhere",
        "fresh": True,
        "seed": 3,
        "dry_run": True,
        "data": Data(train=("other",), validation=("v",), speeds=(0.9,)),
        "init": Init(path="weights", new=("heads_.*",)),
        "resume": Resume(("optim",)),
        "training": Training(
            num_updates=11,
            num_epochs=2.0,
            validation=Validation(
                every=3,
                each_epoch=True,
                live=False,
                loss=True,
                sample_every=4,
                max_duration_s=5.0,
                num_samples=9,
            ),
            saving=Saving(
                every_minutes=1.0,
                every_updates=2,
                every_epochs=3,
                keep_last=5,
                keep_best=6,
                best_of="mean",
                milestones=(7,),
                milestone_epochs=(8,),
            ),
            log_every=8,
            limits=Limits(max_rejected=10, max_failed=11, patience=12, max_hours=13.0, epochs_this_job=14.0),
            profile="1:2",
            profile_processes="0,3",
            pre_allocate=True,
        ),
    }
    small = replace(EXPERIMENT, model=Model(encoder=QuartzNet.tiny(num_mels=80), augment=()))
    others = [small, replace(small, **changed)]
    both = [dict(leaves(each)) for each in others]
    left_out = {name for name in both[0].keys() | both[1].keys() if is_among(name, NOT_IN_PROGRAMS)}
    same = {name for name in left_out if both[0].get(name) == both[1].get(name)}
    fields = (name for name in same if not name.endswith(".class"))
    assert {name for name in fields if not name.startswith(("data.", "init.", "resume."))} == set()
    recipes = [make_recipe(each, make_model(each, TOKENIZER), RunLength(10, 5)) for each in others]
    texts = [lower_initial_state(recipe, seed=0).as_text() for recipe in recipes]
    assert texts[0] == texts[1]
    assert replace(recipes[0], updater=recipes[1].updater) == recipes[1]


def test_programs_of_the_users_own_classes_are_not_kept():
    """Their sources may change without a change of the key."""
    own = replace(EXPERIMENT, model=Model(encoder=Toy()))
    assert programs_of(own, TOKENIZER, length=RunLength(10, 5)) == TRACED


def test_a_rate_that_decays_from_layer_to_layer():
    encoder = Zipformer.tiny(num_layers=(1, 2, 1, 1))
    run = replace(EXPERIMENT, model=Model(encoder=encoder), optim=AdamW(layer_decay=0.5))
    factor = layer_factors(run)
    assert encoder.num_depths() == 6
    assert factor("heads_ctc/output/kernel", np.zeros((2, 3))) == 1.0
    assert factor("encoder/embed/conv_0/kernel", np.zeros(3)) == 0.5**6
    assert factor("encoder/downsample/logits", np.zeros(2)) == 0.5
    assert factor("encoder/stack_1/bypass/scale", np.zeros(2)) == 0.5**3
    stacked = factor("encoder/stack_1/layers/norm/bias", np.zeros((2, 7)))
    assert_close(stacked, [[0.5**4], [0.5**3]])
    of_adapter = factor("lora/encoder/stack_1/layers/x/kernel/a", np.zeros((2, 3, 4)))
    np.testing.assert_array_equal(of_adapter.ravel(), stacked.ravel())
    assert layer_factors(EXPERIMENT)("encoder/embed/conv_0/kernel", np.zeros(3)) == 1.0


def run_on_features(folder, **settings):
    """Returns an experiment on one utterance of precomputed features."""
    np.zeros((90, 80), "<f4").tofile(folder / "a.f32")
    line = {"id": "a", "features_path": "a.f32", "text": "ab", "rows": 90, "cols": 80}
    (folder / "train.jsonl").write_text(json.dumps(line) + "\n")
    data = Data(train=(str(folder / "train.jsonl"),), validation=(str(folder / "train.jsonl"),))
    return replace(EXPERIMENT, data=replace(data, batching=Batching(row_multiple=4)), **settings)


def test_augmentations_of_audio_are_not_for_ready_features(tmp_path):
    run = run_on_features(tmp_path, model=Model(encoder=Toy(), augment=(Gain(),)))
    with pytest.raises(UserError, match=r"Gain.*features"):
        set_up(run, tmp_path / "run")


def test_a_model_without_rules_for_the_axis_model_is_refused_by_the_setup(tmp_path):
    run = run_on_features(tmp_path, model=Model(encoder=Toy(), augment=()), mesh=MeshSizes(model=2))
    with pytest.raises(UserError, match=r"--mesh\.model 2: the model has no rules for the axis model"):
        set_up(run, tmp_path / "run")


def test_kernels_for_other_devices_are_refused_before_data_are_read(tmp_path):
    run = replace(
        EXPERIMENT, data=Data(train=("absent.jsonl",)), training=Training(num_updates=1, kernels=("glu=triton",))
    )
    with pytest.raises(UserError, match="glu=triton, which is for NVIDIA GPUs, and the devices are cpu"):
        set_up(run, tmp_path / "run")


def test_settings_of_every_front_end_and_augmentation_come_back_from_json():
    augment = (
        Gain(), UniformNoise(), BackgroundNoise(folder="n"), Babble(), Reverberation(folder="r"), NarrowBand(),
        SpecAugment.quartznet(), SpecAugment.nemo(), SpecAugment.rnnt(), Cutout(), TimeWarp(),
    )  # fmt: skip
    statistics = NormaliseByDataSet(mean=(1.0,) * 80, deviation=(2.0,) * 80, share=Ramp((0.5,), (1.0,)))
    for front_end in [make() for make in PRESETS.values()] + [PRESETS["rnnt"](statistics)]:
        fits = augment if front_end.bins else augment[:6]  # augmentations of samples
        model = Model(encoder=Toy(), front_end=front_end, augment=fits)
        assert from_json(json.loads(json.dumps(to_json(model)))) == model


def test_processes_that_are_traced():
    assert traced_processes(Training()) == traced_processes(Training(profile="1:2", profile_processes="all")) == [0]
    assert traced_processes(Training(profile_processes="3,0,3")) == [0, 3]  # without a trace, any number
    with pytest.raises(UserError, match=r"profile_processes is 0,3, and the job has 1 process: expected 0, or all"):
        traced_processes(Training(profile="1:2", profile_processes="0,3"))
    for wrong in ("", "0,", "main", "-1"):
        with pytest.raises(ValueError, match=r"profile_processes is .*expected numbers such as 0,3, or all"):
            Training(profile_processes=wrong)
