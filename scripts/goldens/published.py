"""Writes small random models in the files of their own systems, and what their own code recognises with them.

For tests/goldens/test_published_models.py. Runs in .venv-reference, with the sources that
`scripts/setup_reference.sh --peers` downloads to .peers:

    .venv-reference/bin/python scripts/goldens/published.py --shared ../shared --out tests/goldens/published [CASE …]

For each case, writes a folder with the model's files and expected.safetensors, and a .json file with the system, the
model's file, the flags of `asr_jax.import`, the recordings and the texts. The seed of a case is the first one whose
best and second-best log-probability differ by at least MARGIN in each frame, so that rounding decides no label, and
whose texts have at least VARIETY different characters, at most LONGEST in all, and for FunASR
`has_both_scripts`.
"""

import argparse
import copy
import functools
import io
import json
import shutil
import sys
import tarfile
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import torch
from funasr_side import their_model
from peer_texts import PEERS as SOURCES
from peer_texts import (
    import_fairseq,
    import_icefall,
    import_nemo,
    import_nvidia,
    import_quartznet,
    texts_of,
)
from safetensors.torch import load_file
from torch import nn

MARGIN = 1e-3
VARIETY = 6
"""Least number of different characters in the texts of a case."""
LONGEST = 60
"""Largest number of characters of a text; in longer ones a transducer finds the same label again and again."""
RECORDINGS = tuple(
    f"data/digits/audio/speech_commands/eight/{name}.flac"
    for name in (
        "21e8c417_nohash_1",
        "2df590cd_nohash_1",
        "46a153d8_nohash_0",
        "2bdbe5f7_nohash_1",
        "152491bc_nohash_0",
    )
)
"""Recordings with noise in all bands: where there is none, logarithms of the energies are those of rounding errors."""
SENTENCES = [
    "the cat sat on the mat", "a dog ran to the old tree", "he said that she had seen it", "no one there at ten",
    "read and tell the others", "on an island in the east", "this is not as hard as it seems",
]  # fmt: skip
LETTERS = "ETAONIHSRDLUMWCFGYPBVK'XJQZ"
CONVOLUTIONS = {"conv_dim": [16] * 7, "conv_kernel": [10, 3, 3, 3, 3, 2, 2], "conv_stride": [5, 2, 2, 2, 2, 2, 2]}
EXTRACTOR = "[(16, 10, 5)] + [(16, 3, 2)] * 4 + [(16, 2, 2)] * 2"
TINY = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, **CONVOLUTIONS,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip


def move(model: nn.Module, *, head: str, gain: float = 0.8) -> None:
    """Draws weights of a size that lets outputs vary, and moves other parameters away from their initial values."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(head):
                parameter.normal_(std=0.5 if parameter.ndim > 1 else 0.3)
            elif parameter.ndim <= 1 or name.endswith(("weight_g", "original0")):
                parameter += 0.2 * torch.randn_like(parameter)
            elif not name.endswith("log_scale"):
                parameter.normal_(std=gain / (parameter[0].numel() ** 0.5))
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer += 0.2 * torch.randn_like(buffer)
            if name.endswith("running_var"):
                buffer *= 0.5 + torch.rand_like(buffer)


def move_transducer(
    prediction: nn.Module, joint: nn.Module, *, embedding: Any, output: Any, blank: int, boost: float
) -> None:
    """Draws weights of a prediction network and a joint network whose searches find labels and blanks."""
    move(prediction, head="none", gain=1.5)
    move(joint, head="none", gain=1.5)
    with torch.no_grad():
        embedding.weight.normal_()
        if embedding.padding_idx is not None:
            embedding.weight[embedding.padding_idx] = 0
        output.weight.normal_()
        output.bias[blank] += boost


def without_unknown(bias: Any, labels: list[str]) -> None:
    """Lowers the bias of labels that training never uses."""
    with torch.no_grad():
        for number, label in enumerate(labels):
            if label in ("<unk>", "<pad>", "<sos/eos>"):
                bias[number] = -30.0


def pieces_model(folder: Path, name: str = "tokenizer.model", **options: Any) -> Path:
    """Trains a SentencePiece BPE model, as NeMo and icefall do."""
    import sentencepiece

    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=made, vocab_size=40, model_type="bpe", bos_id=-1, eos_id=-1,
        normalization_rule_name="identity", minloglevel=2, **options,
    )  # fmt: skip
    (folder / name).write_bytes(made.getvalue())
    return folder / name


def hf_wav2vec2(folder: Path) -> tuple[str, list[str]]:
    from transformers import (
        Wav2Vec2Config,
        Wav2Vec2CTCTokenizer,
        Wav2Vec2FeatureExtractor,
        Wav2Vec2ForCTC,
        Wav2Vec2Processor,
    )

    vocabulary = ["<pad>", "<s>", "</s>", "<unk>", "|", *LETTERS]
    (folder / "vocab.json").write_text(json.dumps({label: number for number, label in enumerate(vocabulary)}))
    tokenizer = Wav2Vec2CTCTokenizer(folder / "vocab.json")
    extractor = Wav2Vec2FeatureExtractor(do_normalize=True, return_attention_mask=False)
    Wav2Vec2Processor(extractor, tokenizer).save_pretrained(folder)
    model = Wav2Vec2ForCTC(Wav2Vec2Config(**TINY, vocab_size=32, pad_token_id=0, feat_extract_norm="group"))
    move(model, head="lm_head")
    model.save_pretrained(folder)
    return "transformers", []


def hf_wav2vec2_special(folder: Path) -> tuple[str, list[str]]:
    """A vocabulary as community models have it: [PAD], [UNK], added tokens, and texts in lower case."""
    from transformers import (
        Wav2Vec2Config,
        Wav2Vec2CTCTokenizer,
        Wav2Vec2FeatureExtractor,
        Wav2Vec2ForCTC,
        Wav2Vec2Processor,
    )

    vocabulary = [*sorted(LETTERS), "|", "[UNK]", "[PAD]"]
    (folder / "vocab.json").write_text(json.dumps({label: number for number, label in enumerate(vocabulary)}))
    tokenizer = Wav2Vec2CTCTokenizer(
        folder / "vocab.json", unk_token="[UNK]", pad_token="[PAD]", word_delimiter_token="|", do_lower_case=True
    )
    Wav2Vec2Processor(Wav2Vec2FeatureExtractor(do_normalize=True), tokenizer).save_pretrained(folder)
    model = Wav2Vec2ForCTC(
        Wav2Vec2Config(
            **TINY, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, feat_extract_norm="layer",
            do_stable_layer_norm=True, conv_bias=True,
        )
    )  # fmt: skip
    move(model, head="lm_head")
    model.save_pretrained(folder)
    return "transformers", []


def hf_w2v_bert(folder: Path) -> tuple[str, list[str]]:
    from transformers import (
        SeamlessM4TFeatureExtractor,
        Wav2Vec2BertConfig,
        Wav2Vec2BertForCTC,
        Wav2Vec2BertProcessor,
        Wav2Vec2CTCTokenizer,
    )

    vocabulary = ["|", *sorted(LETTERS.lower()), "[UNK]", "[PAD]"]
    (folder / "vocab.json").write_text(json.dumps({label: number for number, label in enumerate(vocabulary)}))
    tokenizer = Wav2Vec2CTCTokenizer(folder / "vocab.json", unk_token="[UNK]", pad_token="[PAD]")
    Wav2Vec2BertProcessor(SeamlessM4TFeatureExtractor(feature_size=80), tokenizer).save_pretrained(folder)
    config = Wav2Vec2BertConfig(
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, hidden_size=24, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=32, conv_depthwise_kernel_size=7, add_adapter=True,
        num_adapter_layers=1, output_hidden_size=24, left_max_position_embeddings=6, right_max_position_embeddings=2,
    )  # fmt: skip
    model = Wav2Vec2BertForCTC(config)
    move(model, head="lm_head")
    model.save_pretrained(folder)
    return "transformers", []


def hf_parakeet(folder: Path) -> tuple[str, list[str]]:
    """A tokenizer of transformers' own converter, with byte_fallback and without byte pieces."""
    from tokenizers import AddedToken
    from transformers import (
        ParakeetCTCConfig,
        ParakeetEncoderConfig,
        ParakeetFeatureExtractor,
        ParakeetForCTC,
        ParakeetProcessor,
        ParakeetTokenizer,
    )
    from transformers.convert_slow_tokenizer import ParakeetConverter

    converted = ParakeetConverter(str(pieces_model(folder))).converted()
    (folder / "tokenizer.model").unlink()
    tokenizer = ParakeetTokenizer(tokenizer_object=converted, clean_up_tokenization_spaces=False)
    special = {f"{name}_token": AddedToken(f"<{name}>", normalized=False, special=True) for name in ("unk", "pad")}
    tokenizer.add_tokens([*special.values()])
    tokenizer.add_special_tokens(special)
    ParakeetProcessor(ParakeetFeatureExtractor(feature_size=40), tokenizer).save_pretrained(folder)
    encoder = ParakeetEncoderConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, conv_kernel_size=5,
        subsampling_conv_channels=8, num_mel_bins=40, attention_bias=False, convolution_bias=False,
    )  # fmt: skip
    model = ParakeetForCTC(
        ParakeetCTCConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, encoder_config=encoder)
    )
    move(model, head="ctc_head")
    model.save_pretrained(folder)
    return "transformers", []


def hf_parakeet_tdt(folder: Path) -> tuple[str, list[str]]:
    """A TDT model, as transformers' converter of NeMo's files writes it: the blank is the last token, not <pad>."""
    from tokenizers import AddedToken
    from transformers import (
        ParakeetEncoderConfig,
        ParakeetFeatureExtractor,
        ParakeetForTDT,
        ParakeetProcessor,
        ParakeetTDTConfig,
        ParakeetTokenizer,
    )
    from transformers.convert_slow_tokenizer import ParakeetConverter

    converted = ParakeetConverter(str(pieces_model(folder, unk_id=0, pad_id=2))).converted()
    (folder / "tokenizer.model").unlink()
    tokenizer = ParakeetTokenizer(tokenizer_object=converted, clean_up_tokenization_spaces=False)
    special = {f"{name}_token": AddedToken(f"<{name}>", normalized=False, special=True) for name in ("unk", "pad")}
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken("<blank>", normalized=False, special=True)], special_tokens=True)
    ParakeetProcessor(ParakeetFeatureExtractor(feature_size=40), tokenizer, blank_token="<blank>").save_pretrained(
        folder
    )
    encoder = ParakeetEncoderConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, conv_kernel_size=5,
        subsampling_conv_channels=8, num_mel_bins=40, attention_bias=False, convolution_bias=False,
    )  # fmt: skip
    blank = len(tokenizer) - 1
    model = ParakeetForTDT(
        ParakeetTDTConfig(
            vocab_size=blank + 1, blank_token_id=blank, pad_token_id=tokenizer.pad_token_id, decoder_hidden_size=16,
            num_decoder_layers=2, durations=[0, 1, 2, 3, 4], encoder_config=encoder,
        )
    )  # fmt: skip
    model.generation_config.decoder_start_token_id = blank
    # The search of transformers takes the largest of all outputs, those of durations among them.
    model.generation_config.suppress_tokens = [blank + 1 + number for number in range(5)]
    move(model.encoder, head="none")
    output, embedding = model.joint.head, model.decoder.embedding
    move_transducer(model.decoder, model.joint, embedding=embedding, output=output, blank=blank, boost=14.0)
    with torch.no_grad():
        model.decoder.embedding.weight[blank] = 0
        output.bias[blank + 1] -= 4  # the search of transformers has no largest number of labels of one frame
        model.encoder_projector.weight.normal_(std=0.2)
    without_unknown(output.bias, [*tokenizer.convert_ids_to_tokens(range(blank))])
    model.save_pretrained(folder)
    return "transformers", []


def fairseq(folder: Path, *, as_namespace: bool = False) -> tuple[str, list[str]]:
    """A fine-tuned checkpoint, as fairseq's trainer stores it: settings and dictionary in the file."""
    from omegaconf import OmegaConf

    import_fairseq()
    from fairseq import tasks
    from fairseq.data import Dictionary
    from fairseq.models.wav2vec.wav2vec2 import Wav2Vec2Config
    from fairseq.models.wav2vec.wav2vec2_asr import Wav2Vec2CtcConfig

    (folder / "dict.ltr.txt").write_text("".join(f"{label} {90 - n}\n" for n, label in enumerate("|" + LETTERS)))
    sizes = {
        "encoder_layers": 2, "encoder_embed_dim": 24, "encoder_ffn_embed_dim": 32, "encoder_attention_heads": 2,
        "conv_feature_layers": EXTRACTOR, "conv_pos": 8, "conv_pos_groups": 4, "final_dim": 16,
        **({} if as_namespace else {"extractor_mode": "layer_norm", "layer_norm_first": True, "conv_bias": True}),
    }  # fmt: skip
    task = {"_name": "audio_finetuning", "data": str(folder), "labels": "ltr", "normalize": not as_namespace}
    plain = functools.partial(OmegaConf.to_container, enum_to_str=True)  # as the trainer stores settings
    inner = {
        "task": {"_name": "audio_pretraining", "data": "", "normalize": not as_namespace},
        "model": {**plain(OmegaConf.structured(Wav2Vec2Config)), **sizes, "_name": "wav2vec2"},
    }
    tuned = plain(OmegaConf.structured(Wav2Vec2CtcConfig))
    tuned |= {"_name": "wav2vec_ctc", "w2v_path": "", "w2v_args": inner, "normalize": not as_namespace, "data": ""}
    tuned |= {"ddp_backend": "legacy_ddp"}
    config = OmegaConf.create(
        {"common": {"tpu": False, "seed": 1}, "task": {**task, "tpu": False, "seed": 1}, "model": tuned}
    )
    made = tasks.setup_task(config.task)
    model = made.build_model(config.model)
    move(model, head="w2v_encoder.proj.")
    stored: dict[str, Any] = {
        "args": None, "cfg": OmegaConf.to_container(config, resolve=True, enum_to_str=True), "criterion": None,
        "model": model.state_dict(), "optimizer_history": [{
            "criterion_name": "CtcCriterion", "optimizer_name": "FairseqAdam", "lr_scheduler_state": {},
            "num_updates": 5,
        }],
        "task_state": made.state_dict(), "last_optimizer_state": {},
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}, "val_loss": 1.0},
    }  # fmt: skip
    if as_namespace:
        flat = {**stored["cfg"]["model"], **stored["cfg"]["task"], "arch": "wav2vec_ctc", "task": "audio_finetuning"}
        of_inner = {**inner["model"], "arch": "wav2vec2", "task": "audio_pretraining", "data": "", "normalize": False}
        of_inner |= {"criterion": "wav2vec"}
        args = {name: value for name, value in flat.items() if name not in ("_name", "w2v_args")}
        inner_args = Namespace(**{name: value for name, value in of_inner.items() if name != "_name"})
        stored |= {"args": Namespace(**args, criterion="ctc", w2v_args=inner_args), "cfg": None, "task_state": {}}
    else:
        assert isinstance(stored["task_state"]["target_dictionary"], Dictionary)
        (folder / "dict.ltr.txt").unlink()
    torch.save(stored, folder / "model.pt")
    return "fairseq", ["model.pt"]


def fairseq_former(folder: Path) -> tuple[str, list[str]]:
    """A checkpoint of earlier versions: `args` instead of `cfg`, and the dictionary beside it."""
    return fairseq(folder, as_namespace=True)


def nvidia(folder: Path, *, hourglass: str | None = None) -> tuple[str, list[str]]:
    peer = import_nvidia()
    parser = argparse.ArgumentParser()
    peer.arguments.populate_infer(parser)
    args = parser.parse_args(["--output_dir", ""])
    pretraining = argparse.ArgumentParser()
    peer.arguments.populate_pretraining(pretraining)
    vars(args).update(vars(pretraining.parse_args([])) | vars(args))
    sizes = {
        "encoder_layers": 2, "encoder_embed_dim": 24, "encoder_ffn_embed_dim": 32, "encoder_attention_heads": 2,
        "conv_feature_layers": EXTRACTOR, "conv_pos": 8, "conv_pos_groups": 4, "final_dim": 16, "mode": "finetune",
        "hourglass_transformer": hourglass, "normalize": hourglass is None, "fp32_pos_conv": True,
        "fp32_conv_norms": True, "masked_feature_extractor": False,
    }  # fmt: skip
    vars(args).update(sizes)
    labels = "".join(f"{label} {90 - number}\n" for number, label in enumerate("|" + LETTERS))
    dictionary = peer.dictionary.load(io.StringIO(labels))
    model, *_ = peer.utils.build_model(args, "infer", dictionary)
    move(model, head="w2v_encoder.proj.")
    stored = {
        "args": vars(args), "model": model.state_dict(), "ema_model": None, "optimizer": None, "scaler": None,
        "train_state": {"step": 5, "epoch": 1, "best_val_loss": 1.0, "best_val_wer": 1.0},
        "output_labels": labels,
    }  # fmt: skip
    torch.save(stored, folder / "model.pt")
    return "nvidia", ["model.pt"]


def nvidia_hourglass(folder: Path) -> tuple[str, list[str]]:
    return nvidia(folder, hourglass="[1,(1,3),1]")


def quartznet(folder: Path) -> tuple[str, list[str]]:
    _, model_class, _ = import_quartznet()
    block = {"repeat": 2, "stride": [1], "dilation": [1], "residual": True, "separable": True, "dropout": 0.0}
    alone = {"repeat": 1, "residual": False}
    blocks = [
        {**block, **alone, "filters": 24, "kernel_size": [11], "stride": [2]},
        {**block, "filters": 24, "kernel_size": [7]}, {**block, **alone, "filters": 32, "kernel_size": [1]},
    ]  # fmt: skip
    labels = [" ", *sorted(LETTERS.lower().replace("'", "")), "'"]
    settings = {
        "encoder": {"in_feats": 64, "activation": "relu", "use_conv_masks": True, "blocks": blocks},
        "decoder": {"in_feats": 32, "n_classes": len(labels) + 1}, "labels": labels,
        "features": {
            "sample_rate": 16000, "window_size": 0.02, "window_stride": 0.01, "window": "hann", "n_fft": 512,
            "n_filt": 64, "dither": 0.0, "normalize": "per_feature", "frame_splicing": 1, "pad_align": 16,
        },
    }  # fmt: skip
    made = copy.deepcopy(settings)  # the model changes its settings
    model = model_class(made["encoder"], made["decoder"])
    move(model, head="decoder")
    weights = model.state_dict()
    torch.save({"epoch": 1, "step": 5, "state_dict": weights, "ema_state_dict": weights}, folder / "model.pt")
    (folder / "model.json").write_text(json.dumps(settings, indent=1) + "\n")
    (folder / "config.py").write_text(CONFIG)
    return "quartznet", ["model.pt", "--config", "config.py"]


CONFIG = '''"""Settings of model.pt, which contains weights alone."""

from dataclasses import replace

from asr_jax.audio.presets import quartznet
from asr_jax.config import Experiment
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.quartznet import QuartzNet
from asr_jax.nn.quartznet.block import ConvBlock
from asr_jax.text.tokenizers import TokenizerSettings

# NVIDIA's front-end draws noise in evaluation as well, unless dither is 0.
FRONT_END = replace(quartznet(), dither=0.0, dither_mean=False)
BLOCKS = (
    ConvBlock(width=24, kernel_size=11, repeat=1, stride=2, separable=True, residual="none"),
    ConvBlock(width=24, kernel_size=7, repeat=2, separable=True, residual="add"),
    ConvBlock(width=32, kernel_size=1, repeat=1, separable=True, residual="none"),
)


def experiment() -> Experiment:
    return Experiment(
        name="quartznet",
        model=Model(QuartzNet(num_mels=64, blocks=BLOCKS), {"ctc": CTC()}, FRONT_END, augment=()),
        data=Data(
            train=(),
            tokenizer=TokenizerSettings(alphabet=" abcdefghijklmnopqrstuvwxyz\'", normaliser="english_letters.v1"),
        ),
    )
'''


def nemo_file(
    folder: Path,
    encoder: dict[str, Any],
    *,
    labels: list[str] | None = None,
    hybrid: bool = False,
    durations: list[int] | None = None,
    dropout: float = 0.2,
    **front_end: Any,
) -> tuple[str, list[str]]:
    """Writes a .nemo file with the modules of NeMo, and with pieces or listed labels.

    `durations` are those of a transducer, empty for RNN-T; None for a model without a transducer, or, if it is a
    hybrid one, for one whose transducer has settings that are unknown.
    """
    modules = import_nemo()
    (folder / "content").mkdir()
    files = {}
    if labels is None:
        import sentencepiece

        files["abc_tokenizer.model"] = pieces_model(folder / "content", unk_id=0).read_bytes()
        pieces = sentencepiece.SentencePieceProcessor(model_proto=files["abc_tokenizer.model"])
        labels = [pieces.id_to_piece(number) for number in range(pieces.get_piece_size())]
    width = encoder["d_model"] if "d_model" in encoder else encoder["jasper"][-1]["filters"]
    decoder = {
        "_target_": "nemo.collections.asr.modules.ConvASRDecoder", "feat_in": width, "num_classes": len(labels),
        "vocabulary": labels,
    }  # fmt: skip
    preprocessor = {
        "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor", "sample_rate": 16000,
        "normalize": "per_feature", "window_size": 0.025, "window_stride": 0.01, "window": "hann",
        "features": encoder["feat_in"], "n_fft": 512, "frame_splicing": 1, "dither": 1e-5, "pad_to": 0, **front_end,
    }  # fmt: skip
    transducer = {"_target_": "nemo.collections.asr.modules.RNNTDecoder", "prednet": {"pred_hidden": 4}}
    config = {"preprocessor": preprocessor, "encoder": encoder, "decoder": transducer if hybrid else decoder}
    config |= (
        {"joint": {"_target_": "nemo.collections.asr.modules.RNNTJoint"}, "aux_ctc": {"decoder": decoder}}
        if hybrid
        else {}
    )
    if durations is not None:
        config |= nemo_transducer(labels, width, durations, dropout)
    made = modules.build(config)
    move(made["encoder"], head="decoder_layers")
    name = "ctc_decoder" if hybrid and durations is None else "decoder"
    if durations is None:
        move(made["decoder"], head="decoder_layers")
        without_unknown(made["decoder"].decoder_layers[0].bias, labels)
    else:
        embedding, output = made["decoder"].prediction["embed"], made["joint"].joint_net[-1]
        move_transducer(
            made["decoder"],
            made["joint"],
            embedding=embedding,
            output=output,
            blank=len(labels),
            boost=10.0 if durations else 16.0,
        )
        without_unknown(output.bias, labels)
    weights = {f"encoder.{key}": value for key, value in made["encoder"].state_dict().items()}
    weights |= {f"{name}.{key}": value for key, value in made["decoder"].state_dict().items()}
    weights |= {f"preprocessor.featurizer.{key}": value for key, value in made["preprocessor"].state_dict().items()}
    if durations is not None:
        weights |= {f"joint.{key}": value for key, value in made["joint"].state_dict().items()}
        if hybrid:
            ctc = modules.convolutional.ConvASRDecoder(
                **{key: decoder[key] for key in ("feat_in", "num_classes", "vocabulary")}
            )
            weights |= {f"ctc_decoder.{key}": value for key, value in ctc.state_dict().items()}
    elif hybrid:
        weights |= {
            "decoder.prediction.embed.weight": torch.randn(len(labels) + 1, 4),
            "joint.enc.weight": torch.randn(4, width),
        }
    saved = io.BytesIO()
    torch.save(OrderedDict(weights), saved)
    import yaml

    files |= {"model_config.yaml": yaml.safe_dump(config).encode(), "model_weights.ckpt": saved.getvalue()}
    with tarfile.open(folder / "model.nemo", "w:gz" if hybrid else "w") as archive:
        for file, content in files.items():
            member = tarfile.TarInfo(f"./{file}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    shutil.rmtree(folder / "content")
    return "nemo", ["model.nemo"]


def nemo_transducer(labels: list[str], width: int, durations: list[int], dropout: float) -> dict[str, Any]:
    """Returns NeMo's settings of a transducer's prediction network, joint network, loss and search."""
    kind, modules = "tdt" if durations else "rnnt", "nemo.collections.asr.modules"
    options = {"durations": durations, "sigma": 0.05, "omega": 0.1} if durations else {}
    return {
        "decoder": {
            "_target_": f"{modules}.RNNTDecoder", "normalization_mode": None, "random_state_sampling": False,
            "blank_as_pad": True, "vocab_size": len(labels),
            "prednet": {"pred_hidden": 12, "pred_rnn_layers": 2, "t_max": None, "dropout": dropout},
        },
        "joint": {
            "_target_": f"{modules}.RNNTJoint", "log_softmax": None, "preserve_memory": False,
            "num_extra_outputs": len(durations), "num_classes": len(labels), "vocabulary": labels,
            "jointnet": {
                "joint_hidden": 20, "activation": "relu", "dropout": dropout, "encoder_hidden": width,
                "pred_hidden": 12,
            },
        },
        "loss": {"loss_name": kind, f"{kind}_kwargs": {"fastemit_lambda": 0.0, **options}},
        "decoding": {
            "strategy": "greedy_batch", "model_type": kind, "durations": durations, "greedy": {"max_symbols": 10},
        },
    }  # fmt: skip


FAST = {
    "_target_": "nemo.collections.asr.modules.ConformerEncoder", "feat_in": 40, "feat_out": -1, "n_layers": 2,
    "d_model": 16, "n_heads": 2, "subsampling": "dw_striding", "subsampling_factor": 8, "subsampling_conv_channels": 8,
    "ff_expansion_factor": 2, "self_attention_model": "rel_pos", "att_context_size": [-1, -1], "xscaling": False,
    "conv_kernel_size": 9, "conv_norm_type": "batch_norm", "dropout": 0.1,
}  # fmt: skip


def nemo_fastconformer(folder: Path) -> tuple[str, list[str]]:
    return nemo_file(folder, FAST)


def nemo_hybrid(folder: Path) -> tuple[str, list[str]]:
    """A hybrid model, whose transducer is not used; without normalised features."""
    return nemo_file(folder, {**FAST, "subsampling_factor": 4, "use_bias": False}, hybrid=True, normalize="NA")


def nemo_tdt(folder: Path) -> tuple[str, list[str]]:
    return nemo_file(folder, FAST, durations=[0, 1, 2, 3, 4])


def nemo_rnnt(folder: Path) -> tuple[str, list[str]]:
    """A hybrid model, whose texts come from the transducer; without dropout, which changes the name of a layer."""
    return nemo_file(folder, {**FAST, "subsampling_factor": 4}, hybrid=True, durations=[], dropout=0.0)


def nemo_squeezeformer(folder: Path) -> tuple[str, list[str]]:
    encoder = {
        "_target_": "nemo.collections.asr.modules.SqueezeformerEncoder", "feat_in": 40, "feat_out": -1, "n_layers": 3,
        "d_model": 12, "n_heads": 2, "adaptive_scale": True, "time_reduce_idx": 1, "time_recovery_idx": 2,
        "subsampling": "dw_striding", "subsampling_factor": 4, "subsampling_conv_channels": -1,
        "ff_expansion_factor": 2, "self_attention_model": "rel_pos", "att_context_size": [-1, -1],
        "conv_kernel_size": 7, "conv_norm_type": "batch_norm",
    }  # fmt: skip
    return nemo_file(folder, encoder)


def nemo_quartznet(folder: Path) -> tuple[str, list[str]]:
    """Windows of 20 ms, and letters that the settings list."""
    block = {"repeat": 2, "stride": [1], "dilation": [1], "residual": True, "separable": True, "dropout": 0.0}
    alone = {"repeat": 1, "residual": False}
    encoder = {
        "_target_": "nemo.collections.asr.modules.ConvASREncoder", "feat_in": 64, "activation": "relu",
        "conv_mask": True, "jasper": [
            {**block, **alone, "filters": 24, "kernel": [11], "stride": [2]}, {**block, "filters": 24, "kernel": [7]},
            {**block, **alone, "filters": 32, "kernel": [1]},
        ],
    }  # fmt: skip
    labels = [" ", *sorted(LETTERS.lower().replace("'", "")), "'"]
    return nemo_file(folder, encoder, labels=labels, window_size=0.02, pad_to=16)


def icefall(folder: Path, *, is_exported: bool = True, is_transducer: bool = False) -> tuple[str, list[str]]:
    """An exported checkpoint, which contains weights alone; of a model with weights of an unknown head."""
    heads = ("32", "4", "12") if is_exported else ("8", "2", "6")
    settings = {
        "feature_dim": 40, "pos_dim": 16, "causal": not is_exported, "embed_channels": [4, 6, 8],
        "downsampling_factor": "1,2", "encoder_dim": "16,24", "num_encoder_layers": "1,1", "num_heads": "1,2",
        "encoder_unmasked_dim": "12,16", "query_head_dim": f"{heads[0]},{heads[0]}",
        "pos_head_dim": f"{heads[1]},{heads[1]}", "value_head_dim": f"{heads[2]},{heads[2]}",
        "feedforward_dim": "24,32", "cnn_module_kernel": "7,5",
    }  # fmt: skip
    pieces_model(folder, "bpe.model", unk_id=2, user_defined_symbols=["<blk>", "<sos/eos>"])
    settings["vocab_size"] = 40
    if is_transducer:
        settings |= {"use_transducer": True, "decoder_dim": 16, "joiner_dim": 20, "context_size": 2}
    model = import_icefall()(settings)
    move(model, head="ctc_output")
    if is_transducer:
        output = model.joiner.output_linear
        move_transducer(
            model.decoder, model.joiner, embedding=model.decoder.embedding, output=output, blank=0, boost=5.0
        )
        without_unknown(output.bias, ["<blk>", "<sos/eos>", "<unk>"])
        weights = model.state_dict()
    else:
        without_unknown(model.ctc_output[1].bias, ["<blk>", "<sos/eos>", "<unk>"])
        weights = {**model.state_dict(), "joiner.output_linear.weight": torch.randn(40, 4)}
    stored = {"model": weights} if is_exported else {
        "model": weights, "model_avg": {}, "optimizer": {}, "scheduler": {}, **settings,
        "batch_idx_train": 5, "use_ctc": True, "use_transducer": True,
    }  # fmt: skip
    torch.save(stored, folder / "model.pt")
    (folder / "model.json").write_text(json.dumps(settings, indent=1) + "\n")
    return "icefall_transducer" if is_transducer else "icefall", ["model.pt"]


def icefall_transducer(folder: Path) -> tuple[str, list[str]]:
    """An exported checkpoint of a model with a transducer."""
    return icefall(folder, is_transducer=True)


def icefall_training(folder: Path) -> tuple[str, list[str]]:
    """A checkpoint of a training, which contains the recipe's settings; causal, with heads of other widths."""
    return icefall(folder, is_exported=False)


def funasr(folder: Path) -> tuple[str, list[str]]:
    """A folder of Paraformer with words, pieces of words and Chinese characters."""
    import numpy as np
    import yaml

    symbols = [
        "<blank>", "<s>", "</s>", *"你好世界今天", "hello", "world", "tree", "don't", "ab@@", "cd@@", "ef", "gh",
        "<unk>",
    ]  # fmt: skip
    config = {
        "model": "Paraformer",
        "model_conf": {
            "ctc_weight": 0.0, "lsm_weight": 0.1, "length_normalized_loss": True, "predictor_weight": 1.0,
            "predictor_bias": 1, "sampling_ratio": 0.75,
        },
        "encoder": "SANMEncoder",
        "encoder_conf": {
            "output_size": 24, "attention_heads": 2, "linear_units": 48, "num_blocks": 3, "dropout_rate": 0.1,
            "positional_dropout_rate": 0.1, "attention_dropout_rate": 0.1, "input_layer": "pe",
            "normalize_before": True, "kernel_size": 5, "sanm_shfit": 0, "selfattention_layer_type": "sanm",
        },
        "decoder": "ParaformerSANMDecoder",
        "decoder_conf": {
            "attention_heads": 2, "linear_units": 48, "num_blocks": 2, "dropout_rate": 0.1,
            "self_attention_dropout_rate": 0.1, "src_attention_dropout_rate": 0.1, "att_layer_num": 2,
            "kernel_size": 5, "sanm_shfit": 0,
        },
        "predictor": "CifPredictorV2",
        "predictor_conf": {"idim": 24, "threshold": 1.0, "l_order": 1, "r_order": 1, "tail_threshold": 0.45},
        "frontend": "WavFrontend",
        "frontend_conf": {
            "fs": 16000, "window": "hamming", "n_mels": 40, "frame_length": 25, "frame_shift": 10, "lfr_m": 7,
            "lfr_n": 6,
        },
        "tokenizer": "CharTokenizer",
    }  # fmt: skip
    size = 40 * 7
    model = their_model(config, SOURCES / "FunASR", input_size=size, vocab_size=len(symbols))
    for part, gain in ((model.encoder, 2.0), (model.predictor, 0.5), (model.decoder, 4.0)):
        move(part, head="output_layer", gain=gain)
    without_unknown(model.decoder.output_layer.bias, ["<unk>" if each[0] == "<" else each for each in symbols])
    torch.save(model.state_dict(), folder / "model.pt")
    shift, scale = (
        " ".join(f"{value:.4f}" for value in values)
        for values in (np.random.default_rng(0).normal(-8, 1, size), np.full(size, 0.25))
    )
    (folder / "am.mvn").write_text(
        f"<Nnet>\n<Splice> {size} {size}\n[ 0 ]\n<AddShift> {size} {size}\n"
        f"<LearnRateCoef> 0 [ {shift} ]\n<Rescale> {size} {size}\n<LearnRateCoef> 0 [ {scale} ]\n</Nnet>\n"
    )
    (folder / "tokens.json").write_text(json.dumps(symbols, ensure_ascii=False) + "\n")
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return "funasr", []


def has_both_scripts(folder: Path) -> bool:
    """Whether FunASR's outputs have five labels, letters and Chinese characters, and letters after pieces of words.

    True for other systems.
    """
    if not (folder / "tokens.json").is_file():
        return True
    symbols = json.loads((folder / "tokens.json").read_text())
    rows = [[symbols[i] for i in each.argmax(-1)] for each in load_file(folder / "expected.safetensors").values()]
    pieces = [after for row in rows for here, after in pairwise([*row, "世"]) if here.endswith("@@")]
    kinds = {symbol.isascii() for row in rows for symbol in row}
    labels = {symbol for row in rows for symbol in row}
    return len(kinds) == 2 and len(labels) >= 5 and bool(pieces) and all(after.isascii() for after in pieces)


CASES: dict[str, Callable[[Path], tuple[str, list[str]]]] = {
    each.__name__: each
    for each in (
        hf_wav2vec2, hf_wav2vec2_special, hf_w2v_bert, hf_parakeet, fairseq, fairseq_former, nvidia, nvidia_hourglass,
        quartznet, nemo_fastconformer, nemo_hybrid, nemo_squeezeformer, nemo_quartznet, icefall, icefall_training,
        nemo_tdt, nemo_rnnt, hf_parakeet_tdt, icefall_transducer, funasr,
    )
}  # fmt: skip
PEERS = {
    "transformers": "huggingface/transformers 5.23.0", "fairseq": "facebookresearch/fairseq@3d262bb2",
    "nvidia": "NVIDIA/DeepLearningExamples@729963dd PyTorch/SpeechRecognition/wav2vec2",
    "quartznet": "NVIDIA/DeepLearningExamples@729963dd PyTorch/SpeechRecognition/QuartzNet",
    "icefall_transducer": "k2-fsa/icefall@36e0420c egs/librispeech/ASR/zipformer",
    "funasr": "modelscope/FunASR@3c58cb56",
    "nemo": "NVIDIA/NeMo@8cfedd72", "icefall": "k2-fsa/icefall@36e0420c egs/librispeech/ASR/zipformer",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True, help="folder with data and goldens")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("cases", nargs="*", default=[*CASES])
    options = parser.parse_args()
    if len(options.cases) > 1:  # in a process each, because the systems' modules have names in common
        import subprocess

        for case in options.cases:
            subprocess.run(
                [sys.executable, __file__, "--shared", options.shared, "--out", options.out, case], check=True
            )
        return
    (name,) = options.cases
    folder, audio = options.out / name, [options.shared / path for path in RECORDINGS]
    for seed in count():
        torch.manual_seed(seed)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        system, arguments = CASES[name](folder)
        model = folder / arguments[0] if arguments else folder
        texts, margin = texts_of(system, model, folder / "expected.safetensors", audio)
        if (
            has_both_scripts(folder)
            and margin >= MARGIN
            and len(set("".join(texts))) >= VARIETY
            and max(map(len, texts)) <= LONGEST
        ):
            break
    info = {
        "peer": PEERS[system], "versions": {"torch": torch.__version__}, "system": system,
        "model": arguments[0] if arguments else "", "arguments": arguments[1:], "recordings": RECORDINGS,
        "texts": texts, "seed": seed, "margin": margin,
    }  # fmt: skip
    for file in folder.iterdir():
        file.chmod(0o644)
    folder.with_suffix(".json").write_text(json.dumps(info, indent=1, ensure_ascii=False) + "\n")
    print(
        f"{name}: seed {seed}, margin {margin:.1e}, {sum(f.stat().st_size for f in folder.rglob('*'))} bytes: {texts}"
    )


if __name__ == "__main__":
    main()
