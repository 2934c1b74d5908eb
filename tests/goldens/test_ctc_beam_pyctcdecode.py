"""N-best lists, scores and frames of words against pyctcdecode, on the device and on the host."""

import numpy as np
import pytest
from beam_lists import WHERE, WHERE_SEARCHED, Asked, Theirs, cases, compare, emissions, goldens, most_texts, word_list

from asr_jax.search.hypotheses import Search
from asr_jax.search.word_scores import Fusion
from asr_jax.text.spelling import Spelling

pytestmark = pytest.mark.golden

LANGUAGE_MODEL = {"alpha": "lm_weight", "beta": "word_bonus", "unk_score_offset": "unknown_score"}


def fusion(entry, folder):
    """Converts the options of build_ctcdecoder and decode_beams to ours."""
    decoder, decode = dict(entry["decoder"]), entry["decode"]
    options = {"hot_words": tuple(decode.get("hotwords", ()))}
    if "hotword_weight" in decode:
        options["hot_word_weight"] = decode["hotword_weight"]
    if model := decoder.pop("kenlm_model_path", None):
        pytest.importorskip("kenlm", reason="the language model of this case requires kenlm: pip install 'asr-jax[lm]'")
        options["kenlm"] = str(WHERE / model)
    if words := decoder.pop("unigrams", None):
        options["known_words"] = word_list(words, folder)
    if "lm_score_boundary" in decoder:
        options["bos"] = options["eos"] = decoder.pop("lm_score_boundary")
    return Fusion(**options, **{LANGUAGE_MODEL[name]: value for name, value in decoder.items()})


def asked(entries, folder):
    options = {name: value for name, value in entries[0]["decode"].items() if not name.startswith("hotword")}
    log_probs = [emissions()[f"logprobs_{entry['utt']}"] for entry in entries]
    return Asked(
        spelling=Spelling.of_surfaces(goldens()["labels"], blank_id=goldens()["labels"].index("")),
        search=Search(rules="pyctcdecode", num_best=most_texts("pyctcdecode"), **{"beam_width": 100} | options),
        fusion=fusion(entries[0], folder),
        log_probs=[x - np.logaddexp.reduce(x.astype(np.float64), axis=1, keepdims=True) for x in log_probs],
    )


@pytest.mark.parametrize("entries", cases("pyctcdecode"))
@pytest.mark.parametrize("where", WHERE_SEARCHED)
def test_lists_equal_pyctcdecode(entries, where, tmp_path):
    case = asked(entries, tmp_path)
    utterances, found = case.found(where)
    expected = [[Theirs(each["text"], each["lm_score"], each) for each in entries[i]["nbest"]] for i in utterances]

    def check(ours, theirs):
        frames = [[word.text, [word.start_frame, word.end_frame]] for word in ours.words]
        assert frames == theirs["word_frames"]
        return abs(ours.log_prob - theirs["logit_score"])

    compare(found, expected, name=lambda each: each.text, check=check, what=where)
