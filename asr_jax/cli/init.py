"""Looks at recordings and at this machine, and writes a config that fits both: `python -m asr_jax.init DIR`.

DIR is a folder of any layout, or a manifest (documentation: data). The report names what was found and what looks
wrong. Missing sets are split from the training set, by speaker if speakers are known. The output is a folder with
config.py, train.jsonl, validation.jsonl, test.jsonl, data.png and findings.json, and three commands that train,
evaluate and transcribe. Nothing is written into DIR.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console
from tyro.conf import Positional, arg

from asr_jax.cli.command_line import load_config
from asr_jax.core.devices import description, devices, platform_of
from asr_jax.core.environment import NUM_CORES
from asr_jax.core.errors import UserError
from asr_jax.core.files import check_writable, remove_empty, write_whole
from asr_jax.core.names import counted
from asr_jax.core.options import parse
from asr_jax.core.paths import UserPath, quoted
from asr_jax.core.settings import NonNegativeInt, PositiveFloat, command_options
from asr_jax.core.text_files import json_text
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.survey import Survey, durations, survey
from asr_jax.observe.tables import console_for, print_table, say
from asr_jax.training.config_file import figures_of, planned, text_of
from asr_jax.training.suggestion import MEDIUM_H, Machine, Suggestion, fitted, more_split, suggest
from asr_jax.training.trial import try_out

CONFIG, PICTURE, FINDINGS = "config.py", "data.png", "findings.json"
NIGHT_H = 8.0
"""Longest time of training on a CPU in hours without --hours."""


@command_options
class InitOptions:
    """Options of `asr_jax.init`."""

    path: Positional[Annotated[UserPath, arg(metavar="DIR")]]
    """Folder of recordings with texts, or a manifest."""
    out: Annotated[UserPath, arg(metavar="FOLDER")] = ""
    """Folder to write. Default: asr_jax_init/NAME in the current folder, with the name of DIR."""
    hours: Annotated[PositiveFloat | None, arg(metavar="H")] = None
    """Longest time of updates and validations in hours, such as 0.5; compilation comes before it. The number of updates
    is what this machine computes in it. Default: 8 on a CPU; on GPUs and TPUs, as long as the recipe says."""
    seed: NonNegativeInt = 0
    """Seed of the split."""
    skip_trial: bool = False
    """Compile and time nothing. Time and memory are then not planned, and the number of updates is 1,000."""
    force: bool = False
    """Overwrite the files of an earlier call."""


def main(arguments: Sequence[str]) -> None:
    options = parse(InitOptions, arguments, prog="python -m asr_jax.init", about=__doc__)
    source = Path(options.path).resolve()
    of_source = source.stem if source.is_file() else source.name
    name = re.sub(r"\W+", "_", Path(options.out).name or of_source).strip("_") or "data"
    out, console = Path(options.out or f"asr_jax_init/{name}"), console_for()
    if (out / CONFIG).exists() and not options.force:
        raise UserError(f"{out / CONFIG} exists: choose another folder with --out, or overwrite it with --force")
    made = check_writable(out, is_folder=True)
    try:
        found = survey(options.path, seed=options.seed, unpack_to=out)
    except BaseException:
        remove_empty(made)
        raise
    report(found, console)
    for role, utterances in found.sets.items():
        if len(utterances):
            write_manifest(out / f"{role}.jsonl", utterances)
        else:
            (out / f"{role}.jsonl").unlink(missing_ok=True)  # of an earlier call
    machine = Machine(platform_of(devices()[0]), len(devices()), NUM_CORES, description())
    say(console, f"machine: {machine.description}")
    hours = options.hours or (NIGHT_H if machine.is_cpu else None)
    command = " ".join(["python -m asr_jax.init", *map(quoted, arguments)])
    chosen = suggest(found, machine, name=name, command=command, hours=hours)
    if rejected := about_long(found, chosen.limits_s[1]):
        say(console, f"! {rejected}", style="bold yellow")
    write_whole(out / CONFIG, text_of(chosen))

    from asr_jax.observe.data_picture import draw_survey  # imported late, because Matplotlib takes a second

    draw_survey(found, out / PICTURE, title=name, longest_s=chosen.limits_s[1])
    if not options.skip_trial:
        say(console, "trial: compiling the largest batch and timing updates")
        try:
            chosen = tried(chosen, out / CONFIG)
        except BaseException:
            (out / CONFIG).unlink()  # so that the command can be repeated
            raise
        write_whole(out / CONFIG, text_of(chosen))
    time, memory = planned(chosen)
    figures = to_json(found) | {"time": time, "memory": memory, "planned": figures_of(chosen)}
    write_whole(out / FINDINGS, json_text(figures) + "\n")
    report_plan(chosen, time, memory, console)
    if found.train.hours < MEDIUM_H:
        say(console, hint(found, out, chosen.normaliser))
    say(console, f"written to {out}: {CONFIG}, {PICTURE}, {FINDINGS} and the manifests. The next commands:")
    for line in commands(out, name, found):
        print(f"  {line}")


def report_plan(chosen: Suggestion, time: str, memory: str, console: Console) -> None:
    """Prints the model, the planned time and memory, and a warning if the time is too short to learn words."""
    say(console, f"model: {chosen.encoder}, {chosen.parameters}; labels: {chosen.labels}; texts: {chosen.normaliser}")
    for what, sentence in (("time", time), ("memory", memory)):
        say(console, f"planned {what}: {sentence or 'not measured (--skip-trial)'}")
    if chosen.trial and (factor := chosen.lacking) > 1:
        say(
            console,
            f"warning: {counted(chosen.num_updates, 'update')} ({chosen.epochs:.1f} epochs) are few, and the error "
            f"rate may be near 100 %; give --hours {factor * chosen.planned_s / 3600:.2g} or more",
            style="bold yellow",
        )


def report(found: Survey, console: Console) -> None:
    """Prints formats, sets, audio and texts, and what looks wrong."""
    for line in found.formats:
        say(console, line)
    print_table([row_of(role, found) for role, each in found.sets.items() if len(each)], console=console)
    texts = found.texts
    kinds = ["capital and small letters"] * texts.has_capitals + ["punctuation"] * texts.has_punctuation
    say(
        console,
        f"texts: {', '.join(map(str.title, texts.scripts)) or 'no letters'}, {len(texts.characters):,} characters"
        + f", {len(texts.words):,} different words" * (not texts.without_spaces)
        + f", with {' and '.join(kinds)}" * bool(kinds),
    )
    say(console, f"audio: {', '.join(f'{rate:,} Hz {share:.1%}' for rate, share in found.rates.items())}")
    if found.split:
        say(console, found.split)
    for finding in sorted(found.findings, key=lambda each: not each.is_wrong):
        style = "bold yellow" if finding.is_wrong else ""
        say(console, f"{'!' if finding.is_wrong else '-'} {finding.line}", style=style)


def about_long(found: Survey, longest_s: float) -> str:
    """Remark on training utterances that the config rejects because of their length. Empty: there are none.

    Raises:
        UserError: If all are.
    """
    seconds = durations([found.train])
    rejected = seconds[seconds > longest_s]
    share = rejected.sum() / seconds.sum()
    what = (
        f"{len(rejected):,} of {counted(len(seconds), 'training utterance')} ({share:.0%} of the audio) are longer "
        f"than {longest_s:g} s, the limit of the config; divide them: python -m asr_jax.align RUN MANIFEST --segment "
        "(documentation: transcription)"
    )
    if len(rejected) == len(seconds):
        raise UserError(what)
    return what if len(rejected) else ""


def row_of(role: str, found: Survey) -> dict[str, Any]:
    """Row of a set in the table of the report."""
    utterances = found.sets[role]
    least, median, most = np.percentile(utterances.columns.duration_s[utterances.rows], (0, 50, 100)).tolist()
    speakers = {utterances.columns.speakers[row] for row in utterances.rows.tolist()} - {""}
    figures = {"utterances": len(utterances), "hours": utterances.hours, "speakers": len(speakers) or None}
    return {"set": role} | figures | {"shortest s": least, "median s": median, "longest s": most}


def to_json(found: Survey) -> dict[str, Any]:
    """Findings for programs."""
    return {
        "formats": found.formats,
        "sets": {role: {"utterances": len(each), "hours": each.hours} for role, each in found.sets.items()},
        "split": found.split,
        "rates": found.rates,
        "scripts": found.texts.scripts,
        "characters": dict(found.texts.characters.most_common()),
        "findings": [vars(each) for each in found.findings],
    }


def tried(chosen: Suggestion, config: Path) -> Suggestion:
    """Measures the suggested config, and returns it with the length and the parts of a batch that fit.

    It is measured once more if other parts or another augmentation follow, because the programs then differ.
    """
    trial = try_out(load_config(config))
    found = fitted(replace(chosen, split=more_split(chosen, trial)), trial)
    if (found.split, found.is_augmented) != (chosen.split, chosen.is_augmented):
        write_whole(config, text_of(found))
        found = fitted(found, try_out(load_config(config)))
    return found


def hint(found: Survey, out: Path, normaliser: str) -> str:
    """Advice for little audio: a published model in the language, and the command that fine-tunes it."""
    of, repository, config = ("any language (MIT licence)", "facebook/w2v-bert-2.0", "w2v_bert_finetune")
    if found.texts.is_english:
        of, repository, config = ("English (CC BY 4.0)", "nvidia/parakeet-ctc-0.6b", "fastconformer_finetune")
    folder = repository.partition("/")[2]
    return (
        f"hint: with {found.train.hours:.2g} h, a published model is better on a GPU; for {of}: hf download "
        f"{repository} --local-dir {folder}; python -m asr_jax.train --config configs/{config}.py --init-from {folder} "
        f"--data.train {quoted(out / 'train.jsonl')} --data.validation {quoted(out / 'validation.jsonl')} "
        f"--data.tokenizer.normaliser {normaliser} --run-dir runs/tuned"
    )


def commands(out: Path, name: str, found: Survey) -> list[str]:
    """The commands that train, evaluate and transcribe."""
    held = "test" if len(found.sets["test"]) else "validation"
    example, run = found.sets[held][0].location, quoted(f"runs/{name}")
    return [
        f"python -m asr_jax.train --config {quoted(out / CONFIG)} --run-dir {run}",
        f"python -m asr_jax.evaluate {run} --data {quoted(out / f'{held}.jsonl')}",
        f"python -m asr_jax.transcribe {run} {quoted(example if Path(example).is_file() else out / f'{held}.jsonl')}",
    ]
