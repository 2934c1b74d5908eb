"""Categories of reasons for rejection."""

import pytest

from asr_jax.data.batching.filters import kind_of


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("a duration of -3.5 s: expected more", "a duration of N s"),
        ("rows 3-5 of t-2", "rows N-N of t-N"),
        ('no "text" among its fields', 'no "text" among its fields'),
    ],
)
def test_numbers_and_quoted_values_are_replaced(reason: str, kind: str) -> None:
    assert kind_of(reason) == kind
