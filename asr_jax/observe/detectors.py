"""Detectors of problems in the events of a run. Each has a name and writes a warning with advice."""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from asr_jax.observe.events import Event

SPIKE_AFTER = 10
"""Number of previous train_step events that the detection of loss spikes requires."""
SPIKE_FACTOR = 2.0
"""A loss is a spike if it is this many times the recent mean, and above it by more than 4 standard deviations."""
BLANK_SHARE = 0.95
"""Fraction of empty transcripts above which the model is assumed to output only blanks."""
BLANK_AFTER_UPDATES = 200
"""Number of updates before this check starts, because CTC models output only blanks at first. The last validation is
always checked."""
WAITING_SHARE = 0.2
"""Fraction of the time spent waiting for batches above which a warning is written."""
STRAGGLING = 2.0
"""Factor of the mean waiting time of the other processes above which a process is a straggler. Its waiting must also
take a `WAITING_SHARE` of the time, and at least `STRAGGLING_S`."""
STRAGGLING_S = 1.0
"""Shortest waiting time in seconds of a straggler, because short times are chance."""
COLLAPSED = 1.5
"""Factor of the perplexity in `Detectors.chance`. Below the product, nearly all frames have the same few codes."""
COLLAPSED_AFTER_UPDATES = 200
"""Number of updates before this check starts, because a quantiser uses few of its entries at first."""
GUESSED = 1.5
"""Factor of the accuracy in `Detectors.chance`. Below the product, the model is at chance level."""
GUESSED_UPDATES = 1000
"""Number of updates at chance level, in which the loss falls by less than 1 %, after which a warning is written."""

Warn = Callable[..., None]


@dataclass
class Detectors:
    """Event sink that calls `warn(message=…, detector=…, update=…, …)` for each problem.

    A problem is reported once, and again if it disappears and returns.
    """

    warn: Warn
    chance: Mapping[str, float] = field(default_factory=dict)
    """Values at chance level of pre-training metrics, by their names in events: the accuracy of guesses, and the
    perplexity of collapsed codes."""

    def __post_init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=30)
        self._guesses: dict[str, deque[tuple[int, float, float]]] = defaultdict(deque)
        self._reported: set[str] = set()
        self._num_updates = math.inf

    def __call__(self, event: Event) -> None:
        data = event["data"]
        if event["event"] == "run_start":
            self._num_updates = data["num_updates"]
        elif event["event"] == "train_step":
            self._loss(data)
            self._waiting(data)
            self._straggler(data)
            self._pretraining(data)
        elif event["event"] == "validation":
            self._blank(data)

    def close(self) -> None:
        """Does nothing; sinks must have this method."""

    def _loss(self, data: dict[str, Any]) -> None:
        loss = data["losses"].get("total")
        if loss is None:
            return
        before = list(self._losses)
        self._losses.append(loss)
        if len(before) < SPIKE_AFTER:
            return
        mean = sum(before) / len(before)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in before) / len(before))
        self._report(
            "loss spike",
            loss > SPIKE_FACTOR * mean and loss > mean + 4 * deviation,
            data,
            f"the loss is {loss:.4g}, the mean of the last {len(before)} lines was {mean:.4g}: if it does not "
            "fall again, start a new run from a checkpoint before the spike (--init-from RUN/checkpoints/N) with a "
            "lower learning rate (optim.schedule.peak_lr) or stronger clipping (a lower optim.clip_at); events.jsonl "
            "has the gradient norms before the spike",
            loss=loss,
            mean=mean,
        )

    def _waiting(self, data: dict[str, Any]) -> None:
        share = data.get("throughput", {}).get("waiting_share")
        if share is None:
            return
        self._report(
            "waiting for data",
            share > WAITING_SHARE,
            data,
            f"{share:.0%} of the time was spent waiting for batches: raise --data.threads (or --data.workers, "
            "except with data.order sharded), or use faster storage or formats (a local disk, FLAC instead of MP3, "
            "precomputed features)",
            waiting_share=share,
        )

    def _straggler(self, data: dict[str, Any]) -> None:
        if (found := data.get("processes")) is None:
            return
        number, waiting, speed = found["number"], found["waiting_s"], data["throughput"]
        others_s = (number * waiting["mean"] - waiting["max"]) / (number - 1)
        wall_s = (speed.get("batch_s") or 0.0) * (speed.get("num_batches") or 0)
        least_s = max(STRAGGLING * others_s, WAITING_SHARE * wall_s, STRAGGLING_S)
        self._report(
            "straggler",
            waiting["max"] > least_s,
            data,
            f"process {waiting['process']} waited {waiting['max']:.1f} s for batches since the last line, the other "
            f"processes {others_s:.1f} s on average, and all of them wait for it at each update: check the storage and "
            "the load of its machine, or raise --data.workers or --data.threads there",
            process=waiting["process"],
            waiting_s=waiting["max"],
            others_s=others_s,
        )

    def _pretraining(self, data: dict[str, Any]) -> None:
        metrics = data.get("metrics", {})
        for name, chance in self.chance.items():
            value, head = metrics.get(name), name.split("/")[0]
            if value is None:
                continue
            if name.endswith("/code_perplexity"):
                self._collapse(data, head, value, least=chance)
            elif name.endswith("/accuracy"):
                self._guessing(data, head, value, chance=chance)

    def _collapse(self, data: dict[str, Any], head: str, perplexity: float, *, least: float) -> None:
        self._report(
            "collapse",
            data["update"] >= COLLAPSED_AFTER_UPDATES and perplexity < COLLAPSED * least,
            data,
            f"the perplexity of the codes is {perplexity:.3g}, expected far more than {least:.3g}: nearly all frames "
            "have the same few codes, targets hardly differ, and loss and accuracy are meaningless. Start a new run, "
            "from a checkpoint before the collapse if there is one (--init-from RUN/checkpoints/N), with a larger "
            f"model.heads.{head}.diversity, a lower learning rate (optim.schedule.peak_lr), a longer warm-up or larger "
            "batches",
            code_perplexity=perplexity,
        )

    def _guessing(self, data: dict[str, Any], head: str, accuracy: float, *, chance: float) -> None:
        loss, guesses = data["losses"].get("total"), self._guesses[head]
        if loss is None:
            return
        guesses.append((data["update"], accuracy, loss))
        while len(guesses) > 1 and data["update"] - guesses[1][0] >= GUESSED_UPDATES:
            guesses.popleft()
        is_long, half = data["update"] - guesses[0][0] >= GUESSED_UPDATES, len(guesses) // 2
        losses = [each for _, _, each in guesses]
        mean = sum(each for _, each, _ in guesses) / len(guesses)
        falls = is_long and sum(losses[-half:]) < 0.99 * sum(losses[:half])
        self._report(
            "guessing",
            is_long and not falls and mean < GUESSED * chance,
            data,
            f"the accuracy was {mean:.2%} over the last {GUESSED_UPDATES:,} updates, chance level is {chance:.2%}, and "
            f"the loss ({loss:.4g}) does not fall: the model does not learn. Listen to the audio, check how many "
            "frames are masked (model.encoder.time_mask), and try another learning rate (optim.schedule.peak_lr), a "
            "longer warm-up or larger batches",
            accuracy=mean,
        )

    def _blank(self, data: dict[str, Any]) -> None:
        share = data.get("empty_share")
        if share is None or data["update"] < min(BLANK_AFTER_UPDATES, self._num_updates):
            return
        self._report(
            "blank only",
            share > BLANK_SHARE,
            data,
            f"{share:.0%} of the transcripts are empty: the model outputs only blanks. This is normal at the start of "
            "CTC training, and in runs that end there. If the loss no longer falls, use a longer warm-up or a lower "
            "learning rate, and check that texts match their audio and labels fit their frames (metrics/…/infeasible)",
            empty_share=share,
        )

    def _report(self, name: str, found: bool, data: dict[str, Any], message: str, **measured: float) -> None:
        key = f"{name} {data.get('weights', '')}"
        if found and key not in self._reported:
            self._reported.add(key)
            weights = {"weights": data["weights"]} if "weights" in data else {}
            self.warn(message=message, detector=name, update=data["update"], **weights, **measured)
        elif not found:
            self._reported.discard(key)
