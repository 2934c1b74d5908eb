"""Conversion of speeds from the conventions of other systems."""


def of_dali(low: float, high: float) -> dict[str, object]:
    """Converts NVIDIA DALI's resampling rates from `low` to `high` to `speeds` and `speed_jitter` of `Data`.

    DALI multiplies the duration by its rate: 1.15 is slower and lower. Here, as in sox, Kaldi and lhotse, 1.15 is
    faster and higher. DALI's rates are uniform in duration, and these speeds are uniform in speed. Both ends are the
    same, and the mean duration is 1.5 % shorter for rates from 0.85 to 1.15.

    Raises:
        ValueError: If the rates are not 0 < `low` ≤ `high`.
    """
    if not 0 < low <= high:
        raise ValueError(f"of_dali: low {low} and high {high}: expected resampling rates with 0 < low ≤ high")
    slow, fast = 1 / high, 1 / low
    return {"speeds": ((slow + fast) / 2,), "speed_jitter": (fast - slow) / 2}
