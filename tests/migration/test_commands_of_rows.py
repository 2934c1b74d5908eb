"""The commands that rows and programs name: each is one of this package, which takes these options."""

import contextlib
import shlex

import pytest

from asr_jax.core.errors import UserError
from asr_jax.migration.engine import OF_EVERY_SYSTEM
from asr_jax.migration.rows import Elsewhere
from asr_jax.migration.systems import SYSTEMS
from asr_jax.search.transducer import TransducerDecoding
from tests.migration.test_lists_of_names import migrated, tables
from tests.test_coming_from import check_command

REQUIRED = {
    "augment": ["--config configs/quartznet_librispeech.py", "--data a.json", "--out b"],
    "evaluate": ["--data dev.json"],
    "extract_features": ["--input a.json", "--output b"],
    "tokenizer": ["--input a.txt"],
    "train": ["--config configs/quartznet_librispeech.py"],
}
"""Options of commands that rows do not have."""
OF_RNNT = TransducerDecoding()
VALUES = ("1", "1000000", "true", "bpe", "cuda", "beam")


def is_taken(row, value):
    """Whether the command of a row takes the option of a value."""
    name = row.command.split()[0]
    with contextlib.suppress(UserError, ValueError):
        words = [*row.command.split(), *("" if value == "true" else str(row.read(value))).split()]
        for option in REQUIRED.get(name, ()):
            words += option.split() if option.split()[0] not in words else []
        if any(word.startswith("--decoding.") for word in words):
            words += ["--decoding.kind", "beam"]
        check_command(
            ["python", "-m", *shlex.split(f"asr_jax.{shlex.join(words)}")], is_default=False, decoding=OF_RNNT
        )
        return True
    return False


@pytest.mark.slow
def test_rows():
    rows = {row for system in SYSTEMS for table in (OF_EVERY_SYSTEM, *tables(system)) for row in table.values()}
    wrong = [row.command for row in rows if isinstance(row, Elsewhere) and not any(is_taken(row, v) for v in VALUES)]
    assert wrong == []


CAIMAN = "./scripts/val.sh --checkpoint=x.pt --beam_width=6 --override_ngram_path=lm.arpa --val_manifests a.json b.json"


@pytest.mark.parametrize(
    ("system", "words", "expected"),
    [
        (
            "caiman",
            f"{CAIMAN} --decoder=beam",
            "evaluate RUN --state-resets 15 3 --decoding.temperature 1.4 --decoding.search.label-prune-logp -0.4 "
            "--decoding.search.token-prune-logp -1.5 --decoding.search.beam-width 6 --decoding.fusion.unit labels "
            "--decoding.fusion.kenlm lm.arpa --data a.json b.json --decoding.kind beam --decoding.search.same texts "
            "--decoding.max-symbols 8",
        ),
        ("caiman", f"{CAIMAN} --keyword_boost_path=k", "evaluate RUN --state-resets 15 3 --data a.json b.json"),
        (
            "caiman",
            "val.py --decoder=greedy",
            "evaluate RUN --data MANIFEST --state-resets 15 3 --decoding.kind greedy",
        ),
        ("quartznet", "VAL_MANIFESTS=a.json bash scripts/inference.sh", "evaluate RUN --data a.json"),
        ("quartznet", "DATASET='my sets/a.json' bash inference.sh", "evaluate RUN --data 'my sets/a.json'"),
        ("quartznet", f"VAL_MANIFESTS='{'a' * 99}.json {'b' * 99}.json' bash scripts/inference.sh",
         f"evaluate RUN --data {'a' * 99}.json {'b' * 99}.json"),
        ("caiman", "val.py --decoder=greedy --val_manifests a.json 'my sets/b.json'",
         "evaluate RUN --state-resets 15 3 --decoding.kind greedy --data a.json 'my sets/b.json'"),
        (
            "quartznet",
            "BATCH_SIZE_SEQ='1 2' MAX_DURATION_SEQ='2 16.7' bash scripts/inference_benchmark.sh",
            "benchmark inference RUN --batch-sizes 1 2 --seconds 2 16.7",
        ),
        (
            "caiman",
            "VAL_MANIFESTS='a.json b.json' bash scripts/val.sh --decoder=greedy",
            "evaluate RUN --state-resets 15 3 --data a.json b.json --decoding.kind greedy",
        ),
        ("quartznet", "DATASET=dev-clean bash inference.sh", "evaluate RUN --data librispeech-dev-clean-wav.json"),
        ("quartznet", "NUM_STEPS=9 bash scripts/inference_benchmark.sh", "benchmark inference RUN --steps 9"),
        ("quartznet", "ACC_BATCH_SIZE=9 bash scripts/train_benchmark.sh", "benchmark train --batch 9"),
        ("wav2vec2", "VALID_SUBSET=dev bash scripts/inference.sh", "evaluate RUN --data dev"),
        ("rust", "cargo run --bin train -- tokenizer --input a.txt", "tokenizer --input a.txt"),
    ],
)  # fmt: skip
def test_programs(system, words, expected):
    command = migrated(system, shlex.split(words)).command
    assert command == f"python -m asr_jax.{expected}"
    check_command(shlex.split(command), is_default=False, decoding=OF_RNNT)
