"""Histogram of the durations in training, with the edges of the buckets."""

from os import PathLike

import numpy as np
from matplotlib.figure import Figure

from asr_jax.data.batching.buckets import perturbed_lengths
from asr_jax.data.batching.dataset import PlannedData

INK, GREY, FILL, EDGE = "#333333", "#666666", "#2a6fbb", "#d1603d"
NUM_BINS = 120


def draw_durations(data: PlannedData, png_path: str | PathLike[str], *, title: str) -> None:
    """Draws hours of audio by duration, at all speeds, and the upper edge of each bucket as a PNG."""
    index, plan = data.index, data.plan
    seconds = perturbed_lengths(index.lengths, plan.speeds) / index.scale.per_s
    ends = sorted({bucket.length / index.scale.per_s for bucket in plan.buckets})
    figure = Figure(figsize=(10, 4.5), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    bins = np.linspace(0, ends[-1], NUM_BINS + 1).tolist()
    axes.hist(seconds, bins=bins, weights=plan.mean_share() * seconds / 3600, color=FILL)
    for end in ends:
        axes.axvline(end, color=EDGE, linewidth=1)
        axes.text(end, 1.01, f"{end:.1f}", color=EDGE, fontsize=8, ha="center", transform=axes.get_xaxis_transform())
    axes.set_xlim(0, 1.02 * ends[-1])
    axes.set_xlabel("seconds", color=INK)
    axes.set_ylabel(f"hours in an epoch, by {bins[1]:.2g} s", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=GREY)
    caption = (
        f"{title}: {plan.entries_per_epoch:,} utterances per epoch, {len(ends)} lengths, "
        f"padding {plan.padding_share:.1%}"
    )
    axes.set_title(caption, loc="left", color=INK, fontsize=11, pad=18, parse_math=False)
    figure.savefig(png_path, format="png")
