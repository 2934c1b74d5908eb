"""A checkpoint of icefall with an attention decoder: settings from the file, and the same weights written again."""

from typing import Any

import numpy as np
import pytest

from asr_jax.core.pytrees import unflatten
from asr_jax.heads.attention_decoder import AttentionDecoder
from asr_jax.models.base import Model
from asr_jax.pretrained.formats import exported, imported
from asr_jax.pretrained.icefall import DECODER, DESCRIPTIONS, zipformer_of
from asr_jax.pretrained.torch_writer import save_torch
from tests.support import golden_cases

pytestmark = pytest.mark.golden
SIZES = {
    "num_heads": "heads", "query_head_dim": "q", "value_head_dim": "v", "pos_head_dim": "ph",
    "encoder_unmasked_dim": "unm",
}  # fmt: skip


@pytest.mark.parametrize("case", golden_cases("icefall_zipformer", "asr_model*"))
def test_a_file_is_read_and_written(case: Any, tmp_path: Any) -> None:
    arrays, sizes = case.arrays(), case.info["config"]
    weights = {name[6:]: array for name, array in arrays.items() if name.startswith("param/")}
    named = {theirs: ",".join(map(str, sizes[name])) for theirs, name in SIZES.items()}
    save_torch({"model": weights, "attention_decoder_num_heads": 4, **named}, tmp_path / "a.pt")
    (reader,) = DESCRIPTIONS
    heads = reader.heads(tmp_path / "a.pt")
    assert list(heads) == ["transducer", "attention", "ctc"]
    head = heads["attention"]
    assert isinstance(head, AttentionDecoder)
    assert (head.ctc, head.decoder.num_heads, head.begin_id, head.end_id) == ("ctc", 4, 1, 1)
    model = Model(zipformer_of(tmp_path / "a.pt"), heads=heads, augment=(), primary="attention")
    params, left = imported(weights, model)
    assert not left
    again = exported(unflatten(params), model, "icefall")
    assert {name for name in weights if name.startswith(DECODER)} <= again.keys()
    assert all(np.array_equal(again[name], weights[name]) for name in again)
