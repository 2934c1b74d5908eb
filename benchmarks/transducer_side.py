"""Transducer losses of other projects with a joint network in PyTorch, for `benchmarks/transducer_loss.py`.

    .venv-reference/bin/python benchmarks/transducer_side.py '{"loss": "torchaudio", "rows": 16, "frames": 375, …}'

Reads "loss" (a key of LOSSES, or PRUNED), the fields of `Shape`, "repeats" and "threads" as JSON. Prints {"times_s",
"loss"}: seconds of loss and gradients, and the value.
"""

import json
import sys
import time
from collections.abc import Callable

import torch
from torch import nn


def of_torchaudio(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    from torchaudio.functional import rnnt_loss

    rows, num_frames, num_labels = len(labels), logits.shape[1], labels.shape[1]
    lengths, label_lengths = (torch.full((rows,), number, dtype=torch.int32) for number in (num_frames, num_labels))
    return rnnt_loss(logits, labels, lengths, label_lengths, blank=logits.shape[-1] - 1, reduction="sum")


def of_fast_rnnt(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    from fast_rnnt import rnnt_loss

    return rnnt_loss(logits, labels.long(), termination_symbol=logits.shape[-1] - 1, reduction="sum")


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "torchaudio": of_torchaudio,
    "fast_rnnt": of_fast_rnnt,
}
PRUNED = "fast_rnnt, pruned"


class Joint(nn.Module):
    """Joint network with the projections of the simple loss, as in the recipes of icefall."""

    def __init__(self, given: dict) -> None:
        super().__init__()
        vocabulary, joint_dim = given["vocabulary"], given["joint_dim"]
        self.embedding = nn.Embedding(vocabulary, 512)
        self.of_frames, self.of_labels = nn.Linear(given["encoder_dim"], joint_dim), nn.Linear(512, joint_dim)
        self.output = nn.Linear(joint_dim, vocabulary)
        self.simple_frames, self.simple_labels = nn.Linear(given["encoder_dim"], vocabulary), nn.Linear(512, vocabulary)

    def forward(self, name: str, frames: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        blank = self.output.out_features - 1
        embedded = self.embedding(torch.cat([torch.full((len(labels), 1), blank, dtype=torch.int32), labels], 1))
        if name == PRUNED:
            return self.pruned(frames, embedded, labels.long(), blank)
        hidden = self.of_frames(frames)[:, :, None] + self.of_labels(embedded)[:, None]
        return LOSSES[name](self.output(torch.relu(hidden)), labels)

    def pruned(self, frames: torch.Tensor, embedded: torch.Tensor, labels: torch.Tensor, blank: int) -> torch.Tensor:
        import fast_rnnt

        boundary = torch.zeros(len(labels), 4, dtype=torch.int64)
        boundary[:, 2], boundary[:, 3] = labels.shape[1], frames.shape[1]
        simple, gradients = fast_rnnt.rnnt_loss_smoothed(
            lm=self.simple_labels(embedded), am=self.simple_frames(frames), symbols=labels, termination_symbol=blank,
            lm_only_scale=0.25, am_only_scale=0.0, boundary=boundary, reduction="sum", return_grad=True,
        )  # fmt: skip
        ranges = fast_rnnt.get_rnnt_prune_ranges(*gradients, boundary=boundary, s_range=5)
        of_frames, of_labels = fast_rnnt.do_rnnt_pruning(self.of_frames(frames), self.of_labels(embedded), ranges)
        logits = self.output(torch.relu(of_frames + of_labels))
        pruned = fast_rnnt.rnnt_loss_pruned(
            logits=logits, symbols=labels, ranges=ranges, termination_symbol=blank, boundary=boundary, reduction="sum"
        )
        return simple + pruned


def main() -> None:
    given = json.loads(sys.argv[1])
    torch.set_num_threads(given["threads"])
    torch.manual_seed(0)
    rows, num_frames, num_labels = (given[name] for name in ("rows", "frames", "labels"))
    frames = torch.randn(rows, num_frames, given["encoder_dim"], requires_grad=True)
    labels = torch.randint(0, given["vocabulary"] - 1, (rows, num_labels), dtype=torch.int32)
    joint, times, value = Joint(given), [], 0.0
    for _ in range(given["repeats"] + 1):
        started = time.perf_counter()
        loss = joint(given["loss"], frames, labels)
        loss.backward()
        times.append(time.perf_counter() - started)
        value = loss.item()
        del loss
    print(json.dumps({"times_s": times[1:], "loss": value}))


if __name__ == "__main__":
    main()
