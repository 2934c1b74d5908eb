"""The distributions: contents, installations outside of the checkout, extras, types, version, licences.

The slow tests build the sdist and the wheels with `python -m build`. Without a package index, the wheel is installed
beside the packages of the environment of the tests; with one, also into an empty environment.
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import licences
import pytest
import yaml
from packaging.requirements import Requirement

import asr_jax
from asr_jax.cli.commands import COMMANDS
from tests.forked import ROOT, made_corpus

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [Requirement(text) for texts in (PROJECT["dependencies"], *EXTRAS.values()) for text in texts]
VERSION = PROJECT["version"]


def pins():
    """Versions in constraints.txt, by names in lower case with dashes."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {name: rest.partition(";")[0].strip() for name, _, rest in (line.partition("==") for line in lines)}


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_version_is_semantic_and_the_same_everywhere():
    assert re.fullmatch(r"\d+\.\d+\.\d+(-[\w.]+)?", VERSION)
    assert asr_jax.__version__ == VERSION, "call scripts/setup.sh after a change of the version"
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == VERSION
    newest = re.search(
        r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert newest[1] == VERSION


def test_extras_agree_with_each_other_and_with_the_pinned_versions():
    bounds = {}
    for each in REQUIREMENTS:
        if each.name == PROJECT["name"]:
            assert each.extras <= EXTRAS.keys()
        elif each.specifier:
            assert bounds.setdefault(canonical(each.name), each.specifier) == each.specifier, each.name
    pinned = pins()
    for name, specifier in bounds.items():
        assert pinned.get(name, "nothing") in specifier, f"constraints.txt: {name}"


def test_the_documentation_lists_all_extras():
    table = (ROOT / "docs" / "quickstart.md").read_text().partition("## Extras")[2].partition("## ")[0]
    listed = [name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(EXTRAS)


def test_licences_are_listed_and_known():
    """Those of all direct dependencies. The metadata of the packages in this environment states what the page does."""
    tables = licences.PAGE.read_text().partition("## Without extras")[2]
    rows = [row.strip("|").split("|") for row in tables.splitlines() if row.startswith("| ") and "---" not in row]
    listed = {canonical(name.strip()): licence.strip() for licence, names in rows for name in names.split(",")}
    assert {canonical(each.name) for each in REQUIREMENTS} - {PROJECT["name"]} <= listed.keys()
    assert all(listed.values())
    compared = 0
    for each in importlib.metadata.distributions():
        metadata = each.metadata.json
        name = canonical(metadata["name"])
        if metadata["version"] == pins().get(name) and name in listed:
            assert licences.licence_of(metadata) == listed[name], name
            compared += 1
    assert compared > 50


def run(*command, **options):
    """Runs a command that does not see the checkout, and returns its output."""
    ours = ("PYTHONPATH", "COVERAGE_PROCESS_START")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(
        [str(each) for each in command], env=environment, capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Built(NamedTuple):
    sdist: Path
    wheel: Path
    """Built from the sdist."""
    of_checkout: Path
    """Built from the checkout."""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder, other = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("other")
    build = (sys.executable, "-m", "build", "--no-isolation", ROOT, "--outdir")
    run(*build, folder)
    run(*build, other, "--wheel")
    (sdist,), (wheel,), (of_checkout,) = folder.glob("*.tar.gz"), folder.glob("*.whl"), other.glob("*.whl")
    return Built(sdist, wheel, of_checkout)


def environment_with(wheel, folder):
    """Makes an environment with the wheel and with the other packages of this environment; returns its programs."""
    venv.create(folder, symlinks=True)
    programs = folder / "bin"
    pip = (sys.executable, "-m", "pip", "--python", programs / "python", "install", "--quiet")
    run(*pip, "--no-deps", "--no-index", wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    # A path behind the new packages. Files *.pth in it, as that of the editable installation, are not read.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs


@pytest.fixture(scope="module")
def programs(built, tmp_path_factory):
    return environment_with(built.wheel, tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def index():
    """Skips the test if no package index answers."""
    probe = (sys.executable, "-m", "pip", "index", "versions", "--retries", "0", "--timeout", "20", "jax")
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no package index answers: {done.stderr.strip()[-200:]}")


def tracked(*folders):
    """Files of git, and those that it would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    return {
        name for name in subprocess.check_output(command, cwd=ROOT, text=True).splitlines() if (ROOT / name).exists()
    }


@pytest.mark.slow
def test_contents(built):
    """The package with its pages and tables, the configs and the licence; no tests, no data, nothing of the machine."""
    of_package, configs = tracked("asr_jax"), tracked("configs")
    for wheel in (built.wheel, built.of_checkout):
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
            assert "License-File: LICENSE" in archive.read(f"asr_jax-{VERSION}.dist-info/METADATA").decode()
        about = {name for name in names if name.startswith(f"asr_jax-{VERSION}.dist-info/")}
        assert names - about == of_package | {f"asr_jax/{name}" for name in configs}
        assert f"asr_jax-{VERSION}.dist-info/licenses/LICENSE" in about
    assert built.wheel.read_bytes() == built.of_checkout.read_bytes(), "a build is a function of the sources"
    assert {"asr_jax/py.typed", "asr_jax/reporting/report.html", "asr_jax/serving/page/page.js"} <= of_package
    with tarfile.open(built.sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    single = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md", "constraints.txt", "pyproject.toml"}
    assert names - {"PKG-INFO", ".gitignore"} == of_package | configs | tracked("examples") | single


@pytest.mark.slow
def test_the_installed_package_works_in_another_folder(programs, tmp_path):
    """Help, training from a config of the package, a report from its templates, and transcription."""
    code = "import asr_jax; print(asr_jax.__file__, asr_jax.__version__)"
    file, version = run(programs / "python", "-c", code, cwd=tmp_path).split()
    assert Path(file).is_relative_to(programs.parent)
    assert version == VERSION

    def asr_jax_(*arguments):
        return run(programs / "asr-jax", *arguments, cwd=tmp_path)

    assert all(name in asr_jax_("--help") for name in COMMANDS)
    assert asr_jax_("--version").startswith(f"asr-jax {VERSION}, jax ")
    assert "--optim.schedule.peak-lr" in asr_jax_("train", "--help")
    corpus = made_corpus(tmp_path / "corpus")
    sets = ("--data.train", corpus / "train.jsonl", "--data.validation", corpus / "validation.jsonl")
    small = (
        "--model.encoder.dim", "32", "--model.encoder.num-layers", "2", "--data.batching.num-buckets", "1",
        "--updates", "2",
    )  # fmt: skip
    asr_jax_("train", "--config", "configs/quickstart.py", *sets, *small, "--run-dir", "run")
    events = (json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines())
    (versions,) = [event["data"]["versions"] for event in events if event["event"] == "run_start"]
    assert versions["asr-jax"] == VERSION
    asr_jax_("report", "run", "--out", "report.html")
    assert "<html" in (tmp_path / "report.html").read_text()
    assert "24.flac" in asr_jax_("transcribe", "run", corpus.parent / "audio" / "24.flac")


@pytest.mark.slow
def test_all_configs_of_the_package_load(programs, tmp_path):
    names = sorted(path.name for path in (ROOT / "configs").glob("*.py"))
    code = f"import asr_jax\nfor name in {names}: asr_jax.load_config(f'configs/{{name}}')"
    run(programs / "python", "-c", code, cwd=tmp_path)


@pytest.mark.slow
def test_types_are_exported(programs, tmp_path):
    (tmp_path / "consumer.py").write_text(
        'import asr_jax\n\nreveal_type(asr_jax.load("runs/mine").transcribe("a.wav").text)\n'
    )
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", programs / "python", "consumer.py")
    assert 'Revealed type is "str"' in run(*mypy, cwd=tmp_path).replace("builtins.", "")


@pytest.mark.slow
@pytest.mark.usefixtures("index")
def test_an_empty_environment(built, tmp_path):
    """pip installs the wheel with the packages that it requires, and nothing else is there."""
    venv.create(tmp_path / "empty", with_pip=True, symlinks=True)
    programs = tmp_path / "empty" / "bin"
    pip = (programs / "python", "-m", "pip")
    run(*pip, "install", "--quiet", "--no-compile", "--constraint", ROOT / "constraints.txt", built.wheel)
    run(*pip, "check")
    assert run(programs / "asr-jax", "--version", cwd=tmp_path).startswith(f"asr-jax {VERSION}, jax ")
    assert "--optim.schedule.peak-lr" in run(programs / "asr-jax", "train", "--help", cwd=tmp_path)
    run(programs / "python", "-c", "import asr_jax.api, asr_jax.training.loop", cwd=tmp_path)
    shutil.rmtree(tmp_path / "empty")


@pytest.mark.slow
@pytest.mark.usefixtures("index")
def test_all_extras_resolve_together_as_pinned():
    """The page of licences is that of the resolved packages."""
    try:
        without, every = licences.resolved(), licences.resolved(licences.all_extras())
    except subprocess.CalledProcessError as error:
        pytest.fail(error.stderr)
    pinned = pins()
    assert not {name for name in map(canonical, every) if name not in pinned}
    if sys.platform == "linux" and sysconfig.get_platform() == "linux-x86_64":
        assert licences.page(without, every) == licences.PAGE.read_text()
