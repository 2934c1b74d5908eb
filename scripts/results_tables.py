"""Writes the tables of docs/results.md, docs/scale.md and docs/failures.md: `python scripts/results_tables.py`.

The figures come from benchmarks/results. Each table is between two comments, `<!-- table: NAME -->` and
`<!-- end -->`. `tests/scripts/test_results_tables.py` fails if a page differs from what this script writes.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from asr_jax.core.targets import ACCELERATORS, Accelerator

ROOT = Path(__file__).resolve().parent.parent
PAGES = tuple(ROOT / "docs" / f"{name}.md" for name in ("results", "scale", "failures"))
RESULTS = ROOT / "benchmarks/results"
MODELS = {
    "quartznet_10x5": "QuartzNet 10x5", "zipformer_s": "Zipformer-S", "fastconformer_6x512": "FastConformer, 6 × 512",
    "squeezeformer_s": "Squeezeformer-S", "wav2vec2_base_pretraining": "wav2vec 2.0 Base, pre-training",
    "wav2vec2_hourglass_pretraining": "the same with Hourglass [2,(8,4),2]",
    "wav2vec2_base_ctc": "wav2vec 2.0 Base, CTC", "w2v_bert_small": "W2V-BERT, 12 × 512",
}  # fmt: skip


def table(header: str, rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown."""
    names = header.split(" | ")
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def steps() -> str:
    """Milliseconds of a training step beside the original's; ratios by medians and by the fastest repeats."""
    rows = []
    for name, model in MODELS.items():
        found = read(f"model_{name}_cpu")
        ours, theirs = found["times_s"], found["peer"]
        pairs = [(ours["forward"], theirs["forward_s"]), (ours["step"], theirs["step_s"])]
        shown = [f"{1000 * median(a):,.0f} / {1000 * median(b):,.0f}" for a, b in pairs]
        step, peer_step = pairs[1]
        ratios = [f"{median(peer_step) / median(step):.2f}", f"{min(peer_step) / min(step):.2f}"]
        rows.append([model, theirs["name"], *shown, *ratios, f"{found['load'][0]:.1f}"])
    return table("model | original | forward, ms | step, ms | ratio of medians | ratio of fastest | load", rows)


def remat() -> str:
    rows = [
        [each["remat"], f"{each['bytes'] / 1e6:,.0f}", f"{each['ms']:,.0f}", f"{each['time_ratio']:.2f}"]
        for each in read("remat_cpu")
    ]
    return table("`model.encoder.remat` | memory, MB | gradient, ms | time relative to none", rows)


def hourglass() -> str:
    def row(each: dict[str, Any]) -> list[str]:
        shares = [each["faster"], each["published_faster"], each["memory_share"], each["published_memory_share"]]
        faster, theirs, memory, their_memory = shares
        return [
            each["factor"], f"{each['step_ms']:,}", f"{faster:.2f}", f"{theirs:.2f}" if theirs else "",
            f"{memory:.0%}", f"{their_memory:.0%}" if their_memory else "",
        ]  # fmt: skip

    header = (
        "factor | step, ms | speed relative to no Hourglass | NVIDIA's, A100 | memory relative to no Hourglass | "
        "NVIDIA's, A100"
    )
    return table(header, map(row, read("hourglass_cpu")["rows"]))


def inference() -> str:
    """Mean milliseconds of a batch, from audio in the host's memory to texts."""
    rows = []
    for name, model in (("read_speech", "Zipformer, 3.4 M"), ("quartznet_5x5", "QuartzNet 5x5, 6.7 M")):
        found = read(f"inference_{name}_cpu")
        for each in found["batches"]:
            if each["batch"] in (1, 16):
                ms, size = each["ms"]["all"]["mean"], f"{each['batch']} × {each['seconds']:g} s"
                rows.append([model, size, f"{ms:,.0f}", f"{each['rtfx']:,.0f}", f"{found['machine']['load']:.1f}"])
    return table("model | batch | mean, ms | × real time | load", rows)


def training() -> str:
    rows = []
    for name, model in (("quartznet_tiny", "QuartzNet, 0.9 M"), ("zipformer_tiny", "Zipformer, 1.1 M")):
        for each in read(f"train_{name}_cpu")["cases"]:
            update_s = mean(each["update_s"])
            rows.append(
                [model, each["devices"], each["accumulation"], f"{update_s:.2f}", f"{each['audio_s_per_s']:,.0f}"]
            )
    return table("model | virtual devices | accumulation | s an update | audio-seconds per second", rows)


def front_ends() -> str:
    found = read("frontend_cpu")
    audio_s = found["rows"] * found["seconds"]
    times = sorted(found["times_s"].items(), key=lambda item: item[1])
    return table("front-end | × real time", [[name, f"{audio_s / seconds:,.0f}"] for name, seconds in times])


def data() -> str:
    found, race = read("data_benchmark"), read("data_race_lhotse")["plan"]
    start, by_reader = found["start"], found["reading"]["per_s"]["to_bare"]
    shapes = {each["shapes"]: each["efficiency"] for each in found["padding"]}
    ours, theirs = race["asr_jax"], race["lhotse"]
    millions = start["utterances"] / 1e6
    return table(
        "measurement | value",
        [
            ["speed of reading FLAC into batches in two threads, relative to `soundfile.read` in two processes",
             f"{by_reader['threads']:.0%}"],
            ["the same in two worker processes", f"{by_reader['workers']:.0%}"],
            [f"start with {millions:g} million utterances, the first time", f"{start['first_s']['in all']:.1f} s"],
            ["the same, the second time", f"{start['second_s']['in all']:.1f} s"],
            [f"first batch at a far position of {found['resume']['utterances'] / 1e6:g} million utterances",
             f"{found['resume']['far_s']:.2f} s"],
            ["resident memory per utterance, without mapped files",
             f"{start['bytes']['resident, beside files']:.0f} bytes"],
            *([f"padding in {num} shapes, LibriSpeech's durations", f"{1 - share:.1%}"]
              for num, share in shapes.items()),
            [f"padding in {ours['shapes']} shapes, and in lhotse's {theirs['shapes']}, in one run",
             f"{ours['padding']:.1%} / {theirs['padding']:.1%}"],
            ["plan of an epoch, and lhotse's, in one run", f"{ours['epoch_s']:.1f} s / {theirs['epoch_s']:.1f} s"],
        ],
    )  # fmt: skip


def searches() -> str:
    found = read("race_pyctcdecode")
    rows = [
        [_named(name), f"{each['frames_per_s']['asr_jax']:,.0f}", f"{each['frames_per_s']['pyctcdecode']:,.0f}",
         f"{each['times_as_fast']:.1f}", f"{each['equal_lists']} of {each['lists']}"]
        for name, each in found.items() if isinstance(each, dict) and "times_as_fast" in each
    ]  # fmt: skip
    return table("search | frames a second | pyctcdecode's | ratio | equal n-best lists", rows)


def _named(search: str) -> str:
    """Returns the name of a search with its emissions, which the measurements call sure and unsure."""
    name, _, emissions = search.partition(", ")
    return f"{name}, {'peaked' if emissions == 'sure' else 'flat'} emissions"


def transducer_searches() -> str:
    """Seconds of a search on the device, and how much longer loops take, by wall-clock and by processor time."""
    found, rows = read("transducer_search_cpu"), []
    names = {
        "greedy": "greedy, device",
        "greedy, of rows together": "greedy, device",
        "beam": "beam, one label, device",
    }
    for each in found["batches"]:
        for name, ours in names.items():
            faster, times = each["times_as_fast"][name], each["times"][ours]
            loop = "all rows at a time" if "together" in name else "row by row"
            rows.append([
                each["rows"], name.partition(",")[0], loop, f"{times['s']:.2f} / {times['cpu_s']:.2f}",
                f"{faster['s']:.1f} / {faster['cpu_s']:.1f}", f"{max(found['load']):.1f}",
            ])  # fmt: skip
    return table("rows | search | loop | s, wall / CPU | times as fast, wall / CPU | load", rows)


def scoring() -> str:
    found = read("race_jiwer")
    rows = [
        [what, f"{found[what]['cpu_ms']['asr_jax']:.1f}", f"{found[what]['cpu_ms']['jiwer']:.1f}",
         f"{found[what]['times_as_fast']:.1f}"]
        for what in ("words", "characters")
    ]  # fmt: skip
    return table(f"edits of {found['utterances']:,} utterances | ms of CPU | jiwer's | ratio", rows)


def fine_tuning() -> str:
    runs = read("learning_wav2vec2_tiny")["finetuning"]["runs"]
    last = [(each["begins"], each["seed"], each["validation"][-1]) for each in runs]
    rows = [[begins, seed, f"{end['ctc_loss']:.2f}", f"{end['cer']:.1%}"] for begins, seed, end in last]
    for begins in ("pre-trained", "random"):
        ends = [end for kind, _, end in last if kind == begins]
        rows.append([begins, "mean", f"{mean(end['ctc_loss'] for end in ends):.2f}",
                     f"{mean(end['cer'] for end in ends):.1%}"])  # fmt: skip
    return table("initial weights | seed | validation CTC loss | CER", rows)


def smoke_runs() -> str:
    rows = [
        [f"`{each['config']}.py`", each["variant"], f"{each['processor_s']:.0f}", f"{each['wall_s']:.0f}",
         f"{each['load_before']:.0f} to {each['load_after']:.0f}"]
        for each in read("smoke_runs_cpu")
    ]  # fmt: skip
    return table("config | variant | processor time, s | wall time, s | load", rows)


def transducer_memory() -> str:
    """Megabytes of XLA's program for the joint network and its loss with gradients, and shares of the plain loss."""
    found = read("transducer_memory_cpu")["joint"]
    megabytes = {(each["variant"], each["shape"]): each["temporary_mb"] for each in found}
    rows = []
    for variant in dict.fromkeys(each["variant"] for each in found):
        of = [megabytes[variant, shape] for shape in ("small", "base")]
        plain = [megabytes["plain", shape] for shape in ("small", "base")]
        rows.append([variant, *(f"{a:,.0f} (1/{b / a:,.0f})" for a, b in zip(of, plain, strict=True))])
    return table("loss | vocabulary 1,024, MB | vocabulary 8,704, MB", rows)


def transducer_step() -> str:
    """Processor time of a step with gradients, and the share of the joint network with its loss."""
    found = read("transducer_step_cpu")
    rows = [
        [each["name"], each["vocab_size"], f"{each['rows']} x {each['seconds']:g} s", each["labels"],
         f"{each['cpu_s']['step']:.2f}", f"{each['share']:.1%}", f"{max(found['load']):.0f}"]
        for each in found["cases"]
    ]  # fmt: skip
    return table("model | vocabulary | batch | labels | step, s of CPU | joint and loss | load", rows)


def transducer_loss() -> str:
    """Fastest call of the joint network and its loss with gradients, and torchaudio's time divided by it."""
    times: dict[str, dict[str, float]] = {"small": {}, "base, 2 rows": {}}
    for each in read("transducer_loss_cpu")["joint"]:
        if each["times_s"] and each["shape"] in times:
            times[each["shape"]][each["variant"]] = min(each["times_s"])
    rows = [
        [
            loss,
            *(f"{of[loss]:.2f} ({of['torchaudio'] / of[loss]:.1f} ×)" if loss in of else "" for of in times.values()),
        ]
        for loss in times["small"]
    ]
    return table("loss | vocabulary 1,024, 16 rows, s | vocabulary 8,704, 2 rows, s", rows)


def paraformer() -> str:
    """Error rates on read speech by model and head, and the time of the model's step relative to that of CTC alone."""
    ratios = {each["model"]: each["ratio"] for each in read("head_steps_cpu")["models"]}
    rows = [
        [
            f"`{each['model']}`", f"{each['head']}, {each['decoding']}", f"{each['parameters'] / 1e6:.2f} M",
            f"{each['wer']:.1%}",
            *(f"{each[name] / each['words']:.1%}" for name in ("substitutions", "deletions", "insertions")),
            f"{each['cer']:.1%}", f"{ratios[each['model']]:.2f} ×", f"{each['rtfx']:,.0f}" if "rtfx" in each else "",
        ]
        for each in read("paraformer_read_speech")
    ]  # fmt: skip
    header = "model | head | parameters | test WER | substitutions | deletions | insertions | CER | step | × real time"
    return table(header, rows)


def compiled_programs() -> str:
    """Memory, bytes, products and compilation of each config's largest batch and its update on a target."""
    rows = []
    for config, target, gradient, update in _compiled():
        name, quick = f"`{config}`", ", quick" * gradient["quick"]
        if update is None:
            rows.append([name, f"{target}{quick}", gradient.get("failure", ""), *[""] * 6])
            continue
        audio_s, compile_s = gradient["audio_s"], gradient["compile s"] + update["compile s"]
        split = gradient.get("split", 1)
        parts = f"{split} × " if split > 1 else ""
        rows.append([
            name, f"{target}{quick}", f"{parts}{gradient['rows']} × {gradient['seconds']:.1f} s", f"{compile_s:.0f}",
            f"{gradient['memory GB']:.1f} ({gradient['of memory']})", f"{1e3 * gradient['GB moved'] / audio_s:,.0f}",
            f"{1e3 * gradient['TFLOP'] / audio_s:,.1f}", gradient["limit"],
            f"{1e3 * audio_s / (gradient['least ms'] + update['least ms'] / split):,.0f}",
        ])  # fmt: skip
    header = (
        "config | target | batch of a device | compilation, s of CPU | memory, GB | MB per audio second | GFLOP per "
        "audio second | limit | audio-hours per hour"
    )
    return table(header, rows)


def roofline() -> str:
    """Estimated audio-hours per hour of devices, beside published figures of other systems."""
    limits: dict[str, dict[str, float]] = {}
    for config, target, gradient, update in _compiled():
        for kind in OF_TARGET.get(target, ()) if update else ():
            limits.setdefault(config, {})[kind] = _hours_per_hour(gradient, update, ACCELERATORS[kind])
    rows = []
    for config, of in limits.items():
        published = [each for each in PUBLISHED.get(config, ()) if each[1] in of]
        rows.append([
            f"`{config}`", *(f"{of[kind]:,.0f}" if kind in of else "" for kind in DEVICES),
            "; ".join(f"{name}: {value:,} ({value / of[kind]:.0%})" for name, kind, value in published),
        ])  # fmt: skip
    return table("config | H100 | H200 | A100 | v5e | v6e | published, per device (share of the estimate)", rows)


def kernel_registers() -> str:
    """Resources of Triton's kernels on an A100 and an H100."""
    found: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}
    for each in read("kernel_resources"):
        if "registers" in each:
            key = each["operation"], each["dtype"], each["kernel"]
            found.setdefault(key, {})[each["target"]] = each
    rows = [
        [operation, dtype, f"`{kernel}`", *(
            " / ".join(shown(of[target]) if target in of else "" for target in ("a100", "h100"))
            for shown in (
                lambda row: str(row["registers"]), lambda row: f"{row['shared_bytes'] / 1024:.0f}",
                lambda row: str(row["spilled_bytes"]),
            )
        )]
        for (operation, dtype, kernel), of in found.items()
    ]  # fmt: skip
    header = "operation | dtype | kernel | registers of a thread, A100 / H100 | shared memory, KiB | spilled, bytes"
    return table(header, rows)


def kernel_vmem() -> str:
    """VMEM of Mosaic's kernels on a v5e."""
    rows = [
        [each["operation"], each["dtype"], f"`{each['kernel']}`",
         *(f"{each[part] / 2**20:.1f}" for part in ("scoped_bytes", "array_bytes"))]
        for each in read("kernel_resources") if "scoped_bytes" in each
    ]  # fmt: skip
    return table("operation | dtype | kernel | blocks and temporary values, MiB of VMEM | whole arrays, MiB", rows)


COLD_START = (
    "imports", "trace initial parameters", "compile initial parameters", "trace gradient", "compile gradient",
    "trace update", "compile update", "total",
)  # fmt: skip
"""Phases of a cold start."""


def cold_start() -> str:
    """Processor time of the phases of a cold start, in seconds."""
    rows = [
        [f"`{each['config']}.py`", f"{each['parameters M']:.1f}",
         *(f"{each[f'{phase} s']:.1f}" for phase in COLD_START)]
        for each in read("cold_start_cpu")
    ]  # fmt: skip
    return table(f"config | parameters, M | {' | '.join(COLD_START)}", rows)


def sharded_memory() -> str:
    """Memory of a device by model and mesh, in GB."""
    rows = [
        [each["model"], each["parameters M"], f"`--mesh.{each['mesh']}`",
         *(f"{each[part]:.1f}" for part in ("state GB", "gradient GB", "update GB"))]
        for each in read("sharded_memory")
    ]  # fmt: skip
    of_parts = "state, averages and gradients, GB | in the gradient of a batch, GB | in the update, GB"
    return table(f"model | parameters, M | mesh | {of_parts}", rows)


DEVICES = ("h100", "h200", "a100", "v5e", "v6e")
OF_TARGET = {"h100": ("h100", "h200", "a100"), "v5e": ("v5e", "v6e")}
"""Devices whose limits are computed from the programs for a target."""
PUBLISHED = {
    "quartznet_librispeech": [("NVIDIA QuartzNet 15x5, A100", "a100", 1498)],
    "rnnt_base": [("CAIMAN-ASR base, A100", "a100", 2900)],
    "rnnt_large": [("CAIMAN-ASR large, A100", "a100", 1460)],
    "wav2vec2_pretrain": [("NVIDIA wav2vec 2.0 Base with Hourglass, A100", "a100", 1535)],
    "wav2vec2_finetune": [("NVIDIA wav2vec 2.0 Base, A100", "a100", 2886)],
}
"""Audio-hours per hour of one device that others publish, by config: system, device and figure."""


def _compiled() -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any] | None]]:
    """Yields config, target, and the figures of the gradient and of the update, or the reason why there are none."""
    found: dict[tuple[str, str, bool], dict[str, dict[str, Any]]] = {}
    for each in read("compiled_programs"):
        found.setdefault((each["config"], each["target"], each["quick"]), {})[each.get("program", "failure")] = each
    for (config, target, quick), programs in sorted(found.items()):
        complete = "update" in programs and "✗" not in programs["gradient"].get("of memory", "✗")
        gradient = (
            programs["gradient"] if complete else programs.get("failure", {"quick": quick, "failure": "too large"})
        )
        yield config, target, gradient, programs["update"] if complete else None


def _hours_per_hour(gradient: dict[str, Any], update: dict[str, Any], device: Accelerator) -> float:
    of_part, of_update = (
        max(each["TFLOP"] / device.peak_tflops, each["GB moved"] / device.memory_gb_per_s)
        for each in (gradient, update)
    )
    return gradient["audio_s"] / (of_part + of_update / gradient.get("split", 1))


def lstm() -> str:
    """Speed of the LSTM relative to `torch.nn.LSTM`, by shape."""
    rows = [
        [each["name"], *(each["shape"][size] for size in ("rows", "frames", "dim", "layers")),
         *(f"{each[part]['ratio_of_medians']:.2f}" for part in ("forward", "step"))]
        for each in read("lstm_cpu")
    ]  # fmt: skip
    return table("LSTM | rows | frames | width | layers | forward | step with gradients", rows)


def sampling_modes() -> str:
    """Figures of each mode and set; memory and speed only if the steps were measured (without --no-steps)."""
    found = read("sampling_modes")["rows"]
    shown: dict[str, tuple[str, Callable[[float], str]]] = {
        "padding_share": ("padding of T", "{:.1%}".format),
        "padding_u_share": ("of U", "{:.1%}".format),
        "batch_s": ("batch, s", "{:.1f}".format),
        "batch_utterances": ("utterances", "{:.1f}".format),
        "shapes": ("shapes", "{:,}".format),
        "us_per_batch": ("µs to plan a batch", "{:,.0f}".format),
        "memory_bytes": ("memory of the largest step, MB", lambda value: f"{value / 1e6:,.0f}"),
        "utterances_per_s": ("utterances a second", "{:.1f}".format),
    }
    names = [name for name in shown if any(name in each for each in found)]
    rows = [
        [each["set"], _in_code(each["mode"]), *(shown[name][1](each[name]) if name in each else "" for name in names)]
        for each in found
    ]
    return table(" | ".join(["set", "mode", *(shown[name][0] for name in names)]), rows)


def _in_code(mode: str) -> str:
    """Returns the name of a mode as code, and what follows it, or the peer's name, as text."""
    name, comma, rest = mode.partition(",")
    return mode if name == "lhotse" else f"`{name}`{comma}{rest}"


def scale_rings() -> str:
    """Bandwidth of a device within its machine, and of a ring through all devices."""
    return table(
        "system | within a machine or slice, GB/s | ring through all devices, GB/s",
        [
            [each["system"], f"{each['link_gb_per_s']:g}", f"{each['ring_gb_per_s']:g}"]
            for each in read("scale")["rings"]
        ],
    )


def scale_bytes() -> str:
    """Megabytes that a device sends per update, by number of devices."""
    systems = ("8 × H100", "64 × H100", "512 × H100")  # bytes depend on the number alone
    rows = [
        [f"`{config}`", f"{of[systems[0]]['parameters'] / 1e6:.1f}",
         *(f"{of[name][kind] / 1e6:,.0f}" for kind in ("all_reduce_bytes", "fsdp_bytes") for name in systems)]
        for config, of in _scaled().items()
    ]  # fmt: skip
    numbers = " | ".join(f"{kind}, {number}" for kind in ("all-reduce", "FSDP") for number in (8, 64, 512))
    return table(f"config | parameters, M | {numbers}", rows)


def scale_times() -> str:
    return _by_system("", lambda each: f"{each['all_reduce_ms']:.2f} / {each['fsdp_ms']:.2f}")


def scale_batches() -> str:
    """Least batches by system; bold if the config's own batch is smaller."""

    def cell(each: dict[str, Any]) -> str:
        bold = "**" if each["batch_s"] < each["least_batch_s"] else ""
        return f"{bold}{each['least_batch_s']:,.0f}{bold}"

    return _by_system("batch of the config, s", cell, lambda each: f"{each['batch_s']:,.0f}")


def scale_updates() -> str:
    names = ("gradient_ms", "update_ms", "update_overlapped_ms")
    return _by_system("", lambda each: " / ".join(f"{each[name]:,.1f}" for name in names))


def scale_memory() -> str:
    rows = [
        [each["processes"], *(f"{each[name] / 1e6:,.0f}" for name in ("own_bytes", "mapped_bytes", "peak_bytes"))]
        for each in read("scale")["memory"]
    ]
    return table("processes of a machine | own, MB | mapped files, shared, MB | at most during the start, MB", rows)


def scale_plans() -> str:
    """Processor time and memory of a process's plan, and of its rows of the first batch."""
    rows = [
        [f"{each['utterances'] / 1e6:g} M", each["processes"], f"{each['batches']:,}", each["rows"],
         f"{each['plan cpu']:.2f}", f"{each['first cpu']:.2f}", f"{each['resident_bytes'] / 1e6:,.0f}",
         f"{each['peak_bytes'] / 1e6:,.0f}"]
        for each in read("scale")["plans"]
    ]  # fmt: skip
    header = "utterances | processes | batches of an epoch | rows of a process | plan, s of CPU | first batch, s of CPU"
    return table(f"{header} | resident, MB | at most, MB", rows)


def _by_system(
    header: str, cell: Callable[[dict[str, Any]], str], first: Callable[[dict[str, Any]], str] | None = None
) -> str:
    """A row per config and a column per system, after an optional column of the config."""
    found = _scaled()
    systems = list(next(iter(found.values())))
    rows = [
        [f"`{config}`", *([first(of[systems[0]])] if first else []), *(cell(of[name]) for name in systems)]
        for config, of in found.items()
    ]
    return table(" | ".join(["config", *([header] if first else []), *systems]), rows)


def _scaled() -> dict[str, dict[str, dict[str, Any]]]:
    """Figures by config and system."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for each in read("scale")["systems"]:
        found.setdefault(each["config"], {})[each["system"]] = each
    return found


FAULTS = {
    "process 1 killed": ("process 1 killed (`kill -9`)", "process 0 names it and ends"),
    "process 0 killed": ("process 0 killed", "process 1 names process 0, which coordinates the run, and ends"),
    "process 1 stopped": ("process 1 hangs (SIGSTOP)", "process 0 names it and ends"),
    "process 0 stopped": ("process 0 hangs", "process 1 names it and ends"),
    "SIGTERM to process 1": ("SIGTERM to process 1 alone", "both save together and end"),
    "network cut, 5 s": ("network cut for 5 s, 45 s until a process is lost", "both wait and go on"),
    "network cut, 120 s": ("network cut for 120 s, 45 s until a process is lost", "each names the other and ends"),
    "shared file system full": ("shared file system full", "both end with the reason"),
    "shared file system read-only": ("shared file system read-only after an error", "both end with the reason"),
    "process 1 cannot write": ("process 1 alone cannot write its part of a checkpoint", "both end with the reason"),
    "shared file system stands still, 5 s": ("shared file system stands still for 5 s", "both wait and go on"),
    "shared file system stands still, 30 s": ("shared file system stands still for 30 s", "both wait and go on"),
    "checkpoints moved away": ("folder of checkpoints moved away", "later ones are written to a new folder"),
    "other code": ("process 1 has other code", "both are refused before the first update"),
    "other library": ("process 1 has another version of Flax", "both are refused before the first update"),
    "process 1 loads slowly": ("process 1 opens each file 0.3 s later", "the log and the health report name it"),
    "flipped byte": ("a flipped byte in an array's file of a checkpoint", "it is refused, the one before is used"),
}  # fmt: skip


def faults() -> str:
    """Runs with a fault; the seconds are those until all have ended, or have gone on after it."""
    found, rows = read("faults"), []
    for kind, (fault, effect) in FAULTS.items():
        runs = [each for each in found if each["fault"] == kind]
        if not runs:
            continue
        seconds = sorted(each["seconds"] for each in runs)
        shown = f"{seconds[0]}" if seconds[0] == seconds[-1] else f"{seconds[0]} to {seconds[-1]}"
        codes = sorted({"134 (signal 6)" if each["code"] == -6 else str(each["code"]) for each in runs})
        code = ", ".join(codes).replace("None", "")
        rows.append([fault, effect, len(runs), shown if seconds[-1] else "", code])
    rows.append(["all", "", len(found), "", ""])
    return table("fault | what the processes do | runs | seconds | exit code", rows)


TABLES: dict[str, Callable[[], str]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        steps, remat, hourglass, inference, training, smoke_runs, cold_start, front_ends, data, searches,
        transducer_searches, transducer_memory, transducer_loss, transducer_step, paraformer, lstm, scoring,
        fine_tuning, sampling_modes, compiled_programs, roofline, kernel_registers, kernel_vmem, sharded_memory,
        scale_rings, scale_bytes, scale_times, scale_batches, scale_updates, scale_memory, scale_plans, faults,
    )
}  # fmt: skip


def written(page: str) -> str:
    """The page with all tables replaced."""
    pattern = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page.read_text()))
