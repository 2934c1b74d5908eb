import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
from tyro.conf import Positional, arg

from asr_jax.core.errors import UserError
from asr_jax.core.options import MAY_BE_EMPTY, parse, parse_known


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
    device: Literal["cpu", "gpu"] | None = None
    """Device."""
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
        (["r", "--data", "a", "--fro", "3", "--liv"], "--fro is not an option; did you mean '--from'.*\n.*--live"),
        (["r", "--data", "a", "--from", "x"], "--from: 'x' is not a whole number"),
        (["r", "--data", "a", "--form", "xml"], "--form: 'xml' is not a choice; expected text or json"),
        (["r"], "missing: --data"),
        (["--data", "a"], "missing: RUN"),
        (["r", "--dta", "a"], "--dta is not an option; did you mean '--data'.*\n--data is missing"),
        (["r", "--data"], "--data: expected at least one value"),
        (["r", "--data", "a", "--heads"], "--heads: expected at least one value"),
        (["r", "--data", "a", "--tops"], "--heads: expected at least one value"),
        (["r", "--data", "a", "--checkpoint", "x"], "--checkpoint: 'x' is not a whole number"),
        (["r", "--data", "a", "--checkpoint"], "--checkpoint: expected a value"),
        (["r", "--data", "a", "--out", "None"], "--out None: expected a value; leave the option out"),
        (["r", "--data", "a", "--device=None"], "--device None: expected a value"),
        (["r", "--data", "a", "--device", "tpu"], "--device: 'tpu' is not a choice; expected cpu or gpu"),
        (["r", "--data", "a", "--live=True"], "--live takes no value: expected --live, or --no-live"),
        (["r", "--data", "a", "-x"], "'-x' belongs to no option"),
    ],
)
def test_wrong_arguments_are_named_with_the_command_that_lists_the_options(arguments, message):
    with pytest.raises(UserError, match=rf"(?s){message}.*; it --help lists the options"):
        parsed(*arguments)


def test_spellings():
    assert parsed("r", "--data", "a", "--no-live", "--tops", "x", "--sizes").heads == ("x",)
    assert parsed("r", "--data", "a", "--sizes").sizes == ()


def test_unknown_arguments_are_returned_in_order():
    options, others = parse_known(Options, ["r", "--data", "a", "--config=x", "--optim.lr", "3"], prog="it")
    assert options.data == ("a",)
    assert others == ["--config=x", "--optim.lr", "3"]


def test_help_shows_docstrings_and_no_empty_default(capsys):
    with pytest.raises(SystemExit) as end:
        parsed("--help")
    assert not end.value.code
    text = capsys.readouterr().out
    assert all(
        part in text for part in ("About it.", "Folder of a run.", "--from INT", "--out PATH", "(default: text)")
    )
    assert "None" not in text
    lines = text.splitlines()
    assert lines[0] == "usage: it RUN --data TEXT … [OPTIONS]"
    options = [line.split()[0] for line in lines if re.match("  [A-Z-]", line)]
    assert options[:4] == ["RUN", "--data", "--from", "--form"], "required options are first"
    assert re.search(r"^  --form text\|json +Format\. \(default: text\)$", text, re.MULTILINE)
    assert re.search(r"^  --heads, --tops TEXT … +Heads\.$", text, re.MULTILINE)
    assert "Second sentence" not in text
    with pytest.raises(SystemExit):
        parsed("--help-all")
    assert "Live weights. Second sentence, over two lines." in capsys.readouterr().out


def test_suggestions_of_a_command():
    def meant(flag, known):
        return f"; did you mean {min(known)}?" if flag.strip("-").startswith("m") else ""

    with pytest.raises(UserError) as error:
        parse(Options, ["r", "--mod", "x", "--dat", "a", "m=3", "-m"], prog="it", about="", meant=meant)
    lines = str(error.value).splitlines()
    assert lines[0] == "--mod is not an option; did you mean --checkpoint?"
    assert lines[1] == "--dat is not an option; did you mean '--data'?"
    assert [line.partition(" ")[0] for line in lines[2:]] == ["m=3", "-m", "--data"]
