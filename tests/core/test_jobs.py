"""Receipts: a job is finished if it did the same work on the same recordings, and its files exist."""

import pytest

from asr_jax.core.errors import UserError
from asr_jax.core.jobs import Job, finish, is_finished

JOB = Job(1, 3)


@pytest.fixture
def out(tmp_path):
    """Output of a finished job."""
    out = tmp_path / "out [1].jsonl"
    JOB.path(out).write_text("lines")
    finish(out, JOB, digest="work", inputs="these", files={out: JOB.path(out)}, recordings=1, rejected=0)
    return out


def test_a_job_is_finished_for_its_work_and_recordings_alone(out):
    assert is_finished(out, JOB, "work", "these")
    assert not is_finished(out, Job(0, 3), "work", "these")
    with pytest.raises(UserError, match=r"of other inputs, weights or settings: .*--force"):
        is_finished(out, JOB, "other", "these")
    with pytest.raises(UserError, match=r"recordings of this job have changed since, or are others .*--force"):
        is_finished(out, JOB, "work", "others")
    JOB.path(out).unlink()
    assert not is_finished(out, JOB, "work", "these")


def test_a_receipt_without_its_recordings_is_refused(out):
    receipt = JOB.receipt(out)
    receipt.write_text(receipt.read_text().replace('"inputs"', '"others"'))
    with pytest.raises(UserError, match=r"is not the receipt of a job \(fields are missing\): delete it"):
        is_finished(out, JOB, "work", "these")
