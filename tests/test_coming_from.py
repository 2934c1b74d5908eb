"""Pages docs/coming-from-*.md: what shows each row exists, and no name in the systems' documents is left out."""

import dataclasses
import importlib
import re
import shlex
from collections import Counter
from functools import cache
from typing import NamedTuple

import pytest

from asr_jax.audio import distort, specaugment
from asr_jax.cli.command_line import NoOptions, flags_of_experiment, load_config
from asr_jax.cli.commands import COMMANDS
from asr_jax.cli.recognition_options import decoding_of
from asr_jax.core import run_folder
from asr_jax.core.flags import DeviceOptions, parse_flags, parse_known
from asr_jax.data.batching import batching
from asr_jax.models import quartznet, squeezeformer, wav2vec2, zipformer
from asr_jax.optim import schedules
from asr_jax.search.ctc import CTCDecoding
from tests.cli.test_options_of_commands import options_of
from tests.forked import Forked, with_devices
from tests.support import ROOT, SHARED

PAGES = {
    "caiman-asr": ("configs/rnnt_base.py", "000_*"),
    "quartznet": ("configs/quartznet_librispeech.py", "001_*"),
    "wav2vec2": ("configs/wav2vec2_pretrain.py", "002_*"),
    "rust": ("configs/squeezeformer_rust.py", "003_*"),
    "nemo": ("configs/fastconformer_librispeech.py", ""),
    "icefall": ("configs/zipformer.py", ""),
}
"""The config whose fields the settings of a page are, and the document of its system in the shared folder, if all names
of a document are on the page."""
STATES = ("Same default", "Same", "Differs", "Not needed", "Not measured", "Missing")
CLASSES = {
    name: each
    for module in (batching, distort, quartznet, schedules, specaugment, squeezeformer, wav2vec2, zipformer)
    for name, each in vars(module).items()
    if isinstance(each, type)
}
NAMES = {
    "flag": r"(?<![\w-])--[a-z][\w-]*",
    "variable": r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b|^ *([A-Z][A-Z0-9]+)(?::| {2,})",
    "file": r"[\w<>-]+\.(?:jsonl?|pt|ltr|txt|yaml|model|vocab|parquet|sh|py)\b(?!\w)",
}
"""Patterns of the names in the documents that the first columns must contain. Files are named without their folder."""


class Row(NamedTuple):
    page: str
    theirs: str
    here: str
    shown: tuple[str, ...]
    """Code of the last column: settings, commands, classes and paths."""

    @property
    def state(self) -> str:
        return next((state for state in STATES if re.match(rf"{state}\b", self.here)), "")


def text_of(page):
    return (ROOT / f"docs/coming-from-{page}.md").read_text()


@cache
def rows():
    found = []
    for page in PAGES:
        lines = [line for line in text_of(page).splitlines() if line.startswith("| ") and not line.startswith("| --")]
        for theirs, here, shown in (line.strip("| ").split(" | ") for line in lines):
            if theirs != "theirs":
                found.append(Row(page, theirs, here, tuple(re.findall("`([^`]+)`", shown))))
    return found


@cache
def experiment_of(config, environment=()):
    """Returns the experiment of a config with some environment variables, and the flags of its fields."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in environment:
            patch.setenv(*variable.split("="))
        experiment = load_config(ROOT / config)
    return experiment, flags_of_experiment(experiment)


def with_fields(arguments, config, environment=()):
    """Returns an experiment with the fields of some flags."""
    experiment, flags = experiment_of(config, environment)
    return parse_flags([NoOptions, experiment], flags, arguments, prog=config)[1]


def check_command(words, *, is_default, decoding=CTCDecoding()):  # noqa: B008 (immutable)
    """Parses a command as it is written. With `is_default`, its options must have their default values."""
    environment = tuple(word for word in words[: words.index("python")])
    module, *rest = words[words.index("python") + 2 :]
    if module.startswith("benchmarks."):
        assert importlib.util.find_spec(module)
        return
    name = module.removeprefix("asr_jax.")
    assert name in COMMANDS, module
    if name == "benchmark":
        name, rest = f"benchmark.{rest[0]}", rest[1:]
    _, rest = parse_known(DeviceOptions, rest, prog=name)
    for kind in options_of(f"asr_jax.cli.{'import_model' if name == 'import' else name}"):
        options, rest = parse_known(kind, [word for word in rest if word != "--help"], prog=name)
        for field in dataclasses.fields(options) if is_default else ():
            chosen_later = field.default in (None, (), False, dataclasses.MISSING)  # or off, and shown as a flag
            assert chosen_later or getattr(options, field.name) == field.default, field.name
    if "--config" in rest:
        place = rest.index("--config")
        with_fields([*rest[:place], *rest[place + 2 :]], rest[place + 1], environment)
    elif rest:
        decoding_of(rest, decoding)


def test_each_row_has_a_state_and_something_that_shows_it():
    assert not [row for row in rows() if not row.state or not row.shown]
    assert len({(row.page, row.theirs) for row in rows()}) == len(rows())
    of_documents = [row for row in rows() if PAGES[row.page][1]]
    assert 200 <= len(of_documents) <= 320
    assert Counter(row.state for row in of_documents)["Missing"] == 2


@pytest.mark.parametrize("page", PAGES)
def test_what_shows_a_row_exists(page):
    for row in rows():
        for shown in row.shown if row.page == page else ():
            words, is_default = shlex.split(shown), row.state == "Same default"
            if "python" in words:
                check_command(words, is_default=is_default)
            elif shown.startswith("--"):
                config = row.shown[0] if row.shown[0].startswith("configs/") else PAGES[page][0]
                changed = with_fields(words, config)
                assert not is_default or changed == experiment_of(config)[0], row
            elif shown.startswith("RUN/"):
                assert shown.removeprefix("RUN/") in vars(run_folder).values(), row
            elif "(" in shown:
                eval(shown, CLASSES)
            else:
                assert (ROOT / shown).exists(), row


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("page", [page for page, (_, document) in PAGES.items() if document])
def test_no_name_of_the_document_is_left_out(page, kind):
    documents = list((SHARED / "reference/seeds").glob(PAGES[page][1]))
    if not documents:
        pytest.skip(f"no documents of the systems under {SHARED}: set ASR_JAX_SHARED to their folder")
    document, text = documents[0].read_text(), " ".join(row.theirs for row in rows() if row.page == page)
    named = {found[1] or found[0] if kind == "variable" else found[0]
             for found in re.finditer(NAMES[kind], document, re.MULTILINE)}  # fmt: skip
    assert not {name for name in named if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_commands_start(page):
    for command in {shown for row in rows() if row.page == page for shown in row.shown if "python -m asr_jax" in shown}:
        words = shlex.split(command)
        start = words.index("python")
        environment = with_devices(1, **dict(word.split("=") for word in words[:start] if not word.startswith("JAX_")))
        job = Forked(*words[start + 2 :], "--help", env=environment)
        printed, errors = job.communicate()
        assert (job.returncode, errors) == (0, ""), command
        assert printed.startswith("usage: "), command
