"""Every flag and environment variable in the four systems' documents becomes a setting, or has a reason why not."""

import re
import shlex
from collections import Counter
from functools import cache

import pytest

from asr_jax.cli.command_line import load_config
from asr_jax.config import Experiment
from asr_jax.migration.changes import located
from asr_jax.migration.engine import Line, Migration, migrate
from asr_jax.migration.rows import PART, To
from asr_jax.migration.sources import read_sources
from asr_jax.migration.systems import SYSTEMS
from tests.migration.names_of_systems import DOCUMENTS
from tests.support import ROOT, SHARED

SEEDS = SHARED / "reference" / "seeds"
KNOWN = {system.name: system for system in SYSTEMS}
PLACEHOLDERS = {"OPTION1", "OPTION2"}
CASES = [(number, name) for number, document in enumerate(DOCUMENTS) for name in document.names]
IDS = [f"{DOCUMENTS[number].system} {name}" for number, name in CASES]
NOT_HERE = ("--w2v-hf-model-dir", "--input-dim")
"""Names whose values need a folder, or have an effect with other values."""
# Flags of the Rust trainer that have an effect on one architecture, or beside another flag.
BESIDE = {
    "--adaptive-batch-budget": "--adaptive-batch-unit frames",
    "--adaptive-batch-unit": "--adaptive-batch-budget 40000",
    "--adaptive-batch-max-samples": "--adaptive-batch-unit frames",
    "--d-model": "--architecture squeezeformer",
    "--num-layers": "--architecture squeezeformer",
    "--num-heads": "--architecture squeezeformer",
    "--paraformer-alignment-mode": "--paraformer",
    "--paraformer-enhanced": "--paraformer",
    "--w2v-activation-checkpointing": "--w2v-bert",
    "--w2v-hf-model-dir": "--w2v-bert",
    "--w2v-hf-load-weights": "--w2v-bert --w2v-hf-model-dir w2v-bert-2.0",
    "--lr-min": "--lr-warmup-steps 10",
    "--sort-buffer-size": "--sort-by-length-desc",
    "--hf-upload-checkpoints": "--hf-upload-repo-id me/model",
    "--spec-time-mask-max-frames": "--spec-time-masks 2",
    "--spec-time-masks": "--spec-time-mask-max-frames 20",
    "--spec-freq-mask-max-bins": "--spec-freq-masks 2",
    "--spec-freq-masks": "--spec-freq-mask-max-bins 10",
    "--val-n-best": "--val-beam-width 8",
    **dict.fromkeys(("--val-lm-weight", "--val-lm-word-bonus", "--val-lm-no-bos", "--val-lm-no-eos"),
        "--val-beam-width 8 --val-lm-path lm.arpa --tokenizer t.model"),
    "--val-lm-path": "--val-beam-width 8 --tokenizer t.model",
    "--waveform-gain-min-db": "--waveform-gain-max-db 3",
}  # fmt: skip


@cache
def recipe(name: str) -> Experiment:
    return load_config(ROOT / "configs" / f"{name}.py")


def migrated(system: str, command: list[str]) -> Migration:
    return migrate(KNOWN[system], read_sources([], command), load=recipe)


@cache
def line_of(number: int, name: str) -> Line:
    """The line of the report about a name of a document with its value, in a command line of its system."""
    document = DOCUMENTS[number]
    value, words, shown = document.names[name], shlex.split(document.program), name
    if not name.startswith("--"):
        found = migrated(document.system, [f"{name}={value}", *words])
    elif name in ("--bin", "--features", "--release"):
        shown = "--cargo"
        found = migrated(document.system, [*words[:2], name, *([value] if value else []), *words[2:]])
    else:
        beside = shlex.split(BESIDE.get(name, ""))
        found = migrated(document.system, [*words, *beside, *[name, value][: 2 if value else 1]])
    [line] = [line for line in found.lines if line.given.split("=")[0] == shown]
    return line


def names_in(text: str) -> set[str]:
    """Flags and environment variables in a document."""
    name = r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*"
    with_underscore = r"(?<![\w<$\[])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b"
    found = {*re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*\w", text), *re.findall(with_underscore, text)}
    found |= {
        *re.findall(rf"(?m)^({name})(?=: | {{2,}})", text),
        *re.findall(rf"(?<![\w$<-])({name})=(?=[\w\[<\"])", text),
    }
    return found - PLACEHOLDERS


@pytest.mark.skipif(not SEEDS.is_dir(), reason=f"no {SEEDS}: set ASR_JAX_SHARED to the folder with the documents")
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each.system)
def test_the_lists_have_every_name_of_the_documents(document):
    [path] = SEEDS.glob(f"{document.file}_*")
    assert names_in(path.read_text()) == {*document.names}


@pytest.mark.parametrize(("number", "name"), CASES, ids=IDS)
def test_every_name_becomes_a_setting_or_has_a_reason(number, name):
    line = line_of(number, name)
    assert line.kind in ("mapped", "elsewhere", "not needed", "refused")
    assert len(line.result.split()) > 1, line
    assert line.kind != "mapped" or " = " in line.result or name in NOT_HERE, line


def test_counts():
    """docs/migration.md has the counts."""
    text = (ROOT / "docs" / "migration.md").read_text()
    for number, document in enumerate(DOCUMENTS):
        kinds = Counter(line_of(number, name).kind for name in document.names)
        numbers = [kinds[kind] for kind in ("mapped", "elsewhere", "not needed", "refused")]
        row = f"| {document.system} | {len(document.names)} | {' | '.join(map(str, numbers))} |"
        print(row)
        assert row in text


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda each: each.name)
def test_every_field_of_the_tables_exists(system):
    recipes = [recipe(path.stem) for path in (ROOT / "configs").glob("*.py") if path.stem in SOURCES[system.name]]

    def exists(field, experiment):
        try:
            return bool(located(experiment, field))
        except KeyError:
            return False

    fields = set()
    for row in (row for rows in tables(system) for row in rows.values()):
        fields |= set(row.fields.split() if isinstance(row, To) else [row] if isinstance(row, str) else []) - {PART}
    assert [field for field in sorted(fields) if not any(exists(field, each) for each in recipes)] == []


def test_no_name_has_two_rows():
    for system in SYSTEMS:
        names = Counter(name for names in system.rows for name in re.split(r"[ |]", names))
        assert [name for name, number in names.items() if number > 1] == []


def tables(system):
    return [system.rows, *(program.rows for program in system.programs)]


SOURCES = {
    "caiman": ["rnnt_base"],
    "quartznet": ["quartznet_librispeech"],
    "wav2vec2": ["wav2vec2_pretrain", "wav2vec2_finetune"],
    "rust": ["squeezeformer_rust", "zipformer_rust", "paraformer_rust", "w2v_bert_finetune"],
    "nemo": ["conformer_librispeech", "fastconformer_tdt"],
    "icefall": ["zipformer_transducer"],
}
"""Configs that the migrations of each system begin with."""
