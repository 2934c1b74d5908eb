"""Categories of reasons for rejection."""

import pytest

from asr_jax.data.batching.filters import kind_of


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("a duration of -3.5 s: expected more", "a duration of N s"),
        ("rows 3-5 of t-2", "rows N-N of t-N"),
        ('no "text" among its fields', 'no "text" among its fields'),
        ('"duration" is "nan"; expected a finite number of seconds', '"duration" is …'),
        ("s3:// addresses are not read: download the files", "s3:// addresses are not read"),
        ("the command 'sox a.wav |' is not run: allow it", "the command … is not run"),
        ("the command 'rm (a: b) |' cannot be run: 'rm' is not allowed", "the command … cannot be run"),
    ],
)
def test_numbers_and_quoted_values_are_replaced_and_names_kept(reason: str, kind: str) -> None:
    assert kind_of(reason) == kind
