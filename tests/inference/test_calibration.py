import json

import numpy as np
import pytest

from asr_jax.checkpoints.integrity import SEAL
from asr_jax.core.errors import UserError
from asr_jax.inference.calibration import calibrate, read_calibration
from asr_jax.metrics.confidence import Calibration, confidence_report
from asr_jax.search.ctc import CTCDecoding
from tests.support import approx, assert_close

BEAM = CTCDecoding(kind="beam")


def too_sure(num=4000, seed=0):
    """Confidences that are too high, and whether each word is right."""
    random = np.random.default_rng(seed)
    confidences = random.uniform(0.5, 1, num)
    return confidences, random.random(num) < confidences**3


def test_fitted_kept_and_found_again_by_checkpoint_and_decoding(tmp_path):
    confidences, is_right = too_sure()
    report = calibrate(tmp_path, 100, "averaged", CTCDecoding(), confidences, is_right)
    assert report["words"] == 4000
    assert report["error_before"] == approx(confidence_report(confidences, is_right)["calibration_error"])
    assert report["error_after"] < 0.04 < 0.2 < report["error_before"]
    calibrate(tmp_path, 100, "averaged", BEAM, confidences, ~is_right)
    found = read_calibration(tmp_path, 100, "averaged", CTCDecoding())
    others, are_right = too_sure(seed=1)
    assert confidence_report(found(others), are_right)["calibration_error"] < 0.04
    assert read_calibration(tmp_path, 100, "averaged", BEAM).slope < 0 < found.slope
    assert read_calibration(tmp_path, 100, "live", CTCDecoding()) is None
    assert read_calibration(tmp_path, 200, "averaged", CTCDecoding()) is None


def test_a_calibration_is_of_the_weights_and_not_of_the_number_of_a_checkpoint(tmp_path):
    (tmp_path / "checkpoints/100").mkdir(parents=True)
    seal = tmp_path / "checkpoints/100" / SEAL
    seal.write_text("first")
    calibrate(tmp_path, 100, "averaged", CTCDecoding(), *too_sure())
    assert read_calibration(tmp_path, 100, "averaged", CTCDecoding())
    seal.write_text("trained again")
    assert read_calibration(tmp_path, 100, "averaged", CTCDecoding()) is None


def test_without_words_nothing_is_kept(tmp_path):
    assert calibrate(tmp_path, 1, "live", BEAM, np.zeros(0), np.zeros(0, bool)) == {"words": 0}
    assert read_calibration(tmp_path, 1, "live", BEAM) is None


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"1 averaged greedy": {"slope": 1}}', json.dumps({"1 averaged greedy": None})]
)
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "calibration.json").write_text(content)
    with pytest.raises(UserError, match=r"calibration\.json cannot be read.*delete it"):
        read_calibration(tmp_path, 1, "averaged", CTCDecoding())


def test_the_same_line_for_no_calibration():
    assert_close(Calibration()(np.array([0.2, 0.9])), [0.2, 0.9])
