"""Batches of each update, and actions before it."""

import time

import pytest

from asr_jax.config import Limits, Saving, Training, Validation
from asr_jax.core.errors import UserError
from asr_jax.training.timetable import ALL_DONE, HOURS_OVER, JOB_DONE, Groups, Timetable


@pytest.mark.parametrize(("epoch_end", "per_epoch"), [("carried", 2.75), ("flushed", 3), ("dropped", 2)])
def test_every_batch_comes_once_or_is_left_over(epoch_end, per_epoch):
    groups = Groups(11, 4, epoch_end)
    assert groups.updates_per_epoch == per_epoch
    taken = [position for update in range(40) for position in groups.positions(update)]
    assert taken == sorted(set(taken))
    left = {position % 11 for position in set(range(max(taken))) - set(taken)}
    assert left == ({8, 9, 10} if epoch_end == "dropped" else set())


def test_epochs_and_their_ends():
    groups = Groups(11, 4, "carried")
    assert [groups.epoch(update) for update in range(7)] == [1, 1, 1, 2, 2, 2, 3]
    assert [update for update in range(12) if groups.ends_epoch(update)] == [3, 6, 9, 11]
    flushed = Groups(11, 4, "flushed")
    assert [update for update in range(10) if flushed.ends_epoch(update)] == [3, 6, 9]


def test_checkpoints_by_epochs():
    timetable = due(saving=Saving(every_epochs=3), validation=Validation(every=1000), log_every=1000)
    table = {update: timetable.due(update, signal=False) for update in range(100)}
    assert [update for update, found in table.items() if found.saves] == [33, 66, 99]
    assert [update for update, found in table.items() if found.at_line] == [0, 33, 66, 99]
    assert not any(found.validates for found in table.values())
    carried = Groups(11, 4, "carried")  # epochs end within updates 3, 6, 9, 11, 14, 17
    assert [update for update in range(20) if carried.ends_epoch(update, 2)] == [6, 11, 17]
    assert not due(saving=Saving(every_epochs=3), first=33).due(33, signal=False).saves  # the last job did it
    assert not any(due().due(update, signal=False).saves for update in range(100))


def test_milestones_by_epochs():
    timetable = due(saving=Saving(milestone_epochs=(1, 3)), validation=Validation(every=1000), log_every=1000)
    assert [update for update in range(100) if timetable.due(update, signal=False).saves] == [11, 33]
    carried = Groups(11, 4, "carried")
    assert [update for update in range(20) if carried.ends_epoch(update)][:6] == [3, 6, 9, 11, 14, 17]
    assert carried.last_updates((1, 2, 3, 4, 5, 6)) == (3, 6, 9, 11, 14, 17)


def test_checkpoints_by_updates():
    timetable = due(saving=Saving(every_updates=40), validation=Validation(every=1000), log_every=1000)
    table = {update: timetable.due(update, signal=False) for update in range(100)}
    assert [update for update, found in table.items() if found.saves] == [40, 80]
    assert [update for update, found in table.items() if found.at_line] == [0, 40, 80]
    assert not due(saving=Saving(every_updates=40), first=40).due(40, signal=False).saves  # the last job did it


def test_epochs_without_an_update_are_refused():
    with pytest.raises(UserError, match=r"accumulate 4.* 3 batches"):
        Groups(3, 4, "dropped")


@pytest.mark.parametrize(
    ("epoch_end", "expected"),
    [
        ("carried", [[7, 8], [9, 10], [11, 12], [13, 14]]),
        ("flushed", [[7, 8], [9], [10, 11], [12, 13]]),
        ("dropped", [[7, 8], [10, 11], [12, 13], [15, 16]]),
    ],
)
def test_another_number_of_batches_follows_the_last_position(epoch_end, expected):
    """Epochs have five batches. Until the third update, updates had another number of batches."""
    groups = Groups(5, 2, epoch_end, first=3, start=7)
    assert [list(groups.positions(update)) for update in range(3, 7)] == expected
    assert [groups.epoch(update) for update in (3, 4)] == [2, 2]
    ends = [update for update in range(4, 7) if groups.ends_epoch(update)]
    assert ends == ([4, 6] if epoch_end == "dropped" else [5])


def test_a_run_in_epochs_counts_those_before_another_number_of_batches():
    assert Groups(5, 2, "carried").updates_until(4) == 10
    assert Groups(5, 2, "carried", first=3, start=5).updates_until(4) == 3 + 7.5


def due(first=0, num_updates=100, owes=False, **settings):
    training = Training(**{"num_updates": 100, "validation": Validation(every=10), "log_every": 5} | settings)
    return Timetable(
        training, Groups(11, 1, "carried"), first=first, num_updates=num_updates, began_s=time.monotonic(),
        owes_validation=owes,
    )  # fmt: skip


def test_validations_lines_and_samples():
    timetable = due(validation=Validation(every=10, sample_every=4, each_epoch=True))
    table = {update: timetable.due(update, signal=False) for update in range(45)}
    assert [update for update, found in table.items() if found.validates] == [10, 11, 20, 22, 30, 33, 40, 44]
    assert [update for update, found in table.items() if found.samples] == [4, 8, 12, 16, 24, 28, 32, 36]
    assert all(found.at_line for update, found in table.items() if update % 5 == 0 or found.validates)
    assert not due(first=10).due(10, signal=False).validates  # the last job did it
    assert due(first=10, owes=True).due(10, signal=False).validates  # a signal stopped it
    assert not due(first=12, owes=True).due(12, signal=False).validates
    assert not due(owes=True).due(0, signal=False).validates


def test_why_a_job_ends():
    assert due().due(100, signal=False).ends == ALL_DONE
    assert due().due(7, signal=True).at_line  # the updates before the signal are reported
    job = due(limits=Limits(epochs_this_job=2), first=5)
    assert [job.due(update, signal=False).ends for update in (5, 21, 22)] == ["", "", JOB_DONE]
    part = due(limits=Limits(epochs_this_job=0.5), first=6)
    assert [part.due(update, signal=False).ends for update in (6, 11, 12)] == ["", "", JOB_DONE]
    assert [due(limits=Limits(epochs_this_job=0.01)).due(update, signal=False).ends for update in (0, 1)] == [
        "",
        JOB_DONE,
    ]
    over = due(limits=Limits(max_hours=1e-12))
    assert [over.due(update, signal=False).ends for update in (0, 1, 5)] == ["", HOURS_OVER, HOURS_OVER]
