"""Settings: ranges, checks across fields, and changed defaults."""

import dataclasses
import math
from pathlib import Path
from typing import Annotated

import pytest

from asr_jax.core.paths import UserPath
from asr_jax.core.settings import (
    NonNegativeFloat,
    PositiveInt,
    Range,
    Share,
    ShareBelow1,
    above,
    between,
    command_options,
    settings,
    with_paths,
)


@settings
class Files:
    path: UserPath = ""
    several: tuple[UserPath, ...] = ()
    maybe: UserPath | None = None
    out: Path | None = None
    groups: tuple[tuple[UserPath, ...], ...] = ()
    plain: str = "~"


@settings
class Tree:
    one: Files = Files()
    by_name: dict[str, Files] = dataclasses.field(default_factory=dict)
    parts: tuple[Files, ...] = ()
    num: int = 0


@settings
class Base:
    num: PositiveInt = 1
    """Number."""
    rate: ShareBelow1 = 0.1
    parts: tuple[NonNegativeFloat, ...] = ()
    rules: tuple[tuple[str, Share], ...] = ()
    maybe: PositiveInt | None = None
    logp: Annotated[float, between(-math.inf, 0)] = -math.inf


@settings
class Changed(Base):
    num = 3
    more: Annotated[float, above(0, most=1)] = 1.0

    def problems(self):
        if self.num == 2:
            yield f"num is {self.num}: expected another number"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num": 0}, "num is 0: expected at least 1"),
        ({"rate": 1.0}, "rate is 1.0: expected at least 0 and below 1"),
        ({"num": "3"}, "num is '3': expected int"),
        ({"num": 2.5}, "num is 2.5: expected int"),
        ({"maybe": "x"}, r"maybe is 'x': expected int \| None"),
        ({"parts": [1.0]}, r"parts is \[1.0\]: expected tuple.*"),
        ({"more": math.inf}, "more is inf: expected a finite number, above 0 and at most 1"),
        ({"rate": math.nan}, "rate is nan: expected at least 0 and below 1"),
        ({"parts": (1.0, -1.0)}, r"parts is \(1.0, -1.0\): expected each at least 0"),
        ({"parts": (math.inf,)}, r"parts is \(inf,\): expected each at least 0"),
        ({"rules": (("a", 0.5), ("b", 2.0))}, r"rules is .*: expected each at least 0 and at most 1"),
        ({"maybe": 0}, "maybe is 0: expected at least 1"),
        ({"logp": 1.0}, "logp is 1.0: expected at most 0"),
        ({"more": 0.0}, "more is 0.0: expected above 0 and at most 1"),
        ({"num": 0, "rate": -1.0}, "num is 0: expected at least 1; rate is -1.0: expected at least 0 and below 1"),
        ({"num": 2}, "num is 2: expected another number"),
        ({"num": 2, "rate": 1.0}, "rate is 1.0: expected at least 0 and below 1; num is 2: expected another number"),
    ],
)
def test_values_out_of_range_are_named(values, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Changed(**values)


def test_a_subclass_changes_a_default_and_keeps_type_and_range():
    assert Base().num == 1
    assert Changed().num == 3
    assert [field.name for field in dataclasses.fields(Changed)] == [*Base.__dataclass_fields__, "more"]
    with pytest.raises(ValueError, match="num is 0: expected at least 1"):
        Changed(num=0)


def test_an_int_is_accepted_as_a_float():
    assert Base(rate=0, parts=(1,)).parts == (1,)


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Base().num = 2


def test_a_required_option_of_a_command_may_follow_another():
    @command_options
    class Options:
        num: PositiveInt = 1
        out: str

    assert Options(out="x").num == 1
    with pytest.raises(ValueError, match="num is 0: expected at least 1"):
        Options(num=0, out="x")


def test_ranges_as_text():
    assert str(Range()) == "a finite number"
    assert str(between(1, 8)) == "at least 1 and at most 8"


def test_a_tilde_is_the_home_folder_in_every_path_and_in_nothing_else(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    found = Files("~/a", ("~/b", "c", "~"), "~/d", Path("~/e"), (("~/f",), ("g/~",)), "~/h")
    assert found == Files("/home/me/a", ("/home/me/b", "c", "/home/me"), "/home/me/d", Path("/home/me/e"),
                          (("/home/me/f",), ("g/~",)), "~/h")  # fmt: skip
    assert dataclasses.replace(found, path="~").path == "/home/me"


def test_paths_are_changed_wherever_they_are_in_a_tree():
    tree = Tree(Files("a", ("b",)), {"x": Files(maybe="c")}, (Files(out=Path("d")), Files()), 3)
    assert with_paths(tree, str.upper) == Tree(
        Files("A", ("B",)), {"x": Files(maybe="C")}, (Files(out=Path("D")), Files()), 3
    )
    assert with_paths(tree, str) == tree
