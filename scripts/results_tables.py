"""Writes the tables of the pages `PAGES` in docs: `python scripts/results_tables.py`.

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
PAGES = tuple(ROOT / "docs" / f"{name}.md" for name in ("results", "scale", "failures", "serving", "init"))
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


def of_seeds(values: Sequence[float], form: str = ".1f") -> str:
    """The mean, and the value of each seed."""
    return f"{mean(values):{form}} ({', '.join(f'{each:{form}}' for each in values)})"


def accuracy() -> str:
    """Error rates on digits and on read speech by model, in percent."""
    found = read("accuracy")
    of = {each["model"]: f"{each['wer']} | {each['cer']}" for each in found["read_speech"]["models"]}
    for each in read("paraformer_read_speech"):  # the last row of a model's own head is its best search
        if each["model"] not in of or not each["head"].startswith("ctc"):
            of[each["model"]] = f"{100 * each['wer']:.1f} | {100 * each['cer']:.1f}"
    rows = []
    for each in found["digits"]["models"]:
        name = each["model"]
        size = f"{each['parameters_M']:.2f} M"
        rows.append([f"`{name}`", size, each["speech_commands"], each["fsdd"], of.get(name, "not trained |")])
    return table("`MODEL` | parameters | Speech Commands, WER % | FSDD, WER % | read speech, WER % | CER %", rows)


def an4() -> str:
    """Error rates on AN4 in percent: means of three seeds, and the outermost bounds of their intervals."""
    rows = []
    found = read("an4")
    for model, search in dict.fromkeys((each["model"], each["search"]) for each in found):
        of = [each for each in found if (each["model"], each["search"]) == (model, search)]
        size, minutes = f"{of[0]['parameters'] / 1e6:.2f} M", f"{mean(each['minutes'] for each in of):.0f}"
        dev, test = [100 * each["dev"]["wer"] for each in of], [100 * each["test"]["wer"] for each in of]
        low, high = zip(*(each["test"]["wer_interval"] for each in of), strict=True)
        interval, cer = f"{100 * min(low):.1f} to {100 * max(high):.1f}", mean(100 * each["test"]["cer"] for each in of)
        rows.append([f"`{model}`", search, size, minutes, f"{mean(dev):.1f}", of_seeds(test), interval, f"{cer:.1f}"])
    rows.append(["ESPnet", "beam 10", "", "", "12.9", "7.6", "", "3.6"])
    rows.append(["ESPnet", "beam 10, language model", "", "", "12.7", "7.4", "", "3.6"])
    header = "`MODEL` | search | parameters | minutes | dev WER % | test WER % (seeds) | bounds | test CER %"
    return table(header, rows)


def delay_penalty() -> str:
    """Error rates and emission latencies on strings of digits by delay penalty; all seeds."""
    rows, found = [], read("delay_penalty")
    for head, penalty in dict.fromkeys((each["head"], each["penalty"]) for each in found):
        of = [each for each in found if (each["head"], each["penalty"]) == (head, penalty)]
        times = {key: [1000 * each["latency"]["emission"][key] for each in of] for key in ("mean", "p50", "p90", "p99")}
        percentiles = " / ".join(f"{mean(times[key]):.0f}" for key in ("p50", "p90", "p99"))
        wer = of_seeds([100 * each["wer"] for each in of])
        rows.append([head, f"{penalty:g}", wer, of_seeds(times["mean"], ".0f"), percentiles])
    rows.sort(key=lambda row: row[0], reverse=True)
    return table("head | λ | test WER % (seeds) | mean latency, ms (seeds) | 50 / 90 / 99 %, ms", rows)


def exports() -> str:
    """Exported models in onnxruntime and sherpa-onnx beside the runs."""
    rows = []
    for each in read("exports"):
        texts = " / ".join(str(each[f"other_texts{end}"]) for end in ("", "_int8"))
        if "other_texts_beam" in each:
            texts += f"; beam search {each['other_texts_beam']} / {each['other_texts_int8_beam']}"
        if "other_texts_of_one_level" in each:
            texts += f"; of one level {each['other_texts_of_one_level']}"
        size = sum(size for name, size in each["bytes"].items() if "int8" not in name) / 1e6
        row = [each["model"], f"`{each['kind']}`", f"{each['log_probs']:.1e}" if "log_probs" in each else "", texts]
        row += [" / ".join(f"{100 * each[key]:.1f}" for key in ("wer", "wer_sherpa", "wer_int8"))]
        row += [" / ".join(f"{1000 * each[key]:.1f}" for key in ("rtf_ours", "rtf", "rtf_int8")), f"{size:.1f}"]
        rows.append(row)
    header = "model | kind of sherpa-onnx | log-probabilities, largest difference | other texts of 50, f32 / int8"
    header += " | WER of the run / f32 / int8, % | real-time factor of the run / f32 / int8, ‰ | MB in f32"
    return table(header, rows)


def streaming() -> str:
    """Error rates on strings of digits by chunk; with times, also the latency of a window and the streams of a core."""
    found = read("streaming")
    times = {each["chunk_ms"]: each for each in found.get("times", {"rows": ()})["rows"]}
    rows = []
    for each in found["accuracy"]["rows"]:
        low, high = (100 * bound for bound in each["wer_interval"])
        chunk, rate = each["chunk_ms"], f"{100 * each['wer']:.1f} ({low:.1f} to {high:.1f})"
        shown = ["whole", "", rate, ""]
        if chunk:
            others = f"{each['other_texts']} of {each['utterances']}"
            shown = [f"{chunk:.0f}", f"{each['window_ms']:.0f}", rate, others]
        if chunk in times:
            of = times[chunk]
            shown += [f"{of['mean_ms']:.1f} / {of['p95_ms']:.1f}", f"{of['rtf']:.3f}", of["streams"]]
        rows.append(shown + [""] * (3 if times and chunk not in times else 0))
    header = "chunk, ms | window, ms | test WER % (interval) | texts that differ from `transcribe`"
    of_times = " | latency of a window, mean / 95 %, ms | real-time factor | streams of a core" if times else ""
    return table(header + of_times, rows)


def streaming_long() -> str:
    """Error rates and memory of a long recording of strings of digits, as a stream and in windows."""
    rows = [
        [each["method"], f"{each['minutes']:.0f}", f"{100 * each['wer']:.1f}", f"{each['words']:,}",
         *(f"{each[name]:.0f}" for name in ("early_mb", "peak_mb"))]
        for each in read("streaming")["long"]["rows"]
    ]  # fmt: skip
    return table("recognised | minutes | WER % | words | peak after 10 minutes, MB | peak at the end, MB", rows)


def learning() -> str:
    """Error rates and training losses of models and of their originals, which learn from equal batches; all seeds."""
    rows = []
    for name in ("zipformer", "quartznet"):
        found = read(f"learning_{name}")["trainings"]
        for system in dict.fromkeys(each["system"] for each in found):
            of = [each for each in found if each["system"] == system]
            columns = (("dev, WER %", ".1f"), ("test, WER %", ".1f"), ("loss of the last 100", "#.3g"))
            unit = {"zipformer": "per label", "quartznet": "per utterance"}[name]
            rows.append([f"`{name}`", system, *(of_seeds([each[c] for each in of], form) for c, form in columns), unit])
    return table("model | system | dev WER % (seeds) | test WER % (seeds) | loss of the last 100 updates | unit", rows)


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


def inference() -> str:
    """Milliseconds of a batch from audio in memory to texts, and its speed as a multiple of real time."""
    rows = []
    for name, model in (("read_speech", "Zipformer, 3.4 M"), ("quartznet_5x5", "QuartzNet 5x5, 6.7 M")):
        found = read(f"inference_{name}_cpu")["batches"]
        for batch in (1, 16):
            of = {each["seconds"]: each for each in found if each["batch"] == batch}
            shown = [f"{of[s]['ms']['all']['mean']:,.0f} ({of[s]['rtfx']:,.0f} ×)" for s in (2, 7, 16.7)]
            rows.append([model, batch, *shown])
    return table("model | rows | 2 s | 7 s | 16.7 s", rows)


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


def decoding() -> str:
    """Speeds of reading audio by format, as multiples of real time."""
    found = read("decoding")
    threads = [num for num in found["formats"][0]["speeds"] if num != "1"]
    header = "format | kbit/s | one thread, per second of processor time"
    header += "".join(f" | {num} threads, per second" for num in threads)
    rows = [
        [each["format"], f"{each['kbit_per_s']:.0f}", *(f"{each['speeds'][num]:,}" for num in ("1", *threads))]
        for each in found["formats"]
    ]
    return table(header, rows)


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


def smoke_runs() -> str:
    """Seconds of smoke runs by config, over its models or stages."""
    of: dict[str, list[dict[str, Any]]] = {}
    for each in read("smoke_runs_cpu"):
        of.setdefault(each["config"], []).append(each)

    def span(runs: list[dict[str, Any]], name: str) -> str:
        return " to ".join(sorted({f"{pick(each[name] for each in runs):.0f}" for pick in (min, max)}))

    rows = [[f"`{name}.py`", len(runs), span(runs, "processor_s"), span(runs, "wall_s")] for name, runs in of.items()]
    return table("config | models | processor time, s | wall time, s", rows)


def transducer_loss() -> str:
    """Memory and time of the joint network and its loss with gradients, and time relative to torchaudio's."""
    memory, times = dict[tuple[str, str], float](), dict[tuple[str, str], float]()
    for each in read("transducer_memory_cpu")["joint"]:
        memory[each["variant"], each["shape"]] = each["temporary_mb"]
    for each in read("transducer_loss_cpu")["joint"]:
        if each["times_s"]:
            times[each["variant"], each["shape"]] = min(each["times_s"])

    def seconds(loss: str, shape: str) -> str:
        return f"{times[loss, shape]:.2f} ({times['torchaudio', shape] / times[loss, shape]:.1f} ×)"

    rows = [
        [
            loss,
            *(f"{memory[loss, shape]:,.0f}" if (loss, shape) in memory else "" for shape in ("small", "base")),
            *(seconds(loss, shape) for shape in ("small", "base, 2 rows")),
        ]
        for loss in ("plain", "tiled", "pruned", "pruned, tiled", "torchaudio", "fast_rnnt", "fast_rnnt, pruned")
    ]
    return table("loss | 1,024 labels, MB | 8,704 labels, MB | 1,024 labels, s | 8,704 labels, two rows, s", rows)


def compiled_programs() -> str:
    """Memory, bytes and products of each family's largest batch on an H100, and estimated audio-hours per hour."""
    of = {(config, target): programs for config, target, *programs in compiled() if programs[1]}
    rows = []
    for config in FAMILIES:
        gradient = of[config, "h100"][0]
        hours = {name: hours_per_hour(*of[config, target], ACCELERATORS[name]) for name, target in DEVICES.items()}
        theirs = PUBLISHED.get(config)
        size = f"{gradient['rows']} × {gradient['seconds']:.1f} s", f"{gradient['memory GB']:.1f}"
        costs = [f"{1e3 * gradient[name] / gradient['audio_s']:,.{places}f}" for name, places in PER_AUDIO_S.items()]
        published = f"{theirs:,} ({theirs / hours['a100']:.0%})" if theirs else ""
        rows.append([f"`{config}`", *size, *costs, *(f"{each:,.0f}" for each in hours.values()), published])
    per_audio_s = "MB per audio second | GFLOP per audio second"
    return table(f"config | batch | memory, GB | {per_audio_s} | H100 | A100 | v5e | published, A100", rows)


def cold_start() -> str:
    """Processor time of the phases of a cold start, in seconds."""
    parts = ("initial parameters", "gradient", "update")

    def row(each: dict[str, Any]) -> list[str]:
        of_parts = [each[f"trace {part} s"] + each[f"compile {part} s"] for part in parts]
        times = [each["imports s"], *of_parts, each["total s"]]
        return [f"`{each['config']}.py`", f"{each['parameters M']:.1f}", *(f"{time_s:.0f}" for time_s in times)]

    return table(f"config | parameters, M | imports | {' | '.join(parts)} | total", map(row, read("cold_start_cpu")))


def sharded_memory() -> str:
    """Memory of a device by model and mesh, in GB."""
    rows = [
        [each["model"], each["parameters M"], f"`--mesh.{each['mesh']}`",
         *(f"{each[part]:.1f}" for part in ("state GB", "gradient GB", "update GB"))]
        for each in read("sharded_memory")
    ]  # fmt: skip
    of_parts = "state, averages and gradients, GB | in the gradient of a batch, GB | in the update, GB"
    return table(f"model | parameters, M | mesh | {of_parts}", rows)


FAMILIES = (
    "conformer_librispeech", "fastconformer_librispeech", "fastconformer_tdt", "zipformer", "zipformer_transducer",
    "squeezeformer_librispeech", "quartznet_librispeech", "rnnt_base", "paraformer_rust", "w2v_bert_finetune",
    "wav2vec2_finetune", "wav2vec2_pretrain",
)  # fmt: skip
"""Configs of the table; benchmarks/results/compiled_programs.json has all."""
DEVICES = {"h100": "h100", "a100": "h100", "v5e": "v5e"}
"""Targets of the programs that the estimates of a device are computed from."""
PER_AUDIO_S = {"GB moved": 0, "TFLOP": 1}
"""Figures of a program that are divided by its audio, and their decimal places."""
PUBLISHED = {"quartznet_librispeech": 1498, "rnnt_base": 2900, "wav2vec2_pretrain": 1535, "wav2vec2_finetune": 2886}
"""Audio-hours per hour of an A100 that NVIDIA (QuartzNet, wav2vec 2.0) and CAIMAN-ASR (RNN-T) publish."""


def compiled() -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any] | None]]:
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


def hours_per_hour(gradient: dict[str, Any], update: dict[str, Any], device: Accelerator) -> float:
    of_part, of_update = (
        max(each["TFLOP"] / device.peak_tflops, each["GB moved"] / device.memory_gb_per_s)
        for each in (gradient, update)
    )
    return gradient["audio_s"] / (of_part + of_update / gradient.get("split", 1))


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
    "process 1 killed": ("process 1 killed (`kill -9`)", "the computation of process 0 fails, and it ends"),
    "process 0 killed": ("process 0 killed", "the computation of process 1 fails, and it ends"),
    "process 1 stopped": ("process 1 hangs (SIGSTOP)", "JAX ends process 0, and a message names process 1"),
    "process 0 stopped": ("process 0 hangs", "JAX ends process 1, and a message names process 0"),
    "SIGTERM to process 1": ("SIGTERM to process 1 alone", "both save together and end"),
    "network cut, 5 s": ("network cut for 5 s", "both wait and go on"),
    "network cut, 120 s": ("network cut for 120 s", "JAX ends both, and a message names the other"),
    "shared file system full": ("shared file system full", "one ends with the reason, the other too or with code 75"),
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


def serving() -> str:
    """The server under load."""
    found = read("serving")
    answers = f"{found['right']:,} right, {found['requests'] - found['right']:,} wrong or lost"
    times = " / ".join(f"{found[name]:.3f}" for name in ("p50_s", "p95_s", "p99_s"))
    memory = " / ".join(f"{found['memory_mb'][place]:,}" for place in (0, 2, -1))
    speed = f"{found['x_real_time']:.0f} / {found['transcribe_x_real_time']:.0f}"
    header = "clients, minutes | answers | seconds of audio per second, server / `transcribe` | ratio"
    header += " | time to the answer, 50 / 95 / 99 %, s | memory at first / after a fifth / at the end, MB"
    clients = f"{found['clients']}, {found['seconds'] / 60:.0f}"
    return table(header, [[clients, answers, speed, f"{found['ratio']:.2f}", times, memory]])


def init_corpora() -> str:
    """Findings of init in eight corpora, its plan beside the training, and the error rates after it."""
    rows = []
    for name, each in read("init_corpora").items():
        planned, training = each["planned"], each["training"]
        pairs = [(planned["training_s"], training["training_s"]), (planned["start_s"], training["start_s"])]
        times = [f"{plan:.0f} / {measured:.0f}" for plan, measured in pairs]
        memory = f"{planned['memory_bytes'] / 1e9:.2f} / {training['peak_bytes'] / 1e9:.2f}"
        sizes = " / ".join(f"{of_set['hours']:.2f}" for of_set in each["sets"].values() if of_set["utterances"])
        found = ", ".join(f"{kind} {number or ''}".strip() for kind, number in each["findings"].items()) or "none"
        rates = [f"{100 * each[rate]:.0f}" for rate in ("wer", "cer")]
        labels = f"{each['labels']}, `{each['normaliser']}`"
        load = f"{each['load_before']:.0f} / {each['load_after']:.0f}"
        row = [f"{name}: {each['layout']}", sizes, found, labels, planned["updates"]]
        rows.append([*row, *times, memory, *rates, load])
    header = "corpus: layout | train / validation / test, h | findings | labels, normaliser | updates"
    header += " | training, planned / measured, s | start, s | memory, GB | WER % | CER % | load before / after"
    return table(header, rows)


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
        an4, delay_penalty, streaming, streaming_long, exports, learning, accuracy, steps, smoke_runs, cold_start,
        inference, searches, data, decoding, transducer_loss, compiled_programs, sharded_memory, scale_rings,
        scale_bytes, scale_times, scale_batches, scale_updates, scale_memory, scale_plans, faults,
        serving, init_corpora,
    )
}  # fmt: skip


def written(page: str) -> str:
    """The page with all tables replaced."""
    pattern = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page.read_text()))
