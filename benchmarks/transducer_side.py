"""torchaudio's transducer loss with a joint network in PyTorch, for `benchmarks/transducer_loss.py`.

    .venv-reference/bin/python benchmarks/transducer_side.py '{"rows": 16, "frames": 375, …}'

Reads the fields of `Shape`, "repeats" and "threads" as JSON. Prints {"times_s", "growth_mb", "loss"}: seconds of loss
and gradients, and the growth of the process's memory during the calls.
"""

import json
import resource
import sys
import time

import torch
from torch import nn
from torchaudio.functional import rnnt_loss


def main() -> None:
    given = json.loads(sys.argv[1])
    torch.set_num_threads(given["threads"])
    torch.manual_seed(0)
    rows, num_frames, num_labels, vocabulary = (given[name] for name in ("rows", "frames", "labels", "vocabulary"))
    frames = torch.randn(rows, num_frames, given["encoder_dim"], requires_grad=True)
    labels = torch.randint(0, vocabulary - 1, (rows, num_labels), dtype=torch.int32)
    lengths = torch.full((rows,), num_frames, dtype=torch.int32)
    label_lengths = torch.full((rows,), num_labels, dtype=torch.int32)
    embedding = nn.Embedding(vocabulary, 512)
    of_frames, of_labels = nn.Linear(given["encoder_dim"], given["joint_dim"]), nn.Linear(512, given["joint_dim"])
    output = nn.Linear(given["joint_dim"], vocabulary)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times, loss = [], torch.zeros(())
    for _ in range(given["repeats"] + 1):
        started = time.perf_counter()
        history = torch.cat([torch.full((rows, 1), vocabulary - 1, dtype=torch.int32), labels], 1)
        hidden = of_frames(frames)[:, :, None] + of_labels(embedding(history))[:, None]
        logits = output(torch.relu(hidden))
        loss = rnnt_loss(logits, labels, lengths, label_lengths, blank=vocabulary - 1, reduction="sum")
        loss.backward()
        times.append(time.perf_counter() - started)
        del hidden, logits
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"times_s": times[1:], "growth_mb": grown / 1e3, "loss": float(loss)}))


if __name__ == "__main__":
    main()
