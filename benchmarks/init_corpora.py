"""Eight corpora through `asr_jax.init`: `python -m benchmarks.init_corpora --data DATA --an4 AN4 --work FOLDER`.

DATA has real speech: LibriSpeech's folder, and manifests of spoken digits and of six hours of read speech. AN4 is the
folder of CMU's AN4. The layouts of LJSpeech and of Kaldi are made of the six hours. Sentences of small German,
Ukrainian and Mandarin grammars are spoken by eSpeak NG, in the layouts of Common Voice, of Hugging Face's audiofolder,
and of texts beside the audio.

For each corpus, `init --hours 0.0333` writes a config for two minutes of training, and the commands that it prints
train and evaluate. Compiled programs are kept in a new folder for each corpus. The figures are written to --json after
each corpus, beside those of other corpora that it has. `--looks` only runs `init --skip-trial` and prints what it says.
"""

import argparse
import csv
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from asr_jax.cli.command_line import load_config
from asr_jax.core.run_folder import EVENTS
from asr_jax.core.text_files import json_text, read_text
from asr_jax.data.corpora.espeak import RATE_HZ, Espeak, Manner
from asr_jax.observe.events import read_events

ROOT = Path(__file__).resolve().parent.parent
HOURS = 0.0333
NUM_SENTENCES = 480
VOICES = ("m3", "f4", "adam", "linda", "Alex", "john", "max", "pedro", "klatt3", "Reed", "m8", "quincy", "Diogo", "f1")
Grammar = dict[str, str]
GERMAN: Grammar = {
    "sentence": "{who} {does} {what} {where}.|{When} {does} {whom} {what}.|{who} {does} {what}, und {whom} hört zu.|"
    "Warum {does} {whom} {what} {where}?|{who} sagte {when}: Es wird kälter!",
    "who": "Der Bäcker|Die Ärztin|Mein Großvater|Unsere Lehrerin|Der Straßenmusiker|Frau Schröder|Herr Weiß",
    "whom": "der junge Maler|die Köchin|meine Schwester|unser Nachbar|das Mädchen|der König|ein Schüler|die Bäuerin",
    "does": "öffnet|kauft|sucht|verkauft|vergisst|trägt|malt|zählt|wäscht|verliert|beschreibt|prüft",
    "what": "die grüne Tür|einen süßen Kuchen|das alte Schloss|frisches Brot|fünf rote Äpfel|den großen Schlüssel|"
    "weiße Schuhe|zwölf Bücher|eine Jacke|den Fußball|das Gemüse|die Quittung",
    "where": "in der Küche|auf der Straße|vor dem Haus|am Fluss|im Garten|hinter der Brücke|neben dem Café|im Büro",
    "when": "heute früh|am Dienstag|um zwölf Uhr|nächste Woche|im Frühling|nach dem Frühstück|kurz vor Weihnachten",
    "When": "Heute früh|Am Dienstag|Um zwölf Uhr|Nächste Woche|Im Frühling|Nach dem Frühstück|Kurz vor Weihnachten",
}
UKRAINIAN: Grammar = {
    "sentence": "{Who} {does} {what} {where}.|{When} {who} {does} {what}.|Чому {who} {does} {what} {where}?|"
    "{Who} {does} {what}, а {who} співає.",
    "Who": "Моя бабуся|Старий рибалка|Наша вчителька|Лікар із Києва|Подруга Мар'яна|Сусід Дем'ян|Мій дідусь|Їхній син",
    "who": "молодий художник|кухарка|його сестра|наш сусід|дівчина|гетьман|учень|ґазда|її подруга",
    "does": "купує|шукає|бачить|приносить|згадує|малює|продає|забуває|миє|рахує|описує|ховає",
    "what": "п'ять яблук|свіжий хліб|зелену ґратку|об'ємну книжку|солодкий мед|їжу для кішки|великий ґудзик|"
    "м'яку подушку|стару цеглину|червоні черевики|ключ від хати|щасливий квиток",
    "where": "на ринку|у лісі|біля річки|в місті|на подвір'ї|під деревом|у школі|за мостом",
    "When": "Сьогодні|Щовечора|У п'ятницю|Наступного тижня|Навесні|Після обіду|О дев'ятій годині",
}
MANDARIN: Grammar = {
    "sentence": "{who}{when}{does}{end}|{when}{who}{where}{does}{end}|{who}{where}{does}{comma}{who}也想{does}{end}",
    "who": "我|我们|他的老师|那位医生|我妈妈|小王|张先生|我的朋友|邻居|这个学生",
    "when": "今天早上|昨天晚上|下个星期|周末|明天下午|刚才|每天中午|春天",
    "where": "在公园里|在图书馆|在火车站|在学校门口|在北京|在山上|在厨房里|在河边",
    "does": "跑步|喝绿茶|买一本新书|看报纸|等了２０分钟|做了一顿晚饭|给家里打电话|画画|买了３个苹果|唱卡拉OK|"
    "用手机看NBA比赛|学习汉语|修理自行车|吃饺子|听音乐|写信",
    "end": "。|。|||？",
    "comma": "，|",
}


def sentences(grammar: Grammar, least: int, rng: np.random.Generator) -> list[str]:
    """Different sentences of a grammar with at least some characters."""
    found = dict[str, None]()
    while len(found) < NUM_SENTENCES:
        text = "{sentence}"
        while "{" in text:
            text = re.sub(r"{(\w+)}", lambda slot: str(rng.choice(grammar[slot[1]].split("|"))), text)
        found |= {text: None} if len(text) >= least else {}
    return list(found)


def spoken(folder: Path, accent: str, texts: Sequence[str], ending: str) -> Iterator[tuple[Path, str, str]]:
    """Speaks texts in 14 voices, one after the other; yields the files, the voices and the texts."""
    engine, rng = Espeak(), np.random.default_rng(1)
    for number, text in enumerate(texts):
        voice = VOICES[number % len(VOICES)]
        pace, pitch, pitch_range = (int(rng.integers(*limits)) for limits in ((110, 160), (20, 80), (20, 80)))
        path = folder / voice / f"{accent}_{number:04d}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, engine.speak(text, Manner(accent, voice, pace, pitch, pitch_range)), RATE_HZ)
        yield path, voice, text


def common_voice(folder: Path, _: argparse.Namespace) -> Path:
    """German as Common Voice distributes its languages: clips in MP3, and tables of sets with client ids."""
    texts = sentences(GERMAN, 24, np.random.default_rng(0))
    rows = dict[str, list[tuple[str, ...]]](validated=[], train=[], dev=[], test=[], other=[], invalidated=[])
    for path, voice, text in spoken(folder / "clips", "de", texts, "mp3"):
        path = path.rename(folder / "clips" / path.name)
        row = (hashlib.sha256(voice.encode()).hexdigest(), path.name, text, "2", "0", "de")
        held = {VOICES[0]: "dev", VOICES[1]: "dev", VOICES[2]: "test", VOICES[3]: "test"}.get(voice, "train")
        for name in ("validated", held):
            rows[name].append(row)
    for name, of_set in rows.items():
        header = ("client_id", "path", "sentence", "up_votes", "down_votes", "locale")
        write_table(folder / f"{name}.tsv", [header, *of_set], "\t")
    return folder


def audio_folder(folder: Path, _: argparse.Namespace) -> Path:
    """Ukrainian as Hugging Face's audiofolder. Four texts have a Latin i; a tenth of the apostrophes is typographic."""
    texts = sentences(UKRAINIAN, 24, np.random.default_rng(0))
    rows = [("file_name", "transcription", "speaker_id")]
    for number, (path, voice, text) in enumerate(spoken(folder / "data", "uk", texts, "flac")):
        written = text.replace("'", "’") if number % 10 == 0 else text
        written = written.replace("і", "i", 1) if number in (7, 57, 107, 157) else written
        rows.append((str(path.relative_to(folder)), written, voice))
    write_table(folder / "metadata.csv", rows, ",")
    return folder


def text_pairs(folder: Path, _: argparse.Namespace) -> Path:
    """Mandarin as a text beside each recording, in folders of speakers."""
    for path, _voice, text in spoken(folder, "cmn", sentences(MANDARIN, 8, np.random.default_rng(0)), "wav"):
        path.with_suffix(".txt").write_text(text + "\n", encoding="utf-8")
    return folder


def six_hours(given: argparse.Namespace, name: str) -> Iterator[dict[str, Any]]:
    """Yields the utterances of a set of the six hours of read speech."""
    folder = given.data / "read_speech_6h"
    for line in read_text(folder / f"manifests/{name}.jsonl").splitlines():
        utterance = json.loads(line)
        yield utterance | {"audio_path": folder / utterance["audio_path"]}


def lj_speech(folder: Path, given: argparse.Namespace) -> Path:
    """The 593 sentences of one speaker of CMU ARCTIC as LJSpeech."""
    (folder / "wavs").mkdir(parents=True)
    rows = list[tuple[str, ...]]()
    for each in six_hours(given, "train"):
        if "slt" in each["speaker"]:
            samples, rate_hz = soundfile.read(each["audio_path"], dtype="int16")
            soundfile.write(folder / f"wavs/{each['id']}.wav", samples, rate_hz)
            rows.append((each["id"], each["text"], each["text"]))
    write_table(folder / "metadata.csv", rows, "|")
    return folder


def kaldi(folder: Path, given: argparse.Namespace) -> Path:
    """Twenty utterances of each chapter of the six hours in Kaldi's data folders, as one recording with `segments`."""
    for name in ("train", "dev", "test"):
        files = dict[str, list[str]](text=[], segments=[], utt2spk=[], **{"wav.scp": []})
        chapters = dict[str, list[Any]]()
        for each in six_hours(given, name.replace("dev", "val")):
            of_chapter = chapters.setdefault(each["id"].rpartition("-")[0], [])
            if len(of_chapter) < 20:
                of_chapter.append(each)
        (folder / name / "wav").mkdir(parents=True)
        for chapter, utterances in chapters.items():
            parts, start_s = [], 0.0
            for each in utterances:
                samples, rate_hz = soundfile.read(each["audio_path"], dtype="int16")
                end_s = start_s + len(samples) / rate_hz
                files["segments"].append(f"{each['id']} {chapter} {start_s:.3f} {end_s:.3f}")
                files["text"].append(f"{each['id']} {each['text'].upper()}")
                files["utt2spk"].append(f"{each['id']} {each['speaker']}")
                start_s = end_s
                parts.append(samples)
            path = folder / name / "wav" / f"{chapter}.wav"
            soundfile.write(path, np.concatenate(parts), rate_hz)
            files["wav.scp"].append(f"{chapter} {path}")
        for file, lines in files.items():
            (folder / name / file).write_text("\n".join(sorted(lines)) + "\n", encoding="utf-8")
    return folder


def write_table(path: Path, rows: Iterable[Sequence[str]], separator: str) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=separator, lineterminator="\n").writerows(rows)


CORPORA: dict[str, tuple[str, Callable[[Path, argparse.Namespace], Path]]] = {
    "LibriSpeech": ("LibriSpeech", lambda _, given: given.data / "read_speech/LibriSpeech"),
    "AN4": ("AN4 (CMU Sphinx)", lambda _, given: given.an4),
    "ARCTIC": ("LJSpeech", lj_speech),
    "Chapters": ("Kaldi with `segments`", kaldi),
    "digits": ("JSON lines", lambda _, given: given.data / "digits"),
    "German": ("Common Voice", common_voice),
    "Ukrainian": ("Hugging Face `audiofolder`", audio_folder),
    "Mandarin": ("text beside the audio", text_pairs),
}
"""Layout of each corpus, and the function that makes the corpus in a folder, or only returns its folder."""


def ran(command: Sequence[str], name: str, work: Path) -> tuple[str, dict[str, float]]:
    """Runs a command of Python; returns its output, and its time, processor time and largest memory."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(work / f"cache_{name}")}
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "160"} | cache
    log, began_s = work / f"{name}.txt", time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command[1:]], cwd=work, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    text = read_text(log)
    if process.returncode:
        sys.exit(f"error: {shlex.join(command)} failed:\n{text}")
    figures = {"wall_s": time.monotonic() - began_s, "processor_s": used.ru_utime + used.ru_stime}
    return text, {name: round(value, 1) for name, value in figures.items()} | {"peak_bytes": used.ru_maxrss * 1024}


def tried(name: str, path: Path, work: Path) -> dict[str, Any]:
    """Figures of init, training and evaluation of a corpus."""
    out, run = work / f"init_{name}", work / "runs" / name
    load = os.getloadavg()[0]
    options = ["--hours", str(HOURS), "--out", out.name, "--force"]
    said, of_init = ran(["python", "-m", "asr_jax.init", str(path), *options], name, work)
    print(said, flush=True)
    train, evaluate, _ = (shlex.split(line) for line in said.split("\n") if line.startswith("  python -m"))
    evaluated = work / f"evaluated_{name}.json"
    _, of_training = ran([*train, "--run-dir", str(run)], name, work)
    _, of_evaluation = ran([*evaluate[:3], str(run), *evaluate[4:], "--json", str(evaluated)], name, work)
    found, experiment = json.loads(read_text(out / "findings.json")), load_config(out / "config.py")
    (result,) = json.loads(read_text(evaluated))["runs"][0]["sets"].values()
    events = [(each["event"], each["data"]["elapsed_s"]) for each in read_events(run / EVENTS)]
    of_training["training_s"] = round(events[-1][1] - dict(events)["compile"], 1)
    of_training["start_s"] = round(of_training["wall_s"] - of_training["training_s"], 1)
    numbers = Counter[str]()
    for each in found["findings"]:
        numbers[each["kind"]] += each["number"]
    return {
        "load_before": round(load, 1),
        "load_after": round(os.getloadavg()[0], 1),
        "sets": found["sets"],
        "scripts": found["scripts"],
        "findings": numbers,
        "labels": experiment.data.tokenizer.kind,
        "normaliser": experiment.data.tokenizer.normaliser,
        "updates": experiment.training.num_updates,
        "planned": found["planned"],
        "init": of_init,
        "training": of_training,
        "evaluation": of_evaluation,
        "measure": result["measure"],
        "wer": result["wer"],
        "cer": result["cer"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of real speech")
    parser.add_argument("--an4", type=Path, required=True, help="folder an4 of CMU's AN4")
    parser.add_argument("--work", type=Path, required=True, help="folder for corpora, configs and runs")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--only", nargs="+", choices=CORPORA, default=tuple(CORPORA))
    parser.add_argument("--looks", action="store_true", help="only run init --skip-trial")
    given = parser.parse_args()
    given.data, given.an4, work = given.data.resolve(), given.an4.resolve(), given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    rows = json.loads(read_text(given.json)) if given.json and given.json.exists() else {}
    for name in given.only:
        layout, make = CORPORA[name]
        folder = work / "corpora" / name
        path = folder if folder.exists() else make(folder, given)
        if given.looks:
            options = ["--skip-trial", "--out", f"looks_{name}", "--force", "--hours", str(HOURS)]
            print(ran(["python", "-m", "asr_jax.init", str(path), *options], name, work)[0], flush=True)
            continue
        rows[name] = {"layout": layout, "cores": os.cpu_count()} | tried(name, path, work)
        print(json_text(rows[name]), flush=True)
        if given.json:
            ordered = {each: rows[each] for each in CORPORA if each in rows}
            given.json.write_text(json.dumps(ordered, indent=1) + "\n")


if __name__ == "__main__":
    main()
