"""N-best lists and scores against flashlight-text, with and without a lexicon, on the device and on the host.

We have no option for flashlight's silence score; the tests add it to the column of the word border. If no text ends
with a complete word, flashlight drops the last part and may list the rest several times. Ours lists it once, with the
best score.
"""

import numpy as np
import pytest
from beam_lists import WHERE, WHERE_SEARCHED, Asked, Theirs, cases, compare, emissions, goldens, most_texts, word_list

from asr_jax.search.hypotheses import Search
from asr_jax.search.word_scores import LN10, Fusion
from asr_jax.text.spelling import Spelling

pytestmark = pytest.mark.golden

LEXICON, LEXICON_FREE = "flashlight_lexicon", "flashlight_lexfree"


def asked(entries, *, peer, fusion):
    options = entries[0]["opts"]
    spelling = Spelling.of_surfaces(goldens()["labels"], blank_id=goldens()["labels"].index(""))
    silence = options["sil_score"] * (np.arange(len(spelling.texts)) == spelling.border)
    search = Search(
        rules=peer if peer == LEXICON else "flashlight",
        token_min_logp=-np.inf,
        num_best=most_texts(peer),
        beam_width=options["beam_size"],
        beam_prune_logp=-options["beam_threshold"],
        max_tokens=options["beam_size_token"],
        alignments="sum" if options["log_add"] else "max",
    )
    log_probs = [emissions()[f"logprobs_{entry['utt']}"] + silence[None] for entry in entries]
    return Asked(spelling, search, fusion, log_probs)


def model_of(kind):
    pytest.importorskip("kenlm", reason="the language model of this case requires kenlm: pip install 'asr-jax[lm]'")
    return str(WHERE / f"{kind}.arpa")


def score_check(options):
    """Returns a function that compares CTC scores if the search uses the best alignment; with sums, it returns 0."""
    return lambda ours, theirs: 0.0 if options["log_add"] else abs(ours.log_prob - theirs["am"])


@pytest.mark.parametrize("entries", cases(LEXICON))
@pytest.mark.parametrize("where", WHERE_SEARCHED)
def test_lists_with_a_lexicon_equal_flashlight(entries, where, tmp_path):
    options = entries[0]["opts"]
    fusion = Fusion(
        kenlm=model_of("word"),
        lm_weight=options["lm_weight"] / LN10,
        word_bonus=options["word_score"],
        unknown_score=0.0,
        lexicon=word_list("lexicon_words.json", tmp_path),
        lookahead=True,
    )
    case = asked(entries, peer=LEXICON, fusion=fusion)
    utterances, found = case.found(where)
    lists, expected = [], []
    for ours, theirs in zip(found, (entries[i]["nbest"] for i in utterances), strict=True):
        once = {}
        for each in theirs:
            once.setdefault(" ".join(each["words"]), each)
        expected.append([Theirs(text, each["score"], each) for text, each in once.items()])
        lists.append(ours[: len(once)])
        assert len(ours) == len(once) or len(theirs) == case.search.num_best
    what, check = {"what": where}, score_check(options)
    compare(lists, expected, name=lambda each: each.text, check=check, **what)


@pytest.mark.parametrize("entries", cases(LEXICON_FREE))
@pytest.mark.parametrize("where", WHERE_SEARCHED)
def test_lists_without_a_lexicon_equal_flashlight(entries, where):
    options, fusion = entries[0]["opts"], Fusion()
    if with_model := options["lm_weight"] != 0:
        weight = options["lm_weight"] / LN10
        fusion = Fusion(kenlm=model_of("char"), lm_weight=weight, unit="labels", word_bonus=0.0, unknown_score=0.0)
    if where == "device" and with_model:
        pytest.skip("only the host searches with a language model of labels")
    case = asked(entries, peer=LEXICON_FREE, fusion=fusion)
    utterances, found = case.found(where)
    expected = [
        [Theirs(case.spelling.collapse(np.array(each["tokens"][1:-1])), each["score"], each) for each in theirs]
        for theirs in (entries[i]["nbest"] for i in utterances)
    ]
    what, check = {"what": where}, score_check(options)
    compare(found, expected, name=lambda each: each.labels, check=check, **what)
