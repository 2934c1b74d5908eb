from dataclasses import dataclass

import pytest
from tyro.conf import Positional

from asr_jax.audio.presets import funasr
from asr_jax.cli.recognition_options import RecognitionOptions, decoding_in, decoding_of, parse_recognition
from asr_jax.core.errors import UserError
from asr_jax.heads.attention_decoder import AttentionDecoder
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer_v2 import ParaformerV2
from asr_jax.models.base import Model
from asr_jax.models.sanm import SANM
from asr_jax.search.ctc import CTCDecoding
from asr_jax.search.hypotheses import Search
from asr_jax.search.transducer import TransducerDecoding
from asr_jax.search.transducer_beam import TransducerSearch
from asr_jax.search.word_scores import Fusion


@dataclass(frozen=True, kw_only=True)
class Options(RecognitionOptions):
    runs: Positional[tuple[str, ...]]
    data: tuple[str, ...] = ()


def parsed(*arguments):
    options, flags = parse_recognition(Options, arguments, prog="it", about="")
    return options, decoding_of(flags, CTCDecoding(search=Search(beam_width=3)))


def test_decoding_flags_stand_anywhere():
    options, decoding = parsed(
        "--decoding.kind", "beam", "one", "--decoding.hot-words", "anna", "otto", "--data", "a", "b",
        "--decoding.search.num-best=2", "--checkpoint", "7",
    )  # fmt: skip
    assert (options.runs, options.data, options.checkpoint) == (("one",), ("a", "b"), 7)
    assert decoding.kind == "beam"
    assert (decoding.search.beam_width, decoding.search.num_best) == (3, 2)
    assert decoding.fusion.hot_words == ("anna", "otto")


def test_a_transducer_takes_flags_of_its_search():
    arguments = ["--decoding.kind", "beam", "one", "--decoding.max-symbols", "1", "--decoding.beam-width", "6"]
    arguments += ["--decoding.label-prune-logp", "-0.4", "--decoding.fusion.unit", "labels", "--decoding.same", "texts"]
    _, flags = parse_recognition(Options, arguments, prog="it", about="")
    assert decoding_of(flags, TransducerDecoding()) == TransducerDecoding(
        kind="beam", max_symbols=1, fusion=Fusion(unit="labels"),
        search=TransducerSearch(beam_width=6, label_prune_logp=-0.4, same="texts"),
    )  # fmt: skip


def test_positional_arguments_behind_a_flag_with_several_values_are_asked_for():
    with pytest.raises(UserError, match=r"RUNS is missing; --decoding.hot-words takes all .* put RUNS before it"):
        parsed("--decoding.hot-words", "anna:8", "one", "--checkpoint", "7")


def test_without_flags_the_default_stays():
    assert parsed("one")[1] == CTCDecoding(search=Search(beam_width=3))


@pytest.mark.parametrize(
    ("head", "flags", "messages"),
    [
        ("paraformer", ("--decoding.kind", "beam"), ("--decoding.kind is not a flag", "--head ctc")),
        ("ctc", ("--decoding.ctc-weight", "0.3"), ("--decoding.ctc-weight is not a flag", "--head aed")),
    ],
)
def test_a_head_that_has_the_settings_is_named(head, flags, messages):
    heads = {"paraformer": ParaformerV2(), "ctc": CTC(), "aed": AttentionDecoder()}
    model = Model(SANM.tiny(), front_end=funasr(), augment=(), heads=heads, primary="paraformer")
    with pytest.raises(UserError) as caught:
        decoding_in(model, head, flags)
    assert all(message in str(caught.value) for message in messages)
    assert "other configs" not in str(caught.value)
    with pytest.raises(UserError, match=r"'aeb' is not a recognising head of the model: expected one of .*aed$"):
        decoding_in(model, "aeb", flags)


def test_wrong_flags_are_all_named():
    with pytest.raises(UserError) as caught:
        parsed("one", "--decoding.kind", "beem", "--decoding.search.beam-wide", "4")
    assert "--decoding.kind beem" in str(caught.value)
    assert "did you mean '--decoding.search.beam-width'?" in str(caught.value)


def test_what_is_for_a_beam_search_is_refused_without_one():
    with pytest.raises(UserError, match="expected kind 'beam'"):
        parsed("one", "--decoding.hot-words", "anna")
