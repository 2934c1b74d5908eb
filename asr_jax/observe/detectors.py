"""What in a run's events a person should look at: each detector has a name, and says what to do."""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from asr_jax.observe.events import Event

SPIKE_AFTER = 10
"""Events of training from which on a loss can be told to spike."""
SPIKE_FACTOR = 2.0
"""How many times the mean of the last ones a loss must be, and more than it by four of their standard deviations."""
BLANK_SHARE = 0.95
"""Share of empty transcripts from which on a model is said to give blanks alone."""
BLANK_AFTER_UPDATES = 200
"""A model that has hardly begun gives blanks alone, rightly."""
WAITING_SHARE = 0.2
COLLAPSED = 1.5
"""Times the perplexity of codes that say next to nothing: below, nearly all frames get the same few."""
COLLAPSED_AFTER_UPDATES = 200
"""A quantiser that has hardly begun uses few of its entries."""
GUESSED = 1.5
"""Times chance: with an accuracy below, a model guesses."""
GUESSED_UPDATES = 1000
"""For so long, while the loss falls by less than 1 %."""

Warn = Callable[..., None]


@dataclass
class Detectors:
    """Is told of each event, and calls `warn(message=…, detector=…, update=…, …)` for what it finds.

    Each finding is told once, and again when it had gone meanwhile.
    """

    warn: Warn
    alarm_wer: float
    alarm_updates: int
    chance: Mapping[str, float] = field(default_factory=dict)
    """Metrics of pre-training, by name, where nothing is learned: the accuracy of guesses, and the perplexity of codes
    that say next to nothing."""

    def __post_init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=30)
        self._guesses: dict[str, deque[tuple[int, float, float]]] = defaultdict(deque)
        self._told: set[str] = set()

    def __call__(self, event: Event) -> None:
        data = event["data"]
        if event["event"] == "train_step":
            self._loss(data)
            self._waiting(data)
            self._pretraining(data)
        elif event["event"] == "validation":
            self._blank(data)
            self._error_rate(data)

    def close(self) -> None:
        """Nothing to close."""

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
        self._tell(
            "loss spike", loss > SPIKE_FACTOR * mean and loss > mean + 4 * deviation, data,
            f"the loss is {loss:.4g}, and was {mean:.4g} in the mean of the last {len(before)} lines: where it does "
            "not come back, begin another run from a checkpoint before it (--init-from RUN/checkpoints/N) with a lower "
            "learning rate (optim.schedule.peak_lr) or harder clipping (optim.clip_at); the gradient norms before it "
            "are in events.jsonl",
            loss=loss, mean=mean,
        )  # fmt: skip

    def _waiting(self, data: dict[str, Any]) -> None:
        share = data.get("throughput", {}).get("waiting_share")
        if share is None:
            return
        self._tell(
            "waiting for data", share > WAITING_SHARE, data,
            f"{share:.0%} of the time was spent waiting for batches: raise --data.workers or --data.threads, or bring "
            "the data nearer (a local disk, FLAC instead of MP3, ready features)", waiting_share=share,
        )  # fmt: skip

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
        self._tell(
            "collapse", data["update"] >= COLLAPSED_AFTER_UPDATES and perplexity < COLLAPSED * least, data,
            f"the perplexity of the codes is {perplexity:.3g}, expected well over {least:.3g}: nearly all frames get "
            "the same few, targets hardly differ, and loss and accuracy say nothing. Begin another run, from a "
            "checkpoint before it if there is one (--init-from RUN/checkpoints/N), with a larger "
            f"model.heads.{head}.diversity, a lower learning rate "
            "(optim.schedule.peak_lr), a longer warm-up or larger batches",
            code_perplexity=perplexity,
        )  # fmt: skip

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
        self._tell(
            "guessing", is_long and not falls and mean < GUESSED * chance, data,
            f"the accuracy was {mean:.2%} over the last {GUESSED_UPDATES:,} updates, guessing gives {chance:.2%}, and "
            f"the loss ({loss:.4g}) does not fall: nothing is learned. Hear whether the audio is what it should be, "
            "look how many frames are hidden (model.encoder.time_mask), and try another learning rate "
            "(optim.schedule.peak_lr), a longer warm-up or larger batches",
            accuracy=mean,
        )  # fmt: skip

    def _blank(self, data: dict[str, Any]) -> None:
        share = data.get("empty_share")
        if share is None or data["update"] < BLANK_AFTER_UPDATES:
            return
        self._tell(
            "blank only", share > BLANK_SHARE, data,
            f"{share:.0%} of the transcripts are empty: the model gives blanks alone. So CTC begins; where "
            "the loss no longer falls, warm up longer or to a lower rate, and look whether texts belong to their "
            "audio and labels fit their frames (metrics/…/infeasible)", empty_share=share,
        )  # fmt: skip

    def _error_rate(self, data: dict[str, Any]) -> None:
        wer = data.get("wer")
        if wer is None or not self.alarm_updates or data["update"] < self.alarm_updates:
            return
        self._tell(
            "error rate", wer > self.alarm_wer, data,
            f"the WER is {wer:.1%} after {data['update']:,} updates, above training.alarm_wer ({self.alarm_wer:.0%}): "
            "look at the samples. Empty or alike: the model does not train (learning rate, data). Words without sense: "
            "texts of other recordings, or another normaliser than the references'", wer=wer,
        )  # fmt: skip

    def _tell(self, name: str, found: bool, data: dict[str, Any], message: str, **measured: float) -> None:
        key = f"{name} {data.get('weights', '')}"
        if found and key not in self._told:
            self._told.add(key)
            weights = {"weights": data["weights"]} if "weights" in data else {}
            self.warn(message=message, detector=name, update=data["update"], **weights, **measured)
        elif not found:
            self._told.discard(key)
