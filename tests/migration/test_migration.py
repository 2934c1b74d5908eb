"""Migration of each system: the settings that values become, what differs, and mistakes in sources."""

import re
import subprocess
import sys

import pytest

from asr_jax.audio.presets import w2v_bert
from asr_jax.cli.command_line import load_config
from asr_jax.cli.migrate import main
from asr_jax.config import differences
from asr_jax.core.errors import UserError
from asr_jax.losses.transducer import Since
from asr_jax.migration import rust
from asr_jax.migration.engine import detected, migrate
from asr_jax.migration.python_source import expression
from asr_jax.migration.report import config_text
from asr_jax.migration.sources import read_sources, read_yaml
from asr_jax.migration.systems import SYSTEMS
from asr_jax.models.w2v_bert import W2VBert
from asr_jax.optim.optimizers import LAMB, AdamW
from asr_jax.optim.schedules import RunLength
from asr_jax.text.normalise import unknown_normaliser
from tests.migration.test_lists_of_names import KNOWN, migrated, recipe
from tests.support import ROOT, assert_close

RUST = "cargo run --bin train -- --train-manifest train.jsonl --tokenizer t.model"


def experiment_of(system, command):
    return migrated(system, command.split()).experiment


def changed(system, command):
    """Names of the settings that differ from those of the recipe, with their values."""
    found = migrated(system, command.split())
    return {name: value for name, _, value in differences(recipe(found.recipe), found.experiment)}


def test_the_defaults_of_nvidias_script_are_the_recipe():
    """Except for the precision, the data, and how often something is saved and shown."""
    found = changed("quartznet", "AMP=true bash scripts/train.sh")
    assert found == {
        "training.precision": "f16",
        "training.log_every": 1,
        "training.saving.every_epochs": 10,
        "training.validation.every": 241,
        "training.validation.sample_every": 241,
    }


@pytest.mark.parametrize(
    ("script", "others"),
    [
        ("pretrain_base", {"training.saving.every_epochs": 1}),
        ("finetune_base_960h", {"training.saving.every_epochs": 10, "seed": 1}),
    ],
)
def test_the_defaults_of_wav2vec_scripts_are_the_recipes(script, others):
    found = changed("wav2vec2", f"BF16=true bash scripts/{script}.sh")
    kept = {name: value for name, value in found.items() if not name.startswith(("data.train", "data.valid", "init."))}
    assert kept == {"training.log_every": 1, **others}


def test_icefalls_best_recipe():
    """The command of icefall's RESULTS.md for CR-CTC, and configs/zipformer_cr_ctc.py."""
    command = (
        "./zipformer/train.py --world-size 4 --num-epochs 50 --use-bf16 1 --use-cr-ctc 1 --use-ctc 1 "
        "--use-transducer 0 --enable-spec-aug 0 --full-libri 1 --max-duration 700"
    )
    found = differences(recipe("zipformer_cr_ctc"), experiment_of("icefall", command))
    assert {name for name, _, _ in found} == {"name", "run_dir", "seed", "training.saving.every_updates"}


def test_caimans_defaults_are_those_of_its_sizes():
    found = changed(
        "caiman", "./scripts/train.sh --model_config configs/base-8703sp.yaml --train_manifests a b --no_amp"
    )
    wrong = {name for name in found if name.startswith(("optim.", "model.encoder", "training.pass", "training.ema"))}
    assert not wrong
    assert found["data.batching.rows"] == [] or found["data.batching.rows.0"] == 16
    assert found["data.mixing.kind"] == "temperature"


def test_penalties_of_caiman_begin_with_a_word_error_rate():
    usual = experiment_of("caiman", "train.py").model.heads["transducer"].penalties
    assert usual == recipe("rnnt_base").model.heads["transducer"].penalties
    command = "train.py --dp_final_value 0.02 --dp_toggle_step 7000 --dp_wer_threshold 0.5 --star_initial_value 0.8"
    found = experiment_of("caiman", command).model.heads["transducer"].penalties
    assert (found.delay, found.delay_since) == (0.02, Since(0.0, 0.5, 7000))
    assert (found.star, found.star_since) == (1.0, Since(0.8, 0.2, 0))
    constant = experiment_of("caiman", "train.py --delay_penalty 0.005").model.heads["transducer"].penalties
    assert (constant.delay, constant.delay_since) == (0.005, Since())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("remove_tags: true, normalize_transcripts: lowercase", "no_tags.v1+english.v1"),
        ("remove_tags: false, normalize_transcripts: identity, replacements: ", "none"),
        (
            'normalize_transcripts: ascii, replacements: [{old: ";", new: ","}, {old: "+", new: " "}]',
            "replace:;=,+replace:%2B= +no_tags.v1+ascii.v1",
        ),
    ],
)
def test_texts_of_caiman(settings, expected, tmp_path):
    (tmp_path / "model.yaml").write_text(f"rnnt: {{}}\ninput_train:\n  audio_dataset: {{{settings}}}\n")
    found = migrate(KNOWN["caiman"], read_sources([str(tmp_path / "model.yaml")], ()), load=recipe).experiment.data
    assert found.tokenizer.normaliser == expected
    assert not unknown_normaliser(expected)


def test_milestones_and_schedules_in_updates():
    quartznet = experiment_of("quartznet", "python train.py --keep_milestones 100 200")
    assert quartznet.training.saving.milestone_epochs == (100, 200)
    command = (
        "speech_to_text_ctc.py model.optim.sched.name=NoamHoldAnnealing model.optim.lr=0.002 trainer.max_steps=5000"
    )
    encoder = "model.encoder._target_=nemo.SqueezeformerEncoder model.encoder.feat_in=64 model.encoder.n_layers=16"
    ratio = "model.optim.sched.warmup_ratio=0.1 model.optim.sched.hold_steps=2000 model.optim.sched.decay_rate=1.0"
    schedule = experiment_of("nemo", f"{command} {encoder} model.encoder.d_model=144 {ratio}").optim.schedule
    assert (schedule.warmup_updates, schedule.hold_updates, schedule.decay) == (500, 2000, "noam")
    assert_close(float(schedule.build(RunLength(5000, 1))(3000)), 0.002 * 500 / 1000, rtol=1e-6)


def test_the_size_of_a_batch():
    """Products of devices, rows and accumulation, in every system's terms."""
    quartznet = experiment_of("quartznet", "NUM_GPUS=2 GPU_BATCH_SIZE=24 GRAD_ACCUMULATION=24 bash scripts/train.sh")
    assert (quartznet.data.batching.budget, quartznet.training.accumulate) == (48, 24)
    wav2vec = experiment_of(
        "wav2vec2", "NUM_GPUS=4 MAX_TOKENS=1600000 NUM_CONCAT_BATCHES=2 bash scripts/pretrain_base.sh"
    )
    assert (wav2vec.data.batching.budget, wav2vec.model.sub_batches) == (4 * 2 * 100, 8)
    caiman = experiment_of("caiman", "train.py --num_gpus 4 --global_batch_size 512 --grad_accumulation_batches 2")
    assert (caiman.data.batching.rows, caiman.data.batching.devices) == ((64,), 4)
    icefall = experiment_of("icefall", "zipformer/train.py --world-size 4 --max-duration 600")
    assert (icefall.data.batching.budget, icefall.model.encoder.batches_per_update) == (2400, 4)
    rust = experiment_of(
        "rust", f"{RUST} --device-indices 0,1 --adaptive-batch-unit duration-ms --adaptive-batch-budget 7000"
    )
    assert (rust.data.batching.unit, rust.data.batching.budget, rust.data.batching.max_rows) == ("seconds", 14, 16)


@pytest.mark.parametrize("mode", ["fixed", "duration", "1D-bucketing", "1D-bucketing-dyn", "2D-bucketing"])
def test_sampling_modes(mode):
    found = migrated("caiman", f"train.py --sampling_mode {mode} --batch_split_factor 2".split())
    batching = found.experiment.data.batching
    assert batching.any_length == (mode in ("fixed", "duration"))
    assert batching.fits_memory == (mode == "2D-bucketing")
    assert any("its page names no flag" in each for each in found.differs) == (
        mode not in ("fixed", "2D-bucketing-fixed")
    ) or (mode == "1D-bucketing-dyn")


def test_speeds_of_dali_multiply_durations(tmp_path):
    text = "input_train:\n  audio_dataset:\n    speed_perturbation: {min_rate: 0.8, max_rate: 1.25}\n"
    (tmp_path / "model.yaml").write_text(text + "quartznet: {}\n")
    found = migrate(KNOWN["quartznet"], read_sources([str(tmp_path / "model.yaml")], ()), load=recipe).experiment.data
    assert_close(found.speeds[0] - found.speed_jitter, 1 / 1.25, rtol=1e-12)
    assert_close(found.speeds[0] + found.speed_jitter, 1 / 0.8, rtol=1e-12)


def test_the_inner_layer_of_the_enhanced_paraformer_is_that_of_half_the_depth():
    model = experiment_of("rust", f"{RUST} --paraformer --paraformer-enhanced --num-layers 6").model
    assert model.encoder.taps == ("layer_2",)
    assert model.heads["shallow"].tap == model.heads["paraformer"].enhanced.tap == "layer_2"


def test_schedules_of_the_rust_trainer():
    """The example of its documents: warm-up 2, hold 1, decay 2 to 0.1, in updates and in epochs."""
    steps = "--learning-rate 1 --lr-warmup-steps 2 --lr-hold-steps 1 --lr-decay-steps 2 --lr-min 0.1"
    rate = experiment_of("rust", f"{RUST} {steps}").optim.schedule.build(RunLength(10, 1))
    assert_close([float(rate(update)) for update in range(6)], [0.5, 1, 1, 0.55, 0.1, 0.1], rtol=1e-6)
    epochs = "--learning-rate 1 --lr-warmup-epochs 2 --lr-hold-epochs 1 --lr-decay-exponent 1"
    rate = experiment_of("rust", f"{RUST} {epochs}").optim.schedule.build(RunLength(10, 1))
    assert_close([float(rate(update)) for update in range(6)], [0.5, 1, 1, 2 / 3, 0.5, 0.4], rtol=1e-6)


def test_optimizers_of_quartznet():
    adam = experiment_of("quartznet", "python train.py --optimizer adamw --lr 0.002").optim
    assert isinstance(adam, AdamW)
    assert (adam.schedule.peak_lr, adam.weight_decay, adam.clip_at) == (0.002, 1e-3, 0)
    lamb = experiment_of("quartznet", "OPTIMIZER=lamb98 bash scripts/train.sh").optim
    assert isinstance(lamb, LAMB)
    assert (lamb.b2, lamb.eps) == (0.98, 1e-9)


def test_sizes_of_a_hugging_face_folder(monkeypatch):
    monkeypatch.setattr(
        rust, "model_of", lambda path: (W2VBert.tiny(masks=False), w2v_bert()) if path == "here" else None
    )
    found = experiment_of("rust", f"{RUST} --w2v-bert --w2v-hf-model-dir here --w2v-hf-load-weights")
    assert (found.model.encoder, found.init.path) == (W2VBert.tiny(), "here")
    elsewhere = migrated("rust", f"{RUST} --w2v-bert --w2v-hf-model-dir elsewhere".split())
    assert any("elsewhere is not on this machine" in each for each in elsewhere.differs)


def test_heads_of_icefall():
    command = (
        "zipformer/train.py --use-ctc 1 --use-transducer 1 --use-attention-decoder 1 --ctc-loss-scale 0.1 --causal 1"
    )
    model = experiment_of("icefall", command).model
    assert [*model.heads] == ["transducer", "ctc", "attention"]
    assert (model.heads["ctc"].scale, model.primary, len(model.encoder.contexts)) == (0.1, "transducer", 16)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.py")), ids=lambda path: path.stem)
def test_settings_are_written_as_python(path):
    """Every config of this package, written and run, has the same settings."""
    before = load_config(path)
    text, imports = expression(before, {}, indent=0, before="made =")
    scope = {}
    exec("\n".join(f"from {module} import {name}" for module, name in imports), scope)
    exec(text, scope)
    assert scope["made"] == before
    assert max(map(len, text.splitlines())) <= 120


def test_comments_stand_beside_their_settings(tmp_path):
    comments = {"training.num_epochs": "EPOCHS=5", "data.train": "x " * 80}
    lines = expression(recipe("quartznet_librispeech"), comments, indent=0, before="made =")[0].splitlines()
    assert "        num_epochs=260,  # EPOCHS=5" in lines
    place = next(number for number, line in enumerate(lines) if line.strip().startswith("train="))
    assert all(line.strip().startswith("#") for line in lines[place - 2 : place])


def test_settings_that_the_recipe_does_not_have():
    command = "zipformer/train.py --use-transducer 0 --use-ctc 1 --decoder-dim 256"
    found = migrated("icefall", command.split())
    [line] = [line for line in found.lines if line.given == "--decoder-dim=256"]
    assert line[1:] == ("refused", "configs/zipformer.py has no model.heads.transducer.prediction.dim")


def test_names_with_one_reason_have_a_line_each():
    found = migrated("quartznet", ["OMP_NUM_THREADS=1", "PYTHONPATH=x", "bash", "scripts/train.sh"])
    assert {"OMP_NUM_THREADS=1", "PYTHONPATH=x"} <= {line.given for line in found.lines}


def test_a_value_that_another_replaces_has_no_effect():
    found = migrated("rust", f"{RUST} --manifest-dir there".split())
    assert found.experiment.data.train == ("there",)
    [line] = [line for line in found.lines if line.given == "--train-manifest=train.jsonl"]
    assert line.result == "it has no effect beside the other values"


def test_rows_of_a_batch_of_wav2vec():
    command = "NUM_GPUS=2 bash scripts/pretrain_base.sh --num_concat_batches 1 --batch_size 3"
    assert experiment_of("wav2vec2", command).data.batching.max_rows == 6


def test_settings_of_training_in_a_command_that_does_not_train():
    found = migrated("quartznet", ["EPOCHS=3", "bash", "scripts/train_benchmark.sh"])
    assert [line.result for line in found.lines] == ["it is a setting of training, and no argument of this command"]


def test_a_schedule_by_the_width_of_the_model(tmp_path):
    (tmp_path / "x.yaml").write_text(
        "model:\n  optim: {lr: 1.0, sched: {name: NoamAnnealing, d_model: 100, warmup_steps: 100}}\n"
        "  preprocessor: {normalize: 'None'}\n  decoder: {_target_: x.ConvASRDecoder}\n"
        "  encoder: {_target_: x.ConvASREncoder, feat_in: 64, activation: relu, conv_mask: true, jasper: [{filters: 8, "
        "repeat: 1, kernel: [3], stride: [1], dilation: [1], dropout: 0.0, residual: false}]}\n"
    )
    found = migrate(KNOWN["nemo"], read_sources([str(tmp_path / "x.yaml")], ()), load=recipe).experiment
    assert_close(found.optim.schedule.peak_lr, 0.01, rtol=1e-5)
    assert found.model.front_end.then == ()


CONFORMER = "model.encoder._target_=x.ConformerEncoder model.encoder.feat_in=64 model.encoder.n_layers=18"
FAST = f"speech_to_text.py {CONFORMER} model.encoder.d_model=512 model.encoder.subsampling_factor=8"
RNNT = (
    "model.decoder._target_=x.RNNTDecoder model.decoder.prednet.pred_hidden=640 model.joint._target_=x.RNNTJoint "
    "model.decoder.prednet.pred_rnn_layers=1 model.joint.jointnet.joint_hidden=640 model.rnnt_reduction=mean_volume "
    "model.joint.jointnet.activation=relu model.loss.warprnnt_numba_kwargs.fastemit_lambda=0.005"
)
TDT = (
    "model.joint.num_extra_outputs=2 model.loss.loss_name=tdt model.loss.tdt_kwargs.durations=[0,1] "
    "model.loss.tdt_kwargs.omega=0.1 model.decoding.model_type=tdt model.decoding.durations=[0,1]"
)


def test_transducers_of_nemo():
    """loss_name default is warprnnt_numba, whose options it has."""
    found = experiment_of("nemo", f"{FAST} {RNNT} model.loss.loss_name=default")
    head = found.model.heads["transducer"]
    assert (head.weight_by, head.fast_emit, head.durations) == ("labels", 0.005, ())
    mean = experiment_of("nemo", f"{FAST} {RNNT.replace('mean_volume', 'mean_batch')}")
    assert mean.model.heads["transducer"].weight_by == "utterances"


@pytest.mark.parametrize(
    ("system", "command", "absent", "present"),
    [
        ("nemo", f"{FAST} {RNNT}", "omega|averaged", "valid frames only"),
        ("nemo", f"{FAST} {RNNT} {TDT}", "averaged", "omega"),
        ("nemo", "x.py init_from_nemo_model=x.nemo", "clip|averaged|warm-up|weight decay", "the mean over labels"),
        ("icefall", "./zipformer/train.py --use-fp16 1", "is set below|float16", "--enable-musan: there is no noise"),
        (
            "icefall",
            "./zipformer/train.py --enable-musan 0",
            "(?i)musan:|is set below",
            "an exponential moving average",
        ),
        ("caiman", "./scripts/train.sh", "is no penalty|only if", "--prob_background_noise=0.25: there is no noise"),
        ("caiman", "train.py --global_batch_size 1000 --grad_accumulation_batches 3", "was not", "an update has 984"),
        ("quartznet", "AMP=:true bash scripts/train.sh", "which trains", "it is left out: AMP is on here"),
        ("wav2vec2", "NUM_GPUS=4 bash scripts/pretrain_base.sh", "64 sub-batches|bfloat16", "in each sub-batch"),
        ("rust", f"{RUST} --architecture squeezeformer --variant xs", "pieces is 128", "Upsampled frames"),
    ],
)
def test_what_differs_fits_the_settings(system, command, absent, present, capsys):
    """What holds for the settings of the recipe alone is not said of the migrated ones."""
    main(["--from", system, "--", command])
    _, _, differs = " ".join(capsys.readouterr().out.split()).partition("What differs:")
    assert present in differs
    assert not re.search(absent, differs)


def test_every_computed_value_has_its_setting_or_a_reason():
    lines = {
        line.given.split("=")[0]: (line.kind, line.result)
        for system, command in (
            ("caiman", "./scripts/train.sh --prob_train_narrowband 0.1"),
            ("icefall", "./zipformer/train.py --causal 0 --full-libri 1"),
            ("nemo", f"{FAST} trainer.benchmark=false trainer.strategy.x=1 trainer.fast_dev_run=5 trainer.num_nodes=1"),
        )
        for line in migrated(system, command.split()).lines
    }
    assert lines["--prob_background_noise"] == ("default", "see What differs")
    assert lines["--noise_delay_steps"] == ("not needed", "it has no effect beside the other values")
    assert lines["--prob_train_narrowband"] == ("mapped", "model.augment.NarrowBand.probability = 0.1")
    assert lines["--enable-musan"] == ("default", "see What differs")
    assert lines["--causal"] == ("not needed", "it is off")
    assert lines["--full-libri"][0] == "mapped"
    assert lines["trainer.benchmark"] == ("not needed", "XLA chooses kernels when it compiles")
    assert lines["trainer.strategy.x"][1].startswith("every batch is split over all devices")
    assert lines["trainer.fast_dev_run"] == ("refused", "the trainer has no such setting")
    assert lines["trainer.num_nodes"][1].startswith("data.batching.devices")
    assert lines["exp_manager.ema.decay"] == ("default", "training.ema.decay = 0.0")


def test_given_values_are_written_even_if_they_are_the_defaults():
    schedule = "model.optim.sched.name=CosineAnnealing model.optim.lr=1e-3 model.optim.sched.min_lr=1e-4"
    text = config_text(migrated("nemo", f"{FAST} model.decoder._target_=x.ConvASRDecoder {schedule}".split()), "")
    for line in (
        "num_layers=18,  # encoder.n_layers=18",
        "dim=512,  # encoder.d_model=512",
        "peak_lr=0.001,  # optim.lr=1e-3",
        'decay="cosine",  # sched.name=CosineAnnealing',
        "final_share=0.1,  # sched.min_lr=1e-4, optim.lr=1e-3: min_lr / lr",
        "decay=0.0,  # ema.decay=0.0 by default",
    ):
        assert line in text


def test_speeds_have_their_formula():
    rates = "input_train.audio_dataset.speed_perturbation.{}"
    command = ["train.py", f"{rates.format('min_rate')}=0.8", f"{rates.format('max_rate')}=1.25"]
    found = migrated("caiman", command)
    assert_close(found.experiment.data.speeds[0], (1 / 0.8 + 1 / 1.25) / 2, rtol=1e-6)
    assert "(1 / min_rate + 1 / max_rate) / 2" in found.comments["data.speeds"]
    assert "(1 / min_rate - 1 / max_rate) / 2" in found.comments["data.speed_jitter"]


MISTAKES = [
    ("quartznet", "DALI=1 bash scripts/train.sh", "DALI is not a name of NVIDIA's QuartzNet"),
    ("caiman", "train.py --prob_babble_noise 1 --noise_initial_high 1", "the settings do not fit this package: first"),
    ("wav2vec2", "bash scripts/pretrain_base.sh --loss_weights 1", "--loss_weights=1: expected 2 numbers"),
    (
        "rust",
        f"{RUST} --learning-rat 1",
        "--learning-rat is not a name of the Rust trainer that is known here; did you mean",
    ),
    (
        "quartznet",
        "EPOCH=3 bash scripts/train.sh",
        "EPOCH is not a name of NVIDIA's QuartzNet that is known here; did you",
    ),
    ("quartznet", "EPOCHS=many bash scripts/train.sh", "EPOCHS=many: expected a number"),
    ("quartznet", "EMA=2 bash scripts/train.sh", "the settings do not fit this package: decay is 2.0: expected"),
    (
        "quartznet",
        "LR_POLICY=step bash scripts/train.sh",
        "LR_POLICY=step: expected one of exponential, legacy",
    ),
    ("quartznet", "OPTIMIZER=adam bash scripts/train.sh", "OPTIMIZER=adam: expected one of novograd, fused"),
    ("caiman", "train.py --sampling_mode dynamic", "--sampling_mode=dynamic: expected one of fixed, duration, 1D"),
    (
        "caiman",
        "train.py --grad_accumulation_batches 0",
        "--grad_accumulation_batches=0: expected a whole number from 1",
    ),
    ("quartznet", "NUM_GPUS=0 bash scripts/train.sh", "NUM_GPUS=0: expected a whole number from 1"),
    ("wav2vec2", "NUM_GPUS=3.5 bash scripts/pretrain_base.sh", "NUM_GPUS=3.5: expected a whole number from 1"),
    (
        "rust",
        f"{RUST} --gradient-clip-norm 1 --gradient-clip-value 1",
        "--gradient-clip-norm and --gradient-clip-value",
    ),
    (
        "nemo",
        "speech_to_text.py model.encoder._target_=x.ConformerEncoder model.encoder.feat_in=64 "
        "model.encoder.d_model=8 model.encoder.n_layers=eighteen",
        "the YAML file: num_layers is 'eighteen'",
    ),
    (
        "icefall",
        "./conformer_ctc3/train.py --full-libri 1",
        "./conformer_ctc3/train.py is no program of icefall's Zipformer",
    ),
    (
        "nemo",
        "model.encoder._target_=x.RNNEncoder trainer.max_epochs=3",
        "the encoder is RNNEncoder: expected one of Conf",
    ),
]


@pytest.mark.parametrize(("system", "command", "message"), MISTAKES)
def test_mistakes(system, command, message):
    with pytest.raises(UserError) as error:
        migrated(system, command.split())
    assert str(error.value).startswith(message)


def test_unknown_names_can_be_ignored():
    read = read_sources([], f"{RUST} --learning-rat 1".split())
    found = migrate(KNOWN["rust"], read, load=recipe, ignore_unknown=True)
    assert any(each.startswith("--learning-rat is not a name") for each in found.differs)


def test_a_misspelt_variable_of_a_wrapper_is_a_mistake(tmp_path):
    wrapper = tmp_path / "mine.sh"
    wrapper.write_text("export LEARNNG_RATE=0.1\nbash scripts/train.sh\n")
    with pytest.raises(UserError, match="LEARNNG_RATE is not a name"):
        migrate(KNOWN["quartznet"], read_sources([str(wrapper)], ()), load=recipe)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("GPU_BATCH_SIZE=3 bash scripts/train.sh", "quartznet"),
        ("NUM_CONCAT_BATCHES=3 bash scripts/pretrain_base.sh", "wav2vec2"),
        ("cargo run --bin train -- --epochs 3", "rust"),
        ("train.py --sampling_mode fixed", "caiman"),
        ("_target_: nemo.collections.asr.modules.ConformerEncoder", "nemo"),
        ("./zipformer/train.py --use-cr-ctc 1", "icefall"),
    ],
)
def test_systems_are_recognised(text, name):
    assert detected(SYSTEMS, text, "x.sh").name == name


def test_sources_without_a_system():
    known = "caiman|quartznet|wav2vec2|rust|nemo|icefall"
    with pytest.raises(UserError) as error:
        detected(SYSTEMS, "[project]", "pyproject.toml")
    assert str(error.value) == (
        f"no known system was recognised in pyproject.toml: expected sources of one, or --from {known}"
    )
    with pytest.raises(UserError) as error:
        detected(SYSTEMS, "caiman nemo.collections", "mine.yaml")
    assert str(error.value) == f"mine.yaml: names of caiman and nemo were found: expected --from {known}"


def test_references_in_yaml(tmp_path):
    (tmp_path / "a.yaml").write_text("model: {size: 3, encoder: {d: '${model.size}', list: ['${model.size}', x]}}\n")
    assert read_yaml(tmp_path / "a.yaml") == {"model.size": 3, "model.encoder.d": 3, "model.encoder.list": [3, "x"]}


def test_commands_that_do_not_train(capsys):
    main(["--from", "quartznet", "--", "BATCH_SIZE_SEQ=8 bash scripts/inference_benchmark.sh"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "this does not train: python -m asr_jax.benchmark inference RUN --batch-sizes 8"


def test_a_yaml_file_of_another_system(tmp_path):
    (tmp_path / "x.yaml").write_text("model: {encoder: {_target_: nemo.collections.asr.modules.ConformerEncoder}}")
    with pytest.raises(
        UserError, match=r"looks like a source of NeMo: expected --from nemo\nmodel\.encoder\._target_ is not a name"
    ):
        main(["--from", "quartznet", str(tmp_path / "x.yaml")])


def test_a_config_that_cannot_be_written(tmp_path, capsys):
    """It is an error before the report."""
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        main(["--from", "rust", "--out", str(tmp_path / "file" / "c.py"), "--", RUST])
    assert capsys.readouterr().out == ""


def test_the_command(tmp_path):
    """The written config is one that `train` takes; an existing file is kept."""
    out = tmp_path / "mine.py"
    command = [sys.executable, "-m", "asr_jax.migrate", "--from", "rust", "--out", str(out), "--", *RUST.split()]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert f"next: python -m asr_jax.train --config {out} --dry-run" in found.stdout
    assert load_config(out) == experiment_of("rust", RUST)
    with pytest.raises(UserError, match="--force overwrites a file"):
        main(command[3:])
