import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest
from tyro.conf import Positional, UseAppendAction, arg

from asr_jax.core.errors import UserError
from asr_jax.core.flags import MAY_BE_EMPTY, flags_of, parse_flags, parse_known
from asr_jax.core.options import parse


@dataclass(frozen=True, kw_only=True)
class Options:
    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a run."""
    data: tuple[str, ...]
    """Manifests."""
    first: Annotated[int, arg(name="from")] = 0
    """First update."""
    form: Literal["text", "json"] = "text"
    """Format."""
    out: Path | None = None
    """File. Default: none."""
    live: bool = False
    """Live weights. Second sentence,
    over two lines."""
    checkpoint: int | None = None
    """Checkpoint. Default: the best."""
    kind: Literal["one", "two"] | None = None
    """Kind."""
    pair: tuple[float, int] = (0.0, 0)
    """Two numbers."""
    pairs: tuple[tuple[float, int], ...] = ()
    """Pairs of numbers."""
    each: Annotated[UseAppendAction[tuple[tuple[int, ...], ...]], arg(metavar="N")] = ()
    """Numbers, several times."""
    heads: Annotated[tuple[str, ...], arg(aliases=["--tops"])] = ()
    """Heads."""
    sizes: Annotated[tuple[int, ...], MAY_BE_EMPTY] = (1, 2)
    """Sizes."""


def parsed(*arguments):
    return parse(Options, arguments, prog="it", about="About it.")


def test_options_stand_anywhere_and_keep_their_types():
    found = parsed("--out", "o.json", "runs/x", "--data", "a", "b", "--from=3", "--live")
    assert found == Options(run=Path("runs/x"), data=("a", "b"), first=3, live=True, out=Path("o.json"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["r", "--data", "a", "--fro", "3", "--liv"], "--fro is not a flag; did you mean '--from'.*\n.*--live"),
        (["r", "--data", "a", "--from", "x"], "--from x: expected a whole number"),
        (["r", "--data", "a", "--form", "xml"], "--form xml: expected text or json"),
        (["r"], "--data is missing"),
        (["--data", "a"], "RUN is missing"),
        (["--data", "a", "b"], "RUN is missing; --data takes all values up to the next flag: put RUN before it"),
        (["r", "--dta", "a"], "--dta is not a flag; did you mean '--data'.*\n--data is missing"),
        (["r", "--data"], "--data: expected a value, or several"),
        (["r", "--data", "a", "--heads"], "--heads: expected a value, or several"),
        (["r", "--data", "a", "--tops"], "--tops: expected a value, or several"),
        (["r", "--data", "a", "--checkpoint", "x"], "--checkpoint x: expected a whole number"),
        (["r", "--data", "a", "--checkpoint"], "--checkpoint: expected a whole number"),
        (["r", "--data", "a", "--checkpoint", "None"], "--checkpoint None: expected a whole number"),
        (["r", "--data", "a", "--pair", "1", "2", "3"], "'3' belongs to no flag"),
        (["r", "--data", "a", "--pairs", "1", "2", "3"], "--pairs 1 2 3: expected a number and a whole number, or sev"),
        (["r", "--data", "a", "--kind=None"], "--kind None: expected one or two"),
        (["r", "--data", "a", "--live=true"], "--live true: expected True or False"),
        (["r", "--data", "a", "-x"], "-x is not a flag"),
        (["r", "s", "--data", "a"], "'s' belongs to no flag"),
        (["r", "--data", "a", "--data", "b"], "--data is given twice: expected all values behind one"),
    ],
)
def test_wrong_arguments_are_named_with_the_command_that_lists_the_options(arguments, message):
    with pytest.raises(UserError, match=rf"(?s){message}.*\nit --help lists the flags"):
        parsed(*arguments)


def test_a_file_whose_name_begins_with_a_dash_is_named_with_the_fix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-x.wav").touch()
    with pytest.raises(UserError, match=r"-x\.wav is not a flag; write \./-x\.wav for the file of this name"):
        parse(Options, ["r", "--data", "a", "-x.wav"], prog="it", about=None)


def test_spellings():
    assert parsed("r", "--data", "a", "--no-live", "--tops", "x", "--sizes").heads == ("x",)
    found = parsed("--live", "r", "--data", "a", "--sizes", "--each", "1", "2", "--each", "3")
    assert (found.sizes, found.each) == ((), ((1, 2), (3,)))
    assert found.live
    assert parsed("r", "--data", "a", "--from", "1", "--from=2").first == 2
    assert parsed("r", "--data", "a", "--live=True").live
    found = parsed("r", "--data", "a", "--pairs", "1", "2", "3", "4", "--pair", "5", "6", "--out", "None")
    assert (found.pairs, found.pair, found.out) == (((1.0, 2), (3.0, 4)), (5.0, 6), Path("None"))


def test_positional_arguments_may_look_like_settings_of_other_commands():
    assert parsed("speed=1.jsonl", "--data", "a").run == Path("speed=1.jsonl")


def test_unknown_arguments_are_returned_in_order():
    options, others = parse_known(Options, ["r", "--data", "a", "--config=x", "--optim.lr", "3"], prog="it")
    assert options.data == ("a",)
    assert others == ["--config=x", "--optim.lr", "3"]


def test_help_shows_docstrings_and_no_empty_default(capsys):
    with pytest.raises(SystemExit) as end:
        parsed("--help")
    assert not end.value.code
    text = capsys.readouterr().out
    assert all(part in text for part in ("About it.", "Folder of a run.", "--from INT", "--out PATH", "[text]"))
    assert "None" not in text
    lines = text.splitlines()
    assert lines[0] == "usage: it RUN --data TEXT … [FLAGS]"
    options = [line.split()[0] for line in lines if re.match("  [A-Z-]", line)]
    assert options[:4] == ["RUN", "--data", "--from", "--form"], "required options are first"
    assert re.search(r"^  --form text\|json +\[text\] Format\.$", text, re.MULTILINE)
    assert re.search(r"^  --heads, --tops TEXT … +Heads\.$", text, re.MULTILINE)
    assert "Second sentence" not in text
    with pytest.raises(SystemExit):
        parsed("--help-all")
    assert "Live weights. Second sentence, over two lines." in capsys.readouterr().out


def test_suggestions_of_a_command():
    with pytest.raises(UserError) as error:
        parsed("r", "--ckpt-step", "x", "--dat", "a", "model_path=3", "-y")
    assert str(error.value).splitlines()[:-1] == [
        "--ckpt-step is not a flag; did you mean --checkpoint?",
        "--dat is not a flag; did you mean '--data'?",
        "model_path=3 is not a flag: RUN is given without a flag",
        "-y is not a flag",
        "--data is missing",
    ]


@dataclass(frozen=True)
class Part:
    size: int = 1
    least: int = 0

    def __post_init__(self):
        if self.least > self.size:
            raise ValueError(f"least is {self.least} and size is {self.size}: expected least at most size")


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...] = (Part(), Part())
    by_name: dict[str, Part] = field(default_factory=lambda: {"a_b": Part()})
    share: float = 0.5

    def __post_init__(self):
        if not 0 <= self.share <= 1:
            raise ValueError(f"share is {self.share}: expected 0 to 1")


def of_whole(*arguments):
    flags = flags_of(Whole())
    return parse_flags([Whole()], flags, arguments, prog="it")[0]


def test_settings_are_replaced_at_their_places():
    assert of_whole() == Whole()
    found = of_whole("--parts.1.size", "3", "--by_name.a_b.size=4", "--config.share", "1")
    assert found == Whole(parts=(Part(), Part(3)), by_name={"a_b": Part(4)}, share=1.0)
    assert of_whole("--by-name.size", "4").by_name == {"a_b": Part(4)}, "the middle of the name is left out"


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["--share", "2"], ["--share 2: share is 2.0: expected 0 to 1"]),
        (
            ["--parts.0.size", "2", "--parts.0.least", "3", "--parts.1.size", "x", "--share", "2"],
            [
                "--parts.1.size x: expected a whole number",
                "--parts.0.size 2, --parts.0.least 3: least is 3 and size is 2: expected least at most size",
                "--share 2: share is 2.0: expected 0 to 1",
            ],
        ),
        (["--parts.size", "2"], ["--parts.size is not a flag; expected one of --parts.0.size, --parts.1.size"]),
    ],
)
def test_mistakes_in_settings(arguments, lines):
    """Other mistakes are found with the former values of what is wrong."""
    with pytest.raises(UserError) as error:
        of_whole(*arguments)
    assert str(error.value).splitlines() == [*lines, "it --help lists the flags"]
