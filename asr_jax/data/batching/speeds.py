"""Speeds in the words of other systems."""


def of_dali(low: float, high: float) -> dict[str, object]:
    """`speeds` and `speed_jitter` of `Data` for NVIDIA DALI's resampling rates from `low` to `high`.

    DALI multiplies the duration by its rate: 1.15 is slower and lower. Here, as in sox, Kaldi and lhotse, 1.15 is
    faster and higher. Theirs are uniform in duration, these in speed: both ends are the same, the mean duration is
    1.5 % shorter for rates from 0.85 to 1.15.

    Raises: ValueError for rates that do not rise above 0.
    """
    if not 0 < low <= high:
        raise ValueError(f"rates {low} to {high}: expected to rise, above 0")
    slow, fast = 1 / high, 1 / low
    return {"speeds": ((slow + fast) / 2,), "speed_jitter": (fast - slow) / 2}
