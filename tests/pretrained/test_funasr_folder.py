"""Folders of FunASR: what they state, what is refused, and writing one for a model that was trained here."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from asr_jax.audio.presets import funasr, nemo
from asr_jax.audio.stages import NormaliseByDataSet
from asr_jax.core.errors import UserError
from asr_jax.core.frame_times import FrameTimes
from asr_jax.core.timed_tokens import TokenSequence
from asr_jax.heads.attention_decoder import AttentionDecoder
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer import Paraformer
from asr_jax.heads.paraformer_v2 import Enhancement, ParaformerV2
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.models.sanm import SANM
from asr_jax.nn.decoders.cif import CIF
from asr_jax.nn.decoders.parallel_decoder import SANMDecoder
from asr_jax.pretrained.formats import exported, save_folder
from asr_jax.pretrained.funasr import UNUSED, front_end_of, settings_of
from asr_jax.pretrained.funasr_folder import config_of, folder_files, kaldi_text, tokenizer_of
from asr_jax.text.characters import CharacterTokenizer, IdTokenizer, WordTokenizer
from asr_jax.text.mixed import MixedTokenizer
from asr_jax.text.pieces import train_model
from asr_jax.text.segmentation import words_of
from asr_jax.text.sentencepiece import SentencePieceTokenizer
from asr_jax.text.tokenizers import OutOfVocabulary, Tokenizer, load_tokenizer
from asr_jax.transcripts.words import Writer
from tests.support import assert_close

LARGE: dict[str, Any] = {
    "model": "Paraformer",
    "model_conf": {
        "ctc_weight": 0.0, "lsm_weight": 0.1, "length_normalized_loss": True, "predictor_weight": 1.0,
        "predictor_bias": 1, "sampling_ratio": 0.75,
    },
    "encoder": "SANMEncoder",
    "encoder_conf": {
        "output_size": 512, "attention_heads": 4, "linear_units": 2048, "num_blocks": 50, "dropout_rate": 0.1,
        "positional_dropout_rate": 0.1, "attention_dropout_rate": 0.1, "input_layer": "pe", "normalize_before": True,
        "kernel_size": 11, "sanm_shfit": 0, "selfattention_layer_type": "sanm",
    },
    "decoder": "ParaformerSANMDecoder",
    "decoder_conf": {
        "attention_heads": 4, "linear_units": 2048, "num_blocks": 16, "dropout_rate": 0.1,
        "self_attention_dropout_rate": 0.1, "src_attention_dropout_rate": 0.1, "att_layer_num": 16, "kernel_size": 11,
        "sanm_shfit": 0,
    },
    "predictor": "CifPredictorV2",
    "predictor_conf": {"idim": 512, "threshold": 1.0, "l_order": 1, "r_order": 1, "tail_threshold": 0.45},
    "frontend": "WavFrontend",
    "frontend_conf": {
        "fs": 16000, "window": "hamming", "n_mels": 80, "frame_length": 25, "frame_shift": 10, "lfr_m": 7, "lfr_n": 6,
    },
    "tokenizer": "CharTokenizer",
}  # fmt: skip
"""The template in FunASR's funasr/models/paraformer."""


def test_the_template_is_our_default(tmp_path: Path) -> None:
    encoder, heads = settings_of(LARGE, "config.yaml")
    assert encoder == SANM()
    assert heads == {"paraformer": Paraformer(end_id=2, dropped_ids=(1, 2))}
    assert front_end_of(LARGE, tmp_path, "config.yaml") == funasr()
    longer = {**LARGE, "frontend_conf": {**LARGE["frontend_conf"], "frame_length": 32}}
    assert front_end_of(longer, tmp_path, "config.yaml") == replace(funasr(), window_ms=32.0)
    statistics = NormaliseByDataSet(mean=(0.1,) * 560, deviation=(0.3,) * 560)
    (tmp_path / "am.mvn").write_text(kaldi_text(statistics))
    with_statistics = front_end_of(LARGE, tmp_path, "config.yaml")
    assert with_statistics.then[0] == funasr().then[0]
    assert_close(with_statistics.then[1].deviation, statistics.deviation)  # type: ignore[attr-defined]


def test_bicif_is_read_without_its_second_integration() -> None:
    changes = {"upsample_times": 3, "use_cif1_cnn": False, "upsample_type": "cnn_blstm", "smooth_factor2": 0.25}
    config = {
        **LARGE, "model": "BiCifParaformer", "predictor": "CifPredictorV3",
        "predictor_conf": {**LARGE["predictor_conf"], **changes},
    }  # fmt: skip
    assert settings_of(config, "config.yaml") == settings_of(LARGE, "config.yaml")
    second = ("upsample_cnn.weight", "blstm.weight_ih_l0_reverse", "cif_output2.bias")
    assert all(re.fullmatch(UNUSED, f"predictor.{name}") for name in second)
    assert not re.fullmatch(UNUSED, "predictor.cif_output.bias")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "SenseVoiceSmall"}, r"model is SenseVoiceSmall, expected Paraformer or"),
        ({"encoder": "ConformerEncoder"}, r"encoder is ConformerEncoder, expected SANMEncoder"),
        ({"predictor": "CifPredictorV4"}, r"predictor is CifPredictorV4, expected CifPredictor or"),
        ({"predictor_conf": {"threshold": 0.9}}, r"predictor_conf.threshold is 0.9, expected 1.0"),
        ({"encoder_conf": {}}, r"encoder_conf.input_layer is conv2d, expected pe"),
        ({"decoder_conf": {"concat_after": True}}, r"decoder_conf.concat_after is True, expected False"),
        ({"model_conf": {"blank_id": 3}}, r"model_conf.blank_id is 3, expected 0"),
        ({"frontend": "WavFrontendOnline"}, r"frontend is WavFrontendOnline, expected WavFrontend"),
        ({"frontend_conf": {"cmvn_file": "none.mvn"}}, r"none.mvn.*expected a text file with <AddShift>"),
    ],
)
def test_what_is_not_supported_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = {**LARGE, **changes}
    with pytest.raises(UserError, match=message):
        settings_of(config, "config.yaml"), front_end_of(config, tmp_path, "config.yaml")


def test_tokens(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(LARGE))
    with pytest.raises(UserError, match=r"has no list of tokens: expected one of tokens.json, tokens.txt, units.txt"):
        tokenizer_of(tmp_path, None)
    (tmp_path / "tokens.txt").write_text("<blank>\n<s>\n</s>\na\n<space>\n<unk>\n")
    found = tokenizer_of(tmp_path, None)
    assert found.symbols == (None, "<s>", "</s>", "a", " ", "<unk>")
    assert (found.blank_id, found.decode([3, 4, 3])) == (0, "a a")
    (tmp_path / "config.yaml").write_text("[1, 2]")
    with pytest.raises(UserError, match=r"config.yaml is \[1, 2\]: expected the settings of a model"):
        config_of(tmp_path)


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ("hel@@ lo world", "hello world"),
        ("one two", "one two"),
        ("你 好 hello world", "你好hello world"),
        ("one hel@@ lo 你 one 好", "one hello你one好"),
        ("<s> one <unk> two </s>", "one two"),
    ],
)
def test_texts_have_the_spaces_of_funasr(labels: str, text: str, tmp_path: Path) -> None:
    tokens = ["<blank>", "<s>", "</s>", "你", "好", "hel@@", "lo", "hello", "world", "one", "two", "<unk>"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**LARGE, "token_list": tokens}))
    tokenizer_of(tmp_path, None).save(tmp_path / "run")
    tokenizer = load_tokenizer(tmp_path / "run")
    ids = [tokens.index(label) for label in labels.split()]
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(tokenizer.encode(text)) == text
    writer = Writer(tokenizer, times=FrameTimes(shift=640, first=0.0, rate_hz=16000))
    frames = tuple(range(len(ids) + 1))
    sequence = TokenSequence(tuple(ids), frames[:-1], frames[1:], (0.0,) * len(ids), 0.0)
    assert writer.text(sequence) == text
    assert [word.text for word in writer.transcript([sequence]).words] == words_of(text)


def test_words_are_spelled_with_pieces() -> None:
    tokenizer = MixedTokenizer((None, "hel@@", "he@@", "lo", "lp", "好", ","), "lower.v1")
    assert tokenizer.encode("Hello, help好") == [1, 3, 6, 2, 4, 5]
    with pytest.raises(OutOfVocabulary, match="'held'"):
        tokenizer.encode("held lo")


DECODER = SANMDecoder(num_layers=3, num_attention_layers=2, kernel_size=5, memory_shift=1)
CHARACTERS = CharacterTokenizer((None, "a", " "), "none")
MODEL = Model(
    SANM.tiny(memory_shift=2), front_end=funasr(), augment=(), primary="paraformer",
    heads={
        "paraformer": Paraformer(predictor=CIF("depthwise", tail=0.3, smooth_factor=1.2), decoder=DECODER),
        "ctc": CTC(scale=0.25),
    },
)  # fmt: skip


TAPPED = SANM.tiny(memory_shift=2, taps=("layer_1",))


def test_a_model_of_ours_becomes_a_folder(tmp_path: Path) -> None:
    """The end, which is the label of the blank here, is both in FunASR, too."""
    save_folder({}, MODEL, CHARACTERS, "funasr", tmp_path / "out")
    config = config_of(tmp_path / "out")
    assert config["model_conf"]["ctc_weight"] == 0.2
    encoder, heads = settings_of(config, "config.yaml")
    assert encoder == MODEL.encoder
    assert heads["paraformer"] == replace(MODEL.heads["paraformer"], label_scale=0.8, end_id=0, dropped_ids=(0,))  # type: ignore[call-arg]
    assert json.loads((tmp_path / "out" / "tokens.json").read_text()) == ["<blank>", "a", "<space>"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.yaml", "configuration.json", "model.pt", "tokens.json"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": Conformer.tiny(), "front_end": nemo()}, r"expected a SANM encoder and a Paraformer head"),
        ({"heads": {"ctc": CTC()}, "primary": ""}, r"expected a SANM encoder and a Paraformer head"),
        ({"front_end": replace(funasr(), preemphasis=0.5)}, r"FunASR has no front-end KaldiFbank"),
        (
            {"encoder": TAPPED, "heads": {**MODEL.heads, "shallow": CTC(tap="layer_1")}},
            r"the model has the heads ctc, shallow: expected one CTC head, as in FunASR",
        ),
        (
            {"encoder": TAPPED, "heads": {"paraformer": MODEL.heads["paraformer"], "shallow": CTC(tap="layer_1")}},
            r"head shallow reads the tap 'layer_1': expected the encoder's output, as in FunASR",
        ),
        (
            {"heads": {**MODEL.heads, "aed": AttentionDecoder()}},
            r"FunASR has no head aed \(AttentionDecoder\): expected a Paraformer and a CTC head",
        ),
        (
            {"heads": {"paraformer": ParaformerV2(decoder=DECODER), "ctc": CTC()}},
            r"FunASR has no heads with queries projection",
        ),
        (
            {
                "heads": {
                    "paraformer": ParaformerV2(decoder=DECODER, enhanced=Enhancement(shallow="ctc", tap="")),
                    "ctc": CTC(),
                }
            },
            r"FunASR has no heads with queries projection",
        ),
    ],
)
def test_what_funasr_does_not_have_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        folder_files(replace(MODEL, **changes), CHARACTERS)


def test_weights_of_two_heads_with_one_name_are_refused() -> None:
    heads = {**MODEL.heads, "second": CTC()}
    with pytest.raises(UserError, match=r"the model has the heads ctc, second: expected one CTC head"):
        exported({}, replace(MODEL, heads=heads), "funasr")


def test_labels_with_another_blank_are_refused() -> None:
    with pytest.raises(UserError, match=r"label 0 is 'a': expected the blank"):
        folder_files(MODEL, CharacterTokenizer(("a", None), "none"))


def test_pieces_and_words_of_ours_become_a_folder(tmp_path: Path) -> None:
    of_pieces = train_model(
        ["one two", "two three one"], vocab_size=14, with_blank=False, model_type="bpe", pad_id=0, pad_piece="<blank>",
        unk_id=1, bos_id=-1, eos_id=-1,
    )  # fmt: skip
    pieces = SentencePieceTokenizer.of_model(of_pieces, normaliser="none", blank_id=0)
    for number, tokenizer in enumerate((pieces, WordTokenizer((None, "one", "two", "three"), "none"))):
        out = tmp_path / str(number)
        save_folder({}, MODEL, tokenizer, "funasr", out)
        ids = tokenizer.encode("two one three")
        assert tokenizer_of(out, None).decode(ids) == "two one three"
        assert tokenizer_of(out, None).encode("two one three") == ids
    assert (tmp_path / "0" / "bpe.model").read_bytes() == of_pieces
    assert config_of(tmp_path / "0")["tokenizer"] == "SentencepiecesTokenizer"


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (WordTokenizer((None, "one", "x-ray"), "none"), r"FunASR has no words such as 'x-ray', label 2, with these"),
        (IdTokenizer((None, "1", "2"), "none"), r"FunASR has no ids such as '1', label 1, with these spaces"),
        (CharacterTokenizer((None, "a", "b"), "none"), r"FunASR has no characters such as 'a', label 1, with these"),
    ],
)
def test_labels_with_other_spaces_are_refused(tokenizer: Tokenizer, message: str) -> None:
    with pytest.raises(UserError, match=message):
        folder_files(MODEL, tokenizer)


@pytest.mark.parametrize(
    ("changes", "begin_and_end"),
    [
        ({"end_id": 1}, (1, 1)),
        ({"end_id": 1, "dropped_ids": (0, 2)}, (2, 1)),
        ({"end_id": 1, "dropped_ids": (2, 3)}, None),
        ({"end_id": -1, "dropped_ids": (2,)}, (2, 0)),
        ({"end_id": 5, "dropped_ids": (3, 4), "ends": False}, (3, 4)),
        ({"end_id": 5, "dropped_ids": (2, 3, 4), "ends": False}, None),
    ],
)
def test_labels_that_texts_leave_out(changes: Any, begin_and_end: tuple[int, int] | None, tmp_path: Path) -> None:
    model = replace(MODEL, heads={"paraformer": Paraformer(decoder=DECODER, **changes)})
    if begin_and_end is None:
        with pytest.raises(UserError, match=r"leave out the labels \[0, .*expected those of the blank, one begin"):
            folder_files(model, CHARACTERS)
        return
    save_folder({}, model, CHARACTERS, "funasr", tmp_path / "out")
    written = config_of(tmp_path / "out")["model_conf"]
    assert (written["sos"], written["eos"]) == begin_and_end
