"""The commands of the tutorials run, with the settings that a line below a block adds to its training.

"For a short trial, add `FLAG …`" below a block, or `<!-- ci: FLAG … -->` above it, adds flags to each of
its commands, and `<!-- ci: skip -->` leaves it out, because it needs a network, a microphone, recordings or a GPU.
"""

import json
import re
import shlex
import shutil
import socket
from pathlib import Path

import pytest

from tests.forked import ROOT, Forked, made_corpus, with_devices

DOCS = ROOT / "docs"
TUTORIALS = ("own-data", "fine-tuning", "pre-training", "transducer", "streaming", "several-machines")


def blocks(page):
    """Yields the comment, or the settings of a trial, and the lines of each block of commands."""
    pattern = r"^(?:<!-- ci: ([^\n]*) -->\n)?```(\w*)\n(.*?)^```$(?:\n\nFor a short trial, add `([^`]*)`)?"
    for comment, language, text, trial in re.findall(pattern, page.read_text(), re.DOTALL | re.MULTILINE):
        if not language:
            yield comment or trial, text.replace("\\\n", " ").splitlines()


def run_block(folder, comment, lines):
    """Runs the lines of a block as a shell does; a line with & at its end goes on beside the next ones."""
    exported, jobs = {}, []
    for line in lines:
        words = shlex.split(line, comments=True)
        is_background = words[-1] == "&"
        words = words[: -1 if is_background else None]
        given = dict(exported)
        while "=" in words[0] and not words[0].startswith("-"):
            name, _, value = words.pop(0).partition("=")
            given[name] = value
        if words[0] == "export":
            exported |= dict(word.split("=", 1) for word in words[1:])
        elif words != ["wait"]:
            assert words[:2] == ["python", "-m"], line
            job = Forked(words[2], *words[3:], *shlex.split(comment), env=with_devices(1, **given), cwd=folder)
            jobs.append((line, job))
            if not is_background:
                end(jobs.pop())
    for each in jobs:
        end(each)


def end(job):
    line, process = job
    try:
        out, err = process.communicate(timeout=900)
    finally:
        process.kill()
    assert process.returncode == 0, f"{line}\n{out}\n{err}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with configs, and with recordings of noise in `recordings` and `mine`, as the tutorials have them."""
    made = tmp_path_factory.mktemp("tutorials")
    (made / "configs").symlink_to(ROOT / "configs")
    (made / "parakeet-ctc-0.6b").symlink_to(DOCS.parent / "tests/goldens/parakeet/biased")
    manifests = made_corpus(made / "mine")
    for manifest in list(manifests.glob("*.jsonl")):
        shutil.move(manifest, made / "mine" / manifest.name)
        lines = [json.loads(line) for line in (made / "mine" / manifest.name).read_text().splitlines()]
        for line in lines:
            line["audio_path"] = line["audio_path"].replace("../", "")
        (made / "mine" / manifest.name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        for line in lines:
            there = made / "recordings" / line["speaker"] / Path(line["audio_path"]).name
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(made / "mine" / line["audio_path"], there)
            there.with_suffix(".txt").write_text(line["text"])
    shutil.copy(made / "mine/audio/27.flac", made / "talk.flac")
    return made


def test_every_tutorial_is_run():
    assert {f"tutorial-{name}" for name in TUTORIALS} == {path.stem for path in DOCS.glob("tutorial-*.md")}
    assert all(len(path.read_text().splitlines()) <= 80 for path in DOCS.glob("tutorial-*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_commands_run(name, folder):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    for comment, lines in blocks(DOCS / f"tutorial-{name}.md"):
        if comment != "skip":
            run_block(folder, comment, [line.replace(":9876", f":{port}") for line in lines])
