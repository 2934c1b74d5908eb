"""Costs of many devices, computed from formulae: `python -m benchmarks.scale [--json OUT] [--plans 1000000 …]`.

For each config of `compiled_programs.json` and each system of `SYSTEMS`: bytes that a device sends per update, their
time from published bandwidths, and the batch below which this time exceeds that of the products and memory. Nothing of
this is run. With --plans, the plans of many processes are measured, one at a time, each in a process of its own;
without it, those of the JSON are kept. docs/scale.md explains the formulae.
"""

import argparse
import functools
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr_jax.cli.command_line import load_config
from asr_jax.core.layout import Layout
from asr_jax.core.targets import ACCELERATORS, Accelerator
from asr_jax.data.batching.batch_plan import BatchPlan, local_rows
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.buckets import Entries, make_buckets
from asr_jax.observe.tables import print_table
from benchmarks import made_up
from benchmarks.any_size import SCALE, Timed, begin, in_process, resident

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
BYTES = 4
"""Bytes of a parameter, and of its gradient: float32."""
BACKWARD = 2 / 3
"""Share of the backward pass in the time of a gradient: a product in the forward pass has two in the backward pass."""
BATCH_S = 240.0
"""Padded audio of a device's part of a batch in seconds, in the measured plans."""
PROCESSES = (1, 8, 64, 512)
MEAN_S = 960 * 3600 / 281_241
"""Mean duration of LibriSpeech's utterances in seconds. A device computes at least one utterance."""


@dataclass(frozen=True)
class System:
    """Devices that are connected with each other."""

    accelerator: str
    """Name in `ACCELERATORS`, which has the bandwidth of a device within its machine or slice."""
    num_devices: int
    per_machine: int
    """Devices of a machine, or of a TPU slice, which ICI connects."""
    adapter_gb_per_s: float = math.inf
    """Bandwidth of the network adapter of each device in 10⁹ bytes per second, in one direction."""

    @property
    def device(self) -> Accelerator:
        return ACCELERATORS[self.accelerator]

    @property
    def ring_gb_per_s(self) -> float:
        """Bandwidth of a ring through all devices in 10⁹ bytes per second.

        It enters and leaves each machine once. As many rings as adapters share the data, so that all adapters work.
        """
        network = math.inf if self.num_devices <= self.per_machine else self.per_machine * self.adapter_gb_per_s
        return min(self.device.link_gb_per_s, network)


SYSTEMS = {
    **{f"{n} × H100": System("h100", n, 8, 50) for n in (8, 64, 512)},
    **{f"{n} × A100": System("a100", n, 8, 25) for n in (8, 64, 512)},
    "v5e-256": System("v5e", 256, 256),
}
SOURCES = {
    "NVLink of H100 and A100, 900 and 600 GB/s in both directions": "https://www.nvidia.com/en-us/data-center/nvlink/",
    "DGX H100, eight adapters of 400 Gb/s": "https://docs.nvidia.com/dgx/dgxh100-user-guide/introduction-to-dgxh100.html",
    "DGX A100, eight adapters of 200 Gb/s": "https://docs.nvidia.com/dgx/dgxa100-user-guide/introduction-to-dgxa100.html",
    "v5e, 400 GB/s in both directions, 51.2 TB/s per pod": "https://docs.cloud.google.com/tpu/docs/v5e",
}


def all_reduce_bytes(parameters: float, num_devices: int) -> float:
    """Bytes that a device sends in a ring all-reduce of the gradient: a reduce-scatter and an all-gather."""
    return 2 * (num_devices - 1) / num_devices * BYTES * parameters


def fsdp_bytes(parameters: float, num_devices: int) -> float:
    """Bytes that a device sends with sharded parameters.

    They are gathered for the forward and for the backward pass, and the gradient is reduced and scattered.
    """
    return 3 * (num_devices - 1) / num_devices * BYTES * parameters


def update_s(compute_s: float, communication_s: float, *, overlaps: bool) -> float:
    """Seconds of an update.

    Args:
        compute_s: Time of the gradient.
        communication_s: Time of the all-reduce.
        overlaps: Whether the all-reduce runs during the backward pass. Otherwise it follows it.
    """
    if not overlaps:
        return compute_s + communication_s
    return (1 - BACKWARD) * compute_s + max(BACKWARD * compute_s, communication_s)


def least_batch_s(communication_s: float, compute_s_per_audio_s: float, num_devices: int) -> float:
    """Audio seconds of an update on all devices below which communication takes longer than the gradient.

    Args:
        communication_s: Time of the all-reduce.
        compute_s_per_audio_s: Time of a device for the gradient of a second of audio.
        num_devices: Number of devices.
    """
    return num_devices * communication_s / compute_s_per_audio_s


def compute_s_per_audio_s(gradient: dict[str, Any], device: Accelerator) -> float:
    """Least time of a device for the gradient of a second of audio: that of the products, or of the memory."""
    seconds = max(gradient["TFLOP"] / device.peak_tflops, gradient["GB moved"] / device.memory_gb_per_s)
    return seconds / gradient["audio_s"]


def on_system(config: str, gradient: dict[str, Any], name: str) -> dict[str, Any]:
    """Figures of a config on a system.

    Args:
        config: Name of the config.
        gradient: Row of its gradient in `compiled_programs.json`.
        name: Name in `SYSTEMS`.
    """
    system, parameters, batch_s = SYSTEMS[name], parameters_of(gradient), batch_s_of(config)
    num, device = system.num_devices, system.device
    reduced, sharded = all_reduce_bytes(parameters, num), fsdp_bytes(parameters, num)
    communication_s = reduced / (1e9 * system.ring_gb_per_s)
    per_audio_s = compute_s_per_audio_s(gradient, device)
    compute_s = per_audio_s * max(batch_s / num, MEAN_S)
    least = least_batch_s(communication_s, per_audio_s, num)
    return {
        "config": config, "system": name, "parameters": parameters, "all_reduce_bytes": reduced,
        "fsdp_bytes": sharded, "all_reduce_ms": 1e3 * communication_s,
        "fsdp_ms": sharded / (1e6 * system.ring_gb_per_s), "least_batch_s": least,
        "least_batch_overlapped_s": least / BACKWARD, "batch_s": batch_s, "gradient_ms": 1e3 * compute_s,
        "update_ms": 1e3 * update_s(compute_s, communication_s, overlaps=False),
        "update_overlapped_ms": 1e3 * update_s(compute_s, communication_s, overlaps=True),
    }  # fmt: skip


def parameters_of(gradient: dict[str, Any]) -> float:
    """Number of trained parameters: the program of one device returns their gradients, and little else."""
    return gradient["outputs GB"] * 1e9 / BYTES


@functools.cache
def batch_s_of(config: str) -> float:
    """Audio seconds of an update of a config, over all devices. Utterances of a budget have LibriSpeech's mean."""
    experiment = load_config(str(ROOT / f"configs/{config}.py"))
    batching, of_unit = experiment.data.batching, {"utterances": MEAN_S, "padded-seconds": 1.0}
    if batching.unit not in of_unit:
        raise ValueError(f"configs/{config}.py: data.batching.unit is {batching.unit}: expected {' or '.join(of_unit)}")
    return batching.budget * of_unit[batching.unit] * experiment.training.accumulate


def gradients() -> dict[str, dict[str, Any]]:
    """Gradient of one device for an H100 of each config, by its name. Products do not depend on the target."""
    rows = json.loads((RESULTS / "compiled_programs.json").read_text())
    return {
        each["config"]: each
        for each in sorted(rows, key=lambda each: each["config"])
        if each.get("program") == "gradient" and (each["target"], each["devices"]) == ("h100", 1)
    }


def plan_of_process(num: int, num_processes: int) -> dict[str, Any]:
    """Seconds and bytes of the plan of one of many processes, each with one device, and of its rows of two batches.

    Args:
        num: Number of utterances.
        num_processes: Number of processes.
    """
    lengths = made_up.lengths(num)
    labels = made_up.num_labels(lengths)
    settings = Batching.planned(
        num_buckets=12, seconds=BATCH_S * num_processes, max_rows=512 * num_processes, row_multiple=num_processes
    )
    layout = Layout(num_devices=num_processes, process_index=num_processes // 2, num_processes=num_processes)
    made, base = Timed(), begin()
    with made("plan"):
        entries = Entries(lengths, labels, SCALE)
        plan = BatchPlan(entries, make_buckets(entries, settings))
    with made("first"):
        local_rows(plan[0], layout)
    with made("next"):
        rows = local_rows(plan[1], layout).rows
    inputs = lengths.nbytes + labels.nbytes
    peak = resident("VmHWM") - resident("RssFile") - base + inputs
    return {
        "utterances": num, "processes": num_processes, "batches": plan.batches_per_epoch, "rows": len(rows),
        "resident_bytes": resident() - base + inputs, "peak_bytes": peak, **made.seconds,
    }  # fmt: skip


def host_memory(utterances: int = 10_000_000) -> list[dict[str, Any]]:
    """Bytes of index and plan on a machine of eight devices at a later start, from `any_size.json`.

    A process has its own plan; the index is in mapped files, which the processes of a machine share.
    """
    sizes = json.loads((RESULTS / "any_size.json").read_text())["manifests"]
    found = next(each["second"] for each in sizes if (each["records"], each["format"]) == (utterances, "parquet"))
    own, mapped, peak = (utterances * found[name] for name in ("own_bytes", "mapped_bytes", "peak_bytes"))
    return [
        {
            "utterances": utterances, "processes": each, "own_bytes": each * own, "mapped_bytes": mapped,
            "peak_bytes": each * peak + mapped,
        }
        for each in (1, 8)
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, nargs="+", help="numbers of utterances of the measured plans")
    parser.add_argument("--json", type=Path, default=RESULTS / "scale.json")
    given = parser.parse_args()
    found: dict[str, Any] = json.loads(given.json.read_text()) if given.json.exists() else {}
    found |= {"sources": SOURCES, "memory": host_memory()}
    found["rings"] = [
        {"system": name, "ring_gb_per_s": system.ring_gb_per_s, **vars(system.device)}
        for name, system in SYSTEMS.items()
    ]
    found["systems"] = [on_system(config, of, name) for config, of in gradients().items() for name in SYSTEMS]
    if given.plans:
        found["plans"] = [in_process(plan_of_process, num, processes) for num in given.plans for processes in PROCESSES]
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(found, indent=1) + "\n")
    for name in ("rings", "systems", "plans", "memory"):
        print_table(found.get(name, []), title=name)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
