"""README and docs/: links, commands, flags, configs and examples exist."""

import ast
import dataclasses
import importlib
import re
from pathlib import Path

import jax
import pytest

from asr_jax.cli.command_line import flags_of_experiment, load_config
from asr_jax.core.flags import flags_of, names_of
from asr_jax.migration.rows import Table
from asr_jax.migration.systems import SYSTEMS
from asr_jax.search.label_synchronous import LabelDecoding
from tests.cli.test_options_of_commands import MODULES, options_of

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").glob("*.md")),
]
XLA = {
    "xla_force_host_platform_device_count": 2,
    "xla_gpu_deterministic_ops": True,
    "xla_gpu_first_collective_call_terminate_timeout_seconds": 600,
}
"""Flags of XLA with a value."""
OTHERS = {
    "--help", "--help-all", "--config", "--decoding", "--download", "--librispeech", "--an4",
    *(f"--{name}" for name in XLA), "--ulimit", "--version", "--logdir", "--lr", "--batch_size",
    "--local-dir", "--nodes", "--ntasks-per-node", "--gpus-per-node", "--device", "--devices",
    "--array", "--gpus", "--requeue", "--dependency", "--wrap", "--plans", "--time", "--signal", "--wait",
    "--cpus-per-task", "--host", "--map-by", "--bind-to", "--tag", "--build-arg", "--ipc", "--volume", "--user",
    "--prefix",
}  # fmt: skip
"""Flags of scripts and benchmarks, of the help, of XLA, of TensorBoard, hf, Slurm, mpirun, docker and kubectl, of other
systems, and of every command (`run_command`)."""


def text_of(page):
    """Text without the first column of tables on other systems, and the last one, which test_coming_from.py checks."""
    text = page.read_text()
    is_of_system = page.name.startswith("coming-from-")
    return re.sub(r"^\| .*? \| (.*) \| .*", r"\1", text, flags=re.MULTILINE) if is_of_system else text


PLACEHOLDERS = {"--field", "--field.name", "--decoding.FIELD"}
"""Names for any flag in messages."""


@pytest.fixture(scope="module")
def flags():
    """Flags of all commands, and of the fields of all configs, also without their middle."""
    found = set(OTHERS)
    observing = [f"asr_jax.observe.{name}" for name in ("curves", "profile", "forward")]
    for module in [*MODULES, "asr_jax.data.corpora.synthetic", "benchmarks.model", *observing]:
        importlib.import_module(module)
        found |= {flag for kind in options_of(module) for flag in names_of(flags_of(kind))}
    for path in (ROOT / "configs").glob("*.py"):
        if "finetune" not in path.name:
            fields = names_of(flags_of_experiment(load_config(str(path))))
            found |= {*fields, *(f"{field.split('.')[0]}.{field.rpartition('.')[2]}" for field in fields)}
    # The default models of configs have no attention decoder.
    found |= {f"--decoding.{field.name.replace('_', '-')}" for field in dataclasses.fields(LabelDecoding)}
    return found


def test_xla_knows_its_flags():
    jax.jit(lambda x: x).lower(1.0).compile(XLA)
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_gpu_unknown"):
        jax.jit(lambda x: x).lower(1.0).compile({"xla_gpu_unknown": True})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_exist(page):
    text = text_of(page)
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
    folders = "configs|tests|scripts|benchmarks|examples|deploy"
    for path in re.findall(rf"`((?:{folders})/[\w/.-]+\.(?:py|sh|json|yaml))`", text):
        assert (ROOT / path).exists(), path
    for name in re.findall(r"python -m asr_jax\.(\w+)", text):
        assert name == "NAME" or importlib.util.find_spec(f"asr_jax.{name}"), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_exist(page, flags):
    named = {flag.rstrip(".") for flag in re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", text_of(page))}
    if page.name == "migration.md":  # it has flags of other systems too
        named -= {flag for flag in named if Table(*(system.rows for system in SYSTEMS)).find(flag)}
    assert not named - flags


def test_flags_of_commands_in_messages_exist(flags):
    checked = 0
    for path in (ROOT / "asr_jax").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())) if path.parent.name != "migration" else ():
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "…".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
            if "python -m asr_jax." in text:
                named = {flag.rstrip(".") for flag in re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", text)}
                assert named - PLACEHOLDERS <= flags, (path, named - PLACEHOLDERS - flags)
                checked += len(named)
    assert checked > 50


@pytest.mark.parametrize("name", ["models.md", "front-ends.md", "streaming.md"])
def test_examples_run(name):
    scope: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / name).read_text(), re.DOTALL):
        exec(block, scope)


def test_quoted_files_are_those_of_the_example():
    quotes = re.findall(
        r"^`(\S+)`:\n\n```python\n(.*?)```", (ROOT / "docs/adding-a-model.md").read_text(), re.M | re.DOTALL
    )
    assert len(quotes) == 3
    for path, text in quotes:
        assert text == (ROOT / path).read_text(), path


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
