"""Help texts of the fields of an experiment, for `--help` and `--help-all`: one line per field, in groups."""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from asr_jax.cli.synonyms import MEANT, NO_SETTING, matching, meant_by, spellings
from asr_jax.config import Experiment
from asr_jax.core.errors import nearest
from asr_jax.core.names import counted
from asr_jax.core.options import field_texts, wrapped

MOST_USED = (
    "data.train", "data.validation", "run_dir", "init.path", "training.num_updates", "training.num_epochs",
    "data.buckets.batch_seconds", "training.accumulate", "training.precision", "optim.schedule.peak_lr",
    "optim.schedule.warmup_updates", "training.validation.every", "data.tokenizer.kind", "data.tokenizer.path",
    "data.tokenizer.normaliser", "data.speeds", "model.encoder.remat", "seed", "fresh", "dry_run",
    "resume.allow",
)  # fmt: skip
GROUPS = {
    "Run": "", "Data": "data", "Encoder": "model.encoder", "Heads and decoding": "model.heads",
    "Front-end": "model.front_end", "Augmentation": "model.augment", "Model": "model", "Optimizer": "optim",
    "Training and validation": "training", "Initial weights": "init", "Low-rank adapters": "lora",
}  # fmt: skip
"""Prefix of the fields of each group; a field belongs to the longest prefix of its name."""
ONLY_IN_ALL = (
    "data.filters", "data.mixing", "data.buckets", "data.sampling", "model.front_end", "model.augment",
    r"model.heads.\w+.decoding.search", r"model.heads.\w+.decoding.fusion", r"model.heads.\w+.decoding.reranking",
    "data.tokenizer.sampling", "data.tokenizer.sampling_alpha", "data.storage",
    "data.shuffle_window", "data.sampled_items", "data.crop_s", "data.max_removed_share", "training.loss_scale",
    "training.pass_states", "training.pre_allocate", "training.epoch_end",
    "training.profile_processes", "mesh", "lora",
    "upload.revision", "upload.private", "upload.format", "upload.max_minutes", "upload.wait_minutes",
)  # fmt: skip
GROUPS_OF = {"python -m asr_jax.plan": ("Run", "Data")}
"""Groups that `--help` of a command lists, if it does not list all of them."""
LEAST_WIDTH, LONGEST_VALUE = 120, 30


class Field(NamedTuple):
    """A leaf of a tree of settings."""

    name: str
    """Dotted name."""
    kind: str
    """Type, or the values of a Literal."""
    value: Any
    text: str
    """The field's docstring, on one line."""

    @property
    def sentence(self) -> str:
        """First sentence of the docstring, without its full stop."""
        return re.split(r"(?<=[^.\d]\.) (?=[A-Z])", self.text)[0].rstrip(".")


def help_text(
    experiment: Experiment,
    *,
    of: str,
    shows_all: bool,
    width: int | None = None,
    short: Mapping[str, str] = {},
    groups: Collection[str] = tuple(GROUPS),
) -> str:
    """Help text with one line per field, in groups, the most used fields first.

    Args:
        experiment: Settings whose values are shown.
        of: Source of the settings, for the first line.
        shows_all: Whether rarely changed fields are listed; otherwise only their number is shown.
        width: Number of characters after which lines are cut, if it is at least LEAST_WIDTH. None: they are not cut.
        short: Flags of fields by their short forms.
        groups: Groups to list; of others, only the number of fields is shown.
    """
    by_flag = {flag: each for each, flag in short.items()}
    fields = list(described(experiment))
    lines = [f"Fields of {of}, each a flag: --field.name VALUE", "", "Most used:"]
    lines += [_line(field, by_flag) for name in MOST_USED for field in fields if field.name == name]
    rest = [field for field in fields if field.name not in MOST_USED]
    for title, prefix in GROUPS.items():
        group = [field for field in rest if _group_of(field.name) == prefix]
        shown = [field for field in group if shows_all or (title in groups and not _is_only_in_all(field.name))]
        more = len(group) - len(shown)
        if shown:
            lines += ["", f"{title}:", *(_line(field, by_flag) for field in shown)]
            lines += [f"  … and {more} more with --help-all"] * bool(more)
        elif more:
            lines += ["", f"{title}: {counted(more, 'field')} with --help-all"]
    return "\n".join(line if width is None else _cut(line, max(width, LEAST_WIDTH)) for line in lines)


def help_on(experiment: Experiment, text: str) -> str:
    """Help text of the fields whose name or text contains all words, or that another system calls so.

    Each field has its whole text, wrapped.

    Args:
        experiment: Settings whose values are shown.
        text: Words, or a flag, in any case.
    """
    words, joined = re.split(r"[\s_-]+", text.strip("- ").lower()), re.sub(r"\s+", "-", text.strip())
    word = next((each for each in spellings(joined) if each in MEANT or each in NO_SETTING), joined)
    settings = [each.replace("--decoding.", "--model.heads.*.decoding.") for each in MEANT.get(word, ())]
    fields = list(described(experiment))
    meant = {flag for each in settings for flag in matching(each, [f"--{_flag(field.name)}" for field in fields])}
    found = _with_words(fields, words, begins=r"\b") or _with_words(fields, words, begins="")
    found += [field for field in fields if f"--{_flag(field.name)}" in meant and field not in found]
    found.sort(key=lambda field: f"--{_flag(field.name)}" not in meant)
    advice = [f"{text}: {NO_SETTING[word]}"] if word in NO_SETTING else []
    if not found and not advice:
        flags = [f"--{_flag(field.name)}" for field in fields]
        if suggestion := meant_by(word, flags):
            return f"{text}{suggestion}"
        names = {part for field in fields for part in field.name.split(".")}
        return f"no setting has {text!r} in its name or text{nearest(word.replace('-', '_'), names, cutoff=0.75)}"
    lines = [*advice, *[f"Settings with {text!r}:"] * bool(found)]
    for field in found:
        value = _value(field)
        lines += [f"  --{_flag(field.name)} {field.kind}" + (f" [{value}]" if value else "")]
        lines += [wrapped(field.text, indent=6)]
    return "\n".join(lines)


def _with_words(fields: Sequence[Field], words: Sequence[str], *, begins: str) -> list[Field]:
    """Fields whose name and text contain all words, each after the pattern `begins`."""
    patterns = [re.compile(begins + re.escape(word), re.IGNORECASE) for word in words]
    return [
        field for field in fields
        if all(pattern.search(f"{field.name.replace('_', ' ')} {field.text}") for pattern in patterns)
    ]  # fmt: skip


def _flag(name: str) -> str:
    return name.replace("_", "-")


def described(settings: Any, prefix: str = "") -> Iterator[Field]:
    """Yields the leaves of a tree of settings.

    Consecutive list items of one class are described once, with their range as `{0…5}`.
    """
    docs, hints = field_texts(type(settings)), get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value, name = getattr(settings, field.name), f"{prefix}{field.name}"
        text = docs.get(field.name, "")
        if dataclasses.is_dataclass(value):
            yield from described(value, f"{name}.")
        elif isinstance(value, dict):
            for key, item in value.items():
                yield from described(item, f"{name}.{key}.")
        elif isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
            yield from _items(value, name)
        elif value == () and any(dataclasses.is_dataclass(part) for part in get_args(hints[field.name])):
            continue  # an empty list of settings has no fields to set
        else:
            yield Field(name, _kind(hints[field.name]), value, text)


def _items(items: tuple[Any, ...], name: str) -> Iterator[Field]:
    """Yields the fields of settings in a tuple; consecutive items of one class are shown once."""
    first = 0
    while first < len(items):
        last = first
        while last + 1 < len(items) and type(items[last + 1]) is type(items[first]):
            last += 1
        place = f"{first}" if last == first else f"{{{first}…{last}}}"
        yield from described(items[first], f"{name}.{place}.")
        first = last + 1


def _kind(hint: Any) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "|".join(map(str, parts))
    if origin is tuple:
        return " ".join("…" if part is ... else _kind(part) for part in parts) or "…"
    if parts and (origin is Union or isinstance(hint, type(int | str))):
        return "|".join(dict.fromkeys(_kind(part) for part in parts if part is not type(None)))
    return getattr(hint, "__name__", str(hint))


def _group_of(name: str) -> str:
    prefixes = [prefix for prefix in GROUPS.values() if not prefix or name.startswith(f"{prefix}.")]
    return max(prefixes, key=len)


def _is_only_in_all(name: str) -> bool:
    return any(re.match(rf"{pattern}(\.|$)", name) for pattern in ONLY_IN_ALL)


def _value(field: Field) -> str:
    """Current value; empty if it is None or empty."""
    shown = " ".join(map(str, field.value)) if isinstance(field.value, tuple) else str(field.value)
    return "" if shown == "None" else shown


def _line(field: Field, short: Mapping[str, str]) -> str:
    flag, value = f"--{_flag(field.name)}", _value(field)
    flag = f"  {short[flag]}, {flag} {field.kind}" if flag in short else f"  {flag} {field.kind}"
    return f"{flag:<50} " + (f"[{_cut(value, LONGEST_VALUE)}] " if value else "") + field.sentence


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
