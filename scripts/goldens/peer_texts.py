"""Computes texts and log-probabilities of recordings with the original code of a published model.

Runs in .venv-reference, with the sources that `scripts/setup_reference.sh --peers` downloads to .peers:

    .venv-reference/bin/python scripts/goldens/peer_texts.py SYSTEM MODEL OUT.safetensors AUDIO …

SYSTEM is transformers, fairseq, nvidia (wav2vec 2.0), quartznet (NVIDIA's), nemo, icefall, icefall_transducer or
funasr, and MODEL a file or folder that the system's own code loads. OUT has the log-probabilities [T V] of each
recording, named 0, 1, …; the texts are printed as a JSON list. Of transducers, T are the decisions of the greedy search
in their order, and OUT also has the log-probabilities of durations, named 0.durations, …. Of FunASR's models, T are the
labels. Each recording is computed alone. Stubs replace packages that are not installed and compute nothing here; the
systems' own modules, loaders and decoders run unchanged.
"""

import argparse
import ast
import dataclasses
import importlib
import io
import itertools
import json
import logging
import re
import sys
import tarfile
import tempfile
import types
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import kaldi_native_fbank
import numpy as np
import soundfile
import torch
from safetensors.numpy import save_file
from torch import Tensor, nn

PEERS = Path(__file__).resolve().parents[2] / ".peers"
NVIDIA = "DeepLearningExamples/PyTorch/SpeechRecognition"
Peer = Callable[[Tensor], tuple[Tensor, str] | tuple[Tensor, str, Tensor]]
"""Maps samples [S] of full scale 1 to log-probabilities [T V] and the text; of TDT also to those of durations [T D]."""


def transformers(folder: Path) -> Peer:
    """Returns a model of Hugging Face with its processor; both are chosen by transformers."""
    import transformers as library

    (architecture,) = json.loads((folder / "config.json").read_text())["architectures"]
    model, loading = getattr(library, architecture).from_pretrained(folder, output_loading_info=True)
    # Counters of batches, which have no effect on outputs, are not written.
    missing = {name for name in loading["missing_keys"] if not name.endswith("num_batches_tracked")}
    assert not any((loading | {"missing_keys": missing}).values()), loading
    processor = library.AutoProcessor.from_pretrained(folder)
    model.eval()

    def peer(samples: Tensor) -> tuple[Tensor, str] | tuple[Tensor, str, Tensor]:
        inputs = processor([samples.numpy()], sampling_rate=16000, return_tensors="pt")
        if architecture == "ParakeetForTDT":
            steps = recorded(model.joint)
            sequences = model.generate(**inputs).sequences
            logits, size = torch.stack([step.flatten() for step in steps]), model.config.vocab_size
            model.joint.__dict__.pop("forward")
            text = processor.batch_decode(sequences, skip_special_tokens=True)[0]
            return logits[:, :size].log_softmax(-1), text, logits[:, size:].log_softmax(-1)
        logits = model(**inputs).logits[0]
        return logits.log_softmax(-1), processor.batch_decode(logits.argmax(-1)[None])[0]

    return peer


def recorded(module: Any) -> list[Tensor]:
    """Returns a list to which the outputs of a module are appended from now on."""
    steps: list[Tensor] = []
    forward = module.forward

    def recording(*args: Any, **named: Any) -> Tensor:
        steps.append(forward(*args, **named))
        return steps[-1]

    module.forward = recording
    return steps


def fairseq(file: Path) -> Peer:
    """Returns a model that fairseq's `load_model_ensemble_and_task` loads, with its dictionary and Viterbi decoder."""
    import_fairseq()
    from examples.speech_recognition.new.decoders.viterbi_decoder import ViterbiDecoder
    from fairseq import checkpoint_utils
    from fairseq.data.data_utils import post_process

    # Older files have no dictionary; it is looked for in the folder that replaces the one of the training data.
    (model,), config, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(file)], arg_overrides={"data": str(file.parent)}
    )
    model.eval()
    dictionary = task.target_dictionary
    decoder = ViterbiDecoder.__new__(ViterbiDecoder)  # its base class reads settings that only other decoders use
    decoder.blank = dictionary.bos()

    def peer(samples: Tensor) -> tuple[Tensor, str]:
        samples = nn.functional.layer_norm(samples, samples.shape) if config.task.normalize else samples
        output = model(source=samples[None], padding_mask=torch.zeros(1, len(samples), dtype=torch.bool))
        log_probs = model.get_normalized_probs(output, log_probs=True)[:, 0]
        tokens = decoder.decode(log_probs[None])[0][0]["tokens"]
        return log_probs, post_process(dictionary.string(tokens.int()), "letter")

    return peer


def import_fairseq() -> None:
    """Makes fairseq importable on Python 3.11 and newer, whose dataclasses refuse its defaults without a hash."""
    original = dataclasses.dataclass

    def hashable(cls: Any = None, **options: Any) -> Any:
        def wrap(cls: Any) -> Any:
            theirs = ("fairseq", "examples", "hydra")
            is_theirs = cls.__module__.split(".")[0] in theirs and "__hash__" not in vars(cls)
            return original(cls, **({"unsafe_hash": True} if is_theirs else {}) | options)

        return wrap if cls is None else wrap(cls)

    dataclasses.dataclass = hashable  # type: ignore[assignment]
    sys.path.insert(0, str(PEERS / "fairseq"))
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    importlib.import_module("fairseq.models.wav2vec")


def nvidia(file: Path) -> Peer:
    """Returns a wav2vec 2.0 of NVIDIA, built and decoded as in its inference.py."""
    peer = import_nvidia()
    checkpoint = torch.load(file, map_location="cpu", weights_only=False)
    settings = peer.utils.get_ckpt_args(checkpoint)
    dictionary = peer.dictionary.load(io.StringIO(checkpoint["output_labels"]))
    args = argparse.ArgumentParser()
    peer.arguments.populate_infer(args)
    args = args.parse_args(["--output_dir", "", "--w2v_path", str(file), "--fp32_pos_conv", "--fp32_conv_norms"])
    peer.utils.update_args_for_finetuning(args, str(file))
    # inference.py masks padding within the extractor, which is possible only with group norm.
    args.masked_feature_extractor = masks = settings["extractor_mode"] == "default"
    model, *_ = peer.utils.build_model(args, "infer", dictionary)
    peer.helpers.load_wrapped_state(model, checkpoint["model"])
    inner = model.w2v_encoder.w2v_model
    if masks:
        inner.remove_conv_wn()
        inner.feature_extractor.forward = inner.feature_extractor.masked_forward
        model.w2v_encoder.forward, inner.forward = model.w2v_encoder.infer, inner.infer
    model.eval()

    def compute(samples: Tensor) -> tuple[Tensor, str]:
        if settings["normalize"]:
            samples = nn.functional.layer_norm(samples, samples.shape)
        found = model(samples[None], torch.zeros(1, len(samples), dtype=torch.bool))
        output, padding = found if masks else (found["encoder_out"], found["padding_mask"])
        log_probs = model.get_normalized_probs(output, padding, log_probs=True)
        best = log_probs.argmax(dim=-1).int().transpose(0, 1)
        (text,) = peer.helpers.gather_predictions([best], dictionary, blank_id=0)
        return log_probs[:, 0], text.replace(dictionary[dictionary.nspecial], " ")

    return compute


def import_nvidia() -> types.SimpleNamespace:
    """Imports NVIDIA's modules of wav2vec 2.0."""
    for name in ("amp_C", "dllogger", "editdistance"):
        stand_in(name)
    vars(sys.modules["editdistance"])["eval"] = None
    sys.path.insert(0, str(PEERS / NVIDIA / "wav2vec2"))
    return types.SimpleNamespace(
        utils=importlib.import_module("wav2vec2.utils"), model=importlib.import_module("wav2vec2.model"),
        arguments=importlib.import_module("wav2vec2.arg_parser"), helpers=importlib.import_module("common.helpers"),
        dictionary=importlib.import_module("common.fairseq.data").Dictionary,
    )  # fmt: skip


def quartznet(file: Path) -> Peer:
    """Returns a QuartzNet of NVIDIA with its features. The settings, in NVIDIA's format, are in a file beside it."""
    features, model_class, decode = import_quartznet()
    settings = json.loads(file.with_suffix(".json").read_text())
    model = model_class(settings["encoder"], settings["decoder"])
    checkpoint = torch.load(file, map_location="cpu", weights_only=False)
    model.load_state_dict(checkpoint["ema_state_dict"])
    front_end = features(**settings["features"])
    model.eval()
    front_end.eval()

    def peer(samples: Tensor) -> tuple[Tensor, str]:
        values, lengths = front_end(samples[None], torch.tensor([len(samples)]))
        log_probs, lengths = model(values, lengths)
        log_probs = log_probs[0, : int(lengths)]
        (text,) = decode([log_probs.argmax(-1)[None]], [*settings["labels"], "<BLANK>"])
        return log_probs, text

    return peer


def import_quartznet() -> tuple[Any, Any, Any]:
    """Imports NVIDIA's front-end, its QuartzNet and its greedy decoder."""
    for name in ("amp_C", "apex", "apex.optimizers", "common.filter_warnings"):
        stand_in(name)
    folder = PEERS / NVIDIA / "QuartzNet"
    sys.modules.pop("common", None)
    sys.path.insert(0, str(folder))
    sys.modules.pop("common.filter_warnings", None)
    importlib.import_module("common")
    stand_in("common.filter_warnings")
    return (
        importlib.import_module("common.features").FilterbankFeatures,
        importlib.import_module("quartznet.model").QuartzNet,
        importlib.import_module("common.helpers").gather_predictions,
    )


def nemo(file: Path) -> Peer:
    """Returns the modules of a .nemo file: front-end, encoder, and CTC decoder or transducer with its greedy search."""
    import sentencepiece
    import yaml

    modules = import_nemo()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(file) as archive:
        archive.extractall(folder, filter="data")
        config = yaml.safe_load((Path(folder) / "model_config.yaml").read_text())
        weights = torch.load(Path(folder) / "model_weights.ckpt", map_location="cpu", weights_only=False)
        (model,) = [path.read_bytes() for path in Path(folder).glob("*.model")] or [b""]
    made = modules.build(config)
    named = {name.replace("ctc_decoder.", "decoder."): value for name, value in weights.items()}
    for part in made.keys() - {"preprocessor"}:
        of_part = {name.removeprefix(f"{part}."): value for name, value in named.items() if name.startswith(f"{part}.")}
        known = made[part].state_dict()
        made[part].load_state_dict({name: of_part[name] for name in known})
    vocabulary = config["joint" if "joint" in made else "decoder"].get("vocabulary", [])
    vocabulary = vocabulary or config["aux_ctc"]["decoder"]["vocabulary"]
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model) if model else None
    # As in NeMo's CTC decoding, which removes a space before punctuation.
    punctuation = "|".join(map(re.escape, modules.punctuation(vocabulary)))

    def written(labels: list[int]) -> str:
        text = pieces.decode(labels) if pieces else "".join(vocabulary[label] for label in labels)
        return re.sub(rf"(\s)({punctuation})", r"\2", text) if punctuation else text

    def peer(samples: Tensor) -> tuple[Tensor, str] | tuple[Tensor, str, Tensor]:
        features, lengths = made["preprocessor"](samples[None], torch.tensor([len(samples)]))
        encoded, lengths = made["encoder"](audio_signal=features, length=lengths)
        if "joint" in made:
            durations = config["decoding"].get("durations")
            search = modules.greedy(made["decoder"], made["joint"], len(vocabulary), durations)
            steps = search.steps
            (found,) = search(encoder_output=encoded, encoded_lengths=lengths)[0]
            size = len(vocabulary) + 1
            # NeMo decides again if a blank has the duration 0, up to the largest number of symbols.
            decided = [
                step for step, last in zip(steps, [None, *steps], strict=False) if last is None or (step != last).any()
            ]
            logits = torch.stack(decided)
            log_probs, text = logits[:, :size].log_softmax(-1), written(found.y_sequence.tolist())
            return (log_probs, text, logits[:, size:].log_softmax(-1)) if durations else (log_probs, text)
        log_probs = made["decoder"](encoder_output=encoded)[0, : int(lengths)]
        labels = [label for label, _ in itertools.groupby(log_probs.argmax(-1).tolist()) if label < len(vocabulary)]
        return log_probs, written(labels)

    return peer


def import_nemo() -> types.SimpleNamespace:
    """Imports NeMo's front-end, encoders, CTC decoder and transducer; frameworks that compute nothing are stubs."""

    class Plain:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def is_access_enabled(self, *_: Any) -> bool:
            return False

        def is_adapter_available(self) -> bool:
            return False

    def plain(*names: str) -> dict[str, type]:
        return {name: type(name, (Plain,), {}) for name in names}

    class Mixin:
        def is_access_enabled(self, *_: Any) -> bool:
            return False

        def is_adapter_available(self) -> bool:
            return False

        def set_accepted_adapter_types(self, *_: Any) -> None: ...

    def mixins(*names: str) -> dict[str, type]:
        return {name: type(name, (Mixin,), {}) for name in names}

    for within in (
        "", ".modules", ".parts", ".parts.submodules", ".parts.submodules.adapters", ".parts.utils", ".parts.mixins",
        ".parts.preprocessing", ".parts.submodules.transducer_decoding",
    ):  # fmt: skip
        folder = f"nemo.collections.asr{within}"  # bypasses __init__.py of packages, which import everything
        stand_in(folder)
        sys.modules[folder].__path__ = [str(PEERS / "NeMo" / folder.replace(".", "/"))]
    silent = types.SimpleNamespace(info=lambda *_: None, warning=lambda *_: None, debug=lambda *_: None)
    stand_in(
        "omegaconf", DictConfig=dict, ListConfig=list, MISSING=None, open_dict=lambda *_: nullcontext(),
        OmegaConf=types.SimpleNamespace(to_container=lambda config, **_: config),
    )  # fmt: skip
    stand_in("nemo.utils", logging=silent, logging_mode=None, avoid_float16_autocast_context=nullcontext)
    stand_in("nemo.collections.common.parts.utils", activation_registry={"swish": nn.SiLU, "relu": nn.ReLU})
    stand_in(
        "nemo.collections.asr.parts.submodules.adapters.attention_adapter_mixin",
        **mixins("AttentionAdapterModuleMixin"),
    )
    stand_in("nemo.collections.asr.parts.utils.adapter_utils", LINEAR_ADAPTER_CLASSPATH="")
    stand_in("nemo.collections.asr.parts.preprocessing.perturb", AudioAugmentor=None)
    stand_in("nemo.collections.asr.parts.preprocessing.segment", AudioSegment=None)
    stand_in("nemo.collections.asr.parts.mixins.streaming", **mixins("StreamingEncoder"))
    stand_in("nemo.collections.asr.models.configs", **plain("CacheAwareStreamingConfig"))
    stand_in("nemo.core.classes.common", typecheck=lambda *_, **__: lambda method: method)
    stand_in("nemo.collections.common.parts")
    sys.modules["nemo.collections.common.parts"].__path__ = [str(PEERS / "NeMo/nemo/collections/common/parts")]
    stand_in("nemo.core.classes", Typing=Plain, typecheck=lambda *_, **__: lambda method: method)
    stand_in("nemo.core.classes.exportable", **mixins("Exportable"))
    stand_in("nemo.core.classes.mixins", **mixins("AccessMixin", "AdapterModuleMixin"))
    stand_in("nemo.core.classes.mixins.adapter_mixins", get_registered_adapter=bool, **mixins("AdapterModuleMixin"))
    stand_in("nemo.core.classes.module", NeuralModule=nn.Module)
    stand_in("nemo.core", NeuralModule=nn.Module)
    sys.modules["nemo.core.classes"].adapter_mixins = sys.modules["nemo.core.classes.mixins.adapter_mixins"]
    within = "nemo.collections.asr.parts"
    stand_in(f"{within}.context_biasing", **plain("BoostingTreeModelConfig", "GPUBoostingTreeModel"))
    stand_in(f"{within}.submodules.ngram_lm", **plain("NGramGPULanguageModel"))
    computers = ("GreedyBatchedRNNTLabelLoopingComputer", "GreedyBatchedTDTLabelLoopingComputer")
    stand_in(f"{within}.submodules.transducer_decoding", **plain(*computers))
    stand_in(f"{within}.utils.asr_confidence_utils", **plain("ConfidenceMethodConfig"))
    confidence = type("ConfidenceMethodMixin", (), {"_init_confidence_method": lambda self, _: None})
    stand_in(f"{within}.utils.asr_confidence_utils", ConfidenceMethodMixin=confidence)
    types_ = (
        "AcousticEncodedRepresentation", "BoolType", "ChannelType", "ElementType", "EmbeddedTextType", "HypothesisType",
        "LabelsType", "LengthsType", "LogitsType", "LogprobsType", "LossType",
    )  # fmt: skip
    stand_in("nemo.core.neural_types", **plain(*types_, "NeuralType", "SpectrogramType"))
    features = importlib.import_module("nemo.collections.asr.parts.preprocessing.features").FilterbankFeatures
    convolutional = importlib.import_module("nemo.collections.asr.modules.conv_asr")
    conformer = importlib.import_module("nemo.collections.asr.modules.conformer_encoder").ConformerEncoder
    squeezeformer = importlib.import_module("nemo.collections.asr.modules.squeezeformer_encoder").SqueezeformerEncoder
    conformer.setup_streaming_params = lambda self: setattr(
        self, "streaming_cfg", types.SimpleNamespace(drop_extra_pre_encoded=0)
    )
    encoders = {
        "ConformerEncoder": conformer, "SqueezeformerEncoder": squeezeformer,
        "ConvASREncoder": convolutional.ConvASREncoder,
    }  # fmt: skip

    def build(config: dict[str, Any]) -> dict[str, Any]:
        front_end = {name: value for name, value in config["preprocessor"].items() if name != "_target_"}
        rate, num_mels = front_end["sample_rate"], front_end.pop("features")
        window, hop = (round(front_end.pop(name) * rate) for name in ("window_size", "window_stride"))
        settings = {name: value for name, value in config["encoder"].items() if name != "_target_"}
        made = {
            "preprocessor": features(n_window_size=window, n_window_stride=hop, nfilt=num_mels, **front_end),
            "encoder": encoders[config["encoder"]["_target_"].rpartition(".")[2]](**settings),
        }
        if "jointnet" in config.get("joint", {}):
            for name, module in (("decoder", transducer.RNNTDecoder), ("joint", transducer.RNNTJoint)):
                made[name] = module(**{key: value for key, value in config[name].items() if key != "_target_"})
        else:
            decoder = config.get("aux_ctc", config)["decoder"]
            arguments = {name: decoder[name] for name in ("feat_in", "num_classes", "vocabulary")}
            made["decoder"] = convolutional.ConvASRDecoder(**arguments)
        return {name: module.eval() for name, module in made.items()}

    transducer = importlib.import_module("nemo.collections.asr.modules.rnnt")
    searches = importlib.import_module("nemo.collections.asr.parts.submodules.rnnt_greedy_decoding")

    def greedy(decoder: Any, joint: Any, blank: int, durations: list[int] | None) -> Any:
        """Returns NeMo's greedy search; the outputs of the joint network are appended to its list `steps`."""
        given = {"decoder_model": decoder, "joint_model": joint, "blank_index": blank, "max_symbols_per_step": 10}
        search = (
            searches.GreedyTDTInfer(durations=durations, **given) if durations else searches.GreedyRNNTInfer(**given)
        )
        search.steps, step = [], search._joint_step

        def recording(*args: Any, **named: Any) -> Tensor:
            logits = step(*args, **named)
            search.steps.append(logits.flatten())
            return logits

        search._joint_step = recording
        return search

    utils = importlib.import_module("nemo.collections.asr.parts.utils.tokenizer_utils")
    punctuation = utils.extract_punctuation_from_vocab
    return types.SimpleNamespace(build=build, punctuation=punctuation, greedy=greedy, convolutional=convolutional)


def icefall_transducer(file: Path) -> Peer:
    """Returns icefall's Zipformer with a transducer and its greedy search."""
    return icefall(file, is_transducer=True)


def icefall(file: Path, *, is_transducer: bool = False) -> Peer:
    """Returns icefall's Zipformer with CTC; its recipe's flags, as JSON, are in a file beside the checkpoint."""
    import sentencepiece

    settings = json.loads(file.with_suffix(".json").read_text())
    model = import_icefall()(settings)
    checkpoint = torch.load(file, map_location="cpu", weights_only=False)
    missing, _ = model.load_state_dict(checkpoint["model"], strict=False)  # as pretrained_ctc.py
    assert all(name.endswith(".bypass_scale") for name in missing), missing  # icefall creates and never uses some
    model.eval()
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(file.parent / "bpe.model"))

    def peer(samples: Tensor) -> tuple[Tensor, str]:
        # The options of icefall's zipformer/pretrained_ctc.py and pretrained.py.
        options = kaldi_native_fbank.FbankOptions()
        options.frame_opts.dither, options.frame_opts.snip_edges = 0, False
        options.mel_opts.num_bins, options.mel_opts.high_freq = settings["feature_dim"], -400
        fbank = kaldi_native_fbank.OnlineFbank(options)
        fbank.accept_waveform(16000, samples.tolist())
        fbank.input_finished()
        features = torch.tensor(np.stack([fbank.get_frame(i) for i in range(fbank.num_frames_ready)]))
        output, lengths = model.encode(features[None], torch.tensor([len(features)]))
        if is_transducer:
            steps = recorded(model.joiner)
            # The search treats <unk> as the blank and has no log-probabilities of its decisions.
            model.unk_id = pieces.unk_id()
            labels = model.greedy_search(model, output[:, : int(lengths)], max_sym_per_frame=1)
            model.joiner.__dict__.pop("forward")
            return torch.stack([step.flatten() for step in steps]).log_softmax(-1), pieces.decode(labels)
        log_probs = model.ctc_output(output)[0, : int(lengths)]
        labels = [label for label, _ in itertools.groupby(log_probs.argmax(-1).tolist()) if label]
        return log_probs, pieces.decode(labels)

    return peer


def import_icefall() -> Any:
    """Returns a class of icefall's modules, with the names of `AsrModel`, for a dict of the recipe's settings."""

    def swoosh(offset: float, constant: float) -> tuple[Any, Any]:
        def value(x: Tensor) -> Tensor:
            return nn.functional.softplus(x - offset) - 0.08 * x - constant

        return value, lambda x: (value(x), torch.sigmoid(x - offset) - 0.08)

    left, left_both = swoosh(4.0, 0.035)
    right, right_both = swoosh(1.0, 0.313261687)
    stand_in(
        "k2", swoosh_l=left, swoosh_l_forward=left, swoosh_l_forward_and_deriv=left_both, swoosh_r=right,
        swoosh_r_forward=right, swoosh_r_forward_and_deriv=right_both,
    )  # fmt: skip
    stand_in("icefall.utils", torch_autocast=lambda **_: nullcontext())
    sys.path.insert(0, str(PEERS / "icefall/egs/librispeech/ASR/zipformer"))
    subsampling, zipformer, decoder, joiner = (
        importlib.import_module(name) for name in ("subsampling", "zipformer", "decoder", "joiner")
    )
    scaled = importlib.import_module("scaling").ScaledLinear
    utils = ast.parse((PEERS / "icefall/icefall/utils.py").read_text())
    wanted = [node for node in utils.body if isinstance(node, ast.FunctionDef) and node.name == "make_pad_mask"]
    found: dict[str, Any] = {"torch": torch, "Optional": Any | None, "Tuple": tuple}
    exec(compile(ast.Module(wanted, []), "icefall/utils.py", "exec"), {**found, "Optional": dict}, found)
    pad_mask = found["make_pad_mask"]
    # The module of the searches imports packages that its greedy search does not use.
    file = PEERS / "icefall/egs/librispeech/ASR/pruned_transducer_stateless2/beam_search.py"
    wanted = [
        node
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "greedy_search"
    ]
    names = {"torch": torch, "nn": nn, "Union": dict, "List": list, "DecodingResults": dict, "int": int}
    exec(compile(ast.Module(wanted, []), str(file), "exec"), names, found)
    search = found["greedy_search"]

    class Model(nn.Module):
        def __init__(self, settings: dict[str, Any]) -> None:
            super().__init__()
            numbers = {
                name: tuple(map(int, value.split(","))) for name, value in settings.items() if isinstance(value, str)
            }
            first, second, third = settings.get("embed_channels", (8, 32, 128))
            self.encoder_embed = subsampling.Conv2dSubsampling(
                settings["feature_dim"], numbers["encoder_dim"][0], layer1_channels=first, layer2_channels=second,
                layer3_channels=third,
            )  # fmt: skip
            self.encoder = zipformer.Zipformer2(
                output_downsampling_factor=2, pos_dim=settings["pos_dim"], causal=settings["causal"],
                **{name: numbers[name] for name in (
                    "downsampling_factor", "encoder_dim", "num_encoder_layers", "encoder_unmasked_dim",
                    "query_head_dim", "pos_head_dim", "value_head_dim", "num_heads", "feedforward_dim",
                    "cnn_module_kernel",
                )},
            )  # fmt: skip
            width = max(numbers["encoder_dim"])
            if settings.get("use_transducer"):
                size, dim = settings["vocab_size"], settings["decoder_dim"]
                self.decoder = decoder.Decoder(size, dim, blank_id=0, context_size=settings["context_size"])
                self.joiner = joiner.Joiner(width, dim, settings["joiner_dim"], size)
                self.simple_am_proj, self.simple_lm_proj = scaled(width, size), scaled(dim, size)
                self.greedy_search = search
                return
            self.ctc_output = nn.Sequential(
                nn.Dropout(0.1), nn.Linear(width, settings["vocab_size"]), nn.LogSoftmax(dim=-1)
            )

        def encode(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
            x, lengths = self.encoder_embed(features, lengths)
            x, lengths = self.encoder(x.permute(1, 0, 2), lengths, pad_mask(lengths))
            return x.permute(1, 0, 2), lengths

    return Model


def funasr(folder: Path) -> Peer:
    """Returns FunASR's Paraformer with its front-end, and its own inference for the texts."""
    import yaml
    from funasr_side import their_log_probs, their_model

    config = yaml.safe_load((folder / "config.yaml").read_text())
    symbols = json.loads((folder / "tokens.json").read_text())
    options = config["frontend_conf"] | {"dither": 0.0}
    input_size = options["n_mels"] * options["lfr_m"]
    model = their_model(config, PEERS / "FunASR", input_size=input_size, vocab_size=len(symbols))
    model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    front_end = importlib.import_module("funasr.frontends.wav_frontend").WavFrontend(
        cmvn_file=str(folder / "am.mvn"), **options
    )
    tokenizer = importlib.import_module("funasr.tokenizer.char_tokenizer").CharTokenizer(token_list=symbols)

    def peer(samples: Tensor) -> tuple[Tensor, str]:
        speech, _ = front_end(samples[None], torch.tensor([len(samples)]))
        results, _ = model.inference(
            speech, torch.tensor([[speech.shape[1]]]), key=["0"], tokenizer=tokenizer, data_type="fbank", device="cpu"
        )
        return their_log_probs(model, speech), results[0]["text"]

    return peer


def stand_in(name: str, **attributes: Any) -> None:
    """Adds a stub module with some attributes, and its parents if they are missing."""
    parts = name.split(".")
    for number in range(1, len(parts) + 1):
        if (path := ".".join(parts[:number])) not in sys.modules:
            module = types.ModuleType(path)
            module.__path__ = []  # type: ignore[attr-defined]
            sys.modules[path] = module
            if number > 1:
                setattr(sys.modules[".".join(parts[: number - 1])], parts[number - 1], module)
    for attribute, value in attributes.items():
        setattr(sys.modules[name], attribute, value)


SYSTEMS: dict[str, Callable[[Path], Peer]] = {
    each.__name__: each
    for each in (transformers, fairseq, nvidia, quartznet, nemo, icefall, icefall_transducer, funasr)
}


def texts_of(system: str, model: Path, out: Path, audio: Sequence[Path]) -> tuple[list[str], float]:
    """Writes the log-probabilities of recordings; returns the texts, and the smallest margin of all best labels."""
    torch.set_num_threads(1)
    with torch.no_grad():
        peer, texts, arrays, margins = SYSTEMS[system](model), [], {}, []
        for number, path in enumerate(audio):
            samples, rate = soundfile.read(path, dtype="float32")
            assert rate == 16000, f"{path} has {rate} Hz"
            log_probs, text, *durations = peer(torch.from_numpy(samples))
            texts.append(text)
            for name, values in zip((str(number), f"{number}.durations"), (log_probs, *durations), strict=False):
                arrays[name] = values.numpy().copy()
                best = values.topk(2, dim=-1).values
                margins.append(float((best[:, 0] - best[:, 1]).min()))
    save_file(arrays, out)
    out.chmod(0o644)
    return texts, min(margins)


if __name__ == "__main__":
    system, model, out, *audio = sys.argv[1:]
    print(json.dumps(texts_of(system, Path(model), Path(out), list(map(Path, audio)))[0]))
