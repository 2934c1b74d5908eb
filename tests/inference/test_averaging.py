"""Choice of the checkpoints whose mean is computed."""

import pytest

from asr_jax.core.errors import UserError
from asr_jax.inference.averaging import choose


@pytest.fixture
def run(tmp_path):
    for number in (100, 200, 300):
        (tmp_path / "run/checkpoints" / str(number)).mkdir(parents=True)
    return tmp_path / "run"


def test_the_newest_of_a_range_are_chosen(run):
    assert choose(run) == [100, 200, 300]
    assert choose(run, last=2) == [200, 300]
    assert choose(run, last=1, to=250) == [200]
    assert choose(run, first=200, to=300) == [200, 300]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"last": 5}, "--last 5: .*run has 3 checkpoints, 100, 200, 300; use --last 3, or .*saving.keep-last 5"),
        ({"last": 2, "first": 300}, "--last 2: .*run has 1 checkpoint, 300; use --last 1, or .*saving.keep-last 2"),
        ({"first": 400}, "no checkpoint from 400 to the last: there are 100, 200, 300; change --from or --to"),
        ({"first": 110, "to": 190}, "no checkpoint from 110 to 190: there are 100, 200, 300; change --from or --to"),
    ],
)
def test_fewer_than_requested_are_refused_with_what_to_do(run, given, message):
    with pytest.raises(UserError, match=message):
        choose(run, **given)


def test_a_run_without_checkpoints_goes_on(tmp_path):
    with pytest.raises(UserError, match=r"no complete checkpoint: .*continue the run"):
        choose(tmp_path)
