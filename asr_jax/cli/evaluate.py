"""Error rates of runs on manifests: `python -m asr_jax.evaluate RUN … --data MANIFEST … [--json OUT]`.

The error rate of each set has a 95 % interval by bootstrap over the speakers. `python -m asr_jax.compare` compares the
`--predictions` of two runs. For a run without a recognising head, such as after pre-training, evaluates the losses and
metrics.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Int
from tyro.conf import Positional, arg

from asr_jax.cli.jobs import JobOptions, digest_of
from asr_jax.cli.over_runs import over_runs, show_over_runs
from asr_jax.cli.recognition_options import (
    ABOUT_DECODING,
    RecognitionOptions,
    checkpoint_digest,
    decoding_in,
    load,
    parse_recognition,
    print_differing,
)
from asr_jax.cli.results import numbers, show
from asr_jax.config import load_experiment
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.files import check_no_input, check_writable, write_whole
from asr_jax.core.jobs import Job, finish, is_finished
from asr_jax.core.names import counted
from asr_jax.core.options import given_flags
from asr_jax.core.paths import UserPath
from asr_jax.core.run_folder import EXPERIMENT
from asr_jax.core.settings import NonNegativeInt, PositiveFloat, command_options
from asr_jax.core.text_files import json_line, json_text, open_text, read_text
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.data.batching.evaluation import about_long, part_of
from asr_jax.data.batching.sets import spread
from asr_jax.data.manifests.identity import digest_of_recordings
from asr_jax.data.manifests.inputs import described
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.reading import Utterances, read_utterances
from asr_jax.inference.batches import BatchOptions
from asr_jax.inference.calibration import calibrate
from asr_jax.inference.importing import run_and_checkpoint
from asr_jax.inference.latency import latency_of
from asr_jax.inference.log_probs import LogProbs, check_ids
from asr_jax.inference.losses import measure
from asr_jax.inference.recognition import Recognition
from asr_jax.inference.scored_sets import (
    Findings,
    changed_texts,
    figures_of,
    findings_of,
    joined_findings,
    judged_of,
    scored,
)
from asr_jax.inference.trained import Trained
from asr_jax.inference.transcription import recognise_all
from asr_jax.metrics.errors import Alignment, word_errors
from asr_jax.metrics.latency import TimedWord
from asr_jax.search.base import Decoding
from asr_jax.text.normalise import CHOICES, check_normaliser
from asr_jax.text.tokenizers import Tokenizer
from asr_jax.transcripts.alignments import spoken_words
from asr_jax.transcripts.transcript import Transcript

KIND = "evaluation"
"""Kind of the receipts of jobs."""


@command_options
class EvaluateOptions(JobOptions, BatchOptions, RecognitionOptions):
    """Options of `asr_jax.evaluate`."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN …")]
    """Folders of trained runs, or checkpoints."""
    data: Annotated[tuple[UserPath, ...], arg(metavar="MANIFEST …")]
    """Manifests to evaluate on, each as a set."""
    ignore_above: Annotated[PositiveFloat | None, arg(metavar="S")] = None
    """Duration in seconds above which utterances are not part of a set. Default: all are part of it, and longer audio
    is computed in windows."""
    max_samples: Annotated[NonNegativeInt, arg(metavar="N")] = 0
    """Maximum number of utterances of each set, spread evenly over it; 0: all."""
    json: Annotated[Path | None, arg(metavar="OUT")] = None
    """File to write the figures to, in JSON."""
    predictions: Annotated[Path | None, arg(metavar="OUT")] = None
    """File for one line of JSON per utterance; a folder for several runs or heads."""
    state_resets: Annotated[tuple[float, float], arg(metavar="S S")] = (0.0, 0.0)
    """Length and overlap in seconds of windows with CAIMAN-ASR's state resets, such as 15 3. Longer audio is computed
    in these windows; tokens that begin in the window before are dropped. 0 0: other windows, joined by seams."""
    worst: Annotated[NonNegativeInt, arg(metavar="N")] = 0
    """Number of utterances with the most word errors to print for each set, with their aligned texts."""
    latency: Annotated[tuple[Path, ...], arg(metavar="ALIGNMENT …")] = ()
    """Files with the times of the spoken words, in CTM or as JSON lines of asr_jax.align. Prints three latencies:
    emission, head and tail (documentation: decoding)."""
    head: Annotated[tuple[str, ...], arg(metavar="NAME …")] = ()
    """Recognising heads to evaluate, one row of the table each. Default: the primary head."""
    by: Literal["source", "speaker", "length"] = "source"
    """Grouping of the rows below the row of each set."""
    normaliser: Annotated[str, arg(metavar=CHOICES)] = ""
    """Normaliser of references and hypotheses in scoring. Default: the normaliser of the run's tokenizer."""
    alignment: Alignment = "fewest_edits"
    """Alignment by which word errors are counted. sclite: that of NIST's sclite, in which a substitution costs 4 and a
    deletion or an insertion 3. --worst always prints an alignment with the fewest errors."""
    calibrate: bool = False
    """Calibrate the confidence of words on these sets and store the calibration in the run."""
    force: bool = False
    """Repeat a job that is finished."""
    log_probs: Annotated[Path | None, arg(metavar="OUT")] = None
    """Output of the log-probabilities: OUT.safetensors, or a folder for .npy files."""

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the heads; an empty name is the primary head."""
        return self.head or ("",)

    @property
    def are_several(self) -> bool:
        """Whether there are several runs or heads."""
        return len(self.runs) > 1 or len(self.heads) > 1


def main(arguments: Sequence[str]) -> None:
    options, flags = parse_recognition(
        EvaluateOptions, arguments, prog="python -m asr_jax.evaluate", about=(__doc__ or "") + ABOUT_DECODING
    )
    check(options)
    in_folder = options.log_probs is not None and options.log_probs.suffix != ".safetensors"
    outs = ((options.json, False), (options.predictions, options.are_several), (options.log_probs, in_folder))
    flags_of_outs = ("--json", "--predictions", "--log-probs")
    for flag, (out, is_folder) in zip(flags_of_outs, outs, strict=True):
        check_no_input(flag, out, options.data)
        check_writable(out, is_folder=is_folder)
    how = ReadOptions(texts_may_lack=not any(map(recognises, options.runs)), allow_pipes=options.allow_pipes)
    utterances = {
        manifest: chosen(read_utterances([manifest], role="validation", options=how), options)
        for manifest in options.data
    }
    job, digest, inputs = options.own_job, "", ""
    if job:
        checkpoints = [checkpoint_digest(run, options) for run in options.runs]
        digest = digest_of(options, flags, [each.digest for each in utterances.values()], checkpoints)
        own = [each for of_set in utterances.values() for each in of_set.select(job.rows(len(of_set)))]
        inputs = digest_of_recordings(own)
    if job and options.json and not options.force and is_finished(options.json, job, digest, inputs):
        return
    for line in described(options.data, "validation", how):
        print(line, file=sys.stderr)
    if options.log_probs:
        check_ids(options.log_probs, utterances)
    spoken = {
        manifest: spoken_words(options.latency, list(of_set)) if options.latency else {}
        for manifest, of_set in utterances.items()
    }
    results, failed = [], list[str]()
    for run in options.runs:
        if recognises(run):
            trained = load(run, options, options).with_resets(options.state_resets)
            for name in options.heads:
                head = name or trained.model.recognising
                decoding = decoding_in(trained.experiment.model, head, flags)
                results.append(evaluate_run(trained, head, decoding, utterances, spoken, options, failed))
        else:
            check_options_of_losses(run, options, flags)
            results.append(evaluate_losses(load(run, options, options), utterances))
    if job and options.json:
        out = job.path(options.json)
        write_whole(out, json_text({"by": options.by, "worst": options.worst, "runs": results}))
        sets = [each for result in results[:1] for each in result["sets"].values()]
        rejected = sum(each["rejected"] for each in sets)
        num = sum(len(each["rows"]) for each in sets) + rejected
        counts = {"recordings": num, "rejected": rejected}
        finish(options.json, job, digest=digest, inputs=inputs, files={options.json: out}, kind=KIND, **counts)
        return
    conclude(results, by=options.by, out=options.json)
    if failed:
        raise RunError(f"{'; '.join(failed)}; the figures are complete")


def chosen(utterances: Utterances, options: EvaluateOptions) -> Utterances:
    """Returns the utterances of a set that --ignore-above and --max-samples leave, and prints their number.

    Raises:
        UserError: If none is left.
    """
    longest = options.ignore_above or np.inf
    found = utterances.select(~(utterances.columns.duration_s[utterances.rows] > longest))  # NaN: it is not known
    found = spread(found, options.max_samples)
    if len(found) < len(utterances):
        print(f"{len(found)} of {counted(len(utterances), 'utterance')} are evaluated", file=sys.stderr)
    if len(utterances) and not len(found):
        raise UserError(
            f"--ignore-above {longest:g}: all {len(utterances)} utterances are longer; expected more seconds"
        )
    return found


def conclude(results: Sequence[dict[str, Any]], *, by: str, out: Path | None) -> None:
    """Prints the results and writes them to a file.

    Raises:
        RunError: If an utterance could not be evaluated.
    """
    nothing = show(results, by=by)
    summary = over_runs(results)
    show_over_runs(summary)
    if out:
        write_whole(out, json_text({"runs": results, "over_runs": summary}, indent=2) + "\n")
    if nothing:
        raise RunError(f"{', '.join(nothing)}: no utterance could be scored; the reasons are above")
    num_rejected, num_scored = max(numbers(result["sets"]) for result in results)
    if num_rejected:
        raise RunError(
            f"{num_rejected} of {counted(num_rejected + num_scored, 'utterance')} could not be evaluated and "
            f"{'is' if num_rejected == 1 else 'are'} not part of the rates; the reasons are above"
        )


def evaluate_run(
    trained: Trained,
    head: str,
    decoding: Decoding,
    utterances: Mapping[str, Utterances],
    spoken: Mapping[str, Mapping[str, Sequence[TimedWord]]],
    options: EvaluateOptions,
    failed: list[str],
) -> dict[str, Any]:
    """Evaluates one set of weights with one head on all sets; writes predictions, log-probabilities and calibration.

    Args:
        spoken: Spoken words with their times for each set, by the ids of recordings. Empty: latency is not measured.
        failed: Takes the reason if the predictions cannot be written. They end no command, since the figures remain.

    Returns:
        A description of the weights and the counts of each set, as in the JSON file.
    """
    if options.log_probs and not trained.experiment.model.heads[head].aligns:
        raise UserError(
            f"--log-probs: the head {head} of {trained.name} has no log-probabilities of frames; expected a CTC head "
            "(--head NAME)"
        )
    decoder = trained.decoder(decoding, head=head, is_raw=options.calibrate, gives_log_probs=bool(options.log_probs))
    log_probs = None
    if options.log_probs:
        frame_s = decoder.search.writer.times.shift_s
        log_probs = LogProbs(options.log_probs, trained.tokenizer, frame_s=frame_s)
    normaliser = options.normaliser or trained.tokenizer.normaliser
    how: dict[str, Any] = {"normaliser": normaliser, "alignment": options.alignment}
    findings, about = dict[str, Findings](), dict[str, dict[str, Any]]()
    for manifest, of_set in utterances.items():
        data, rows = own_rows(trained.plan(of_set), of_set, options.own_job)
        if log_probs:
            log_probs.begin(manifest)
        found = recognise_all(trained, decoder, data, log_probs=log_probs)
        findings[manifest] = findings_of(
            data, found, trained.tokenizer, rows=rows, has_lines=bool(options.predictions), **how
        )
        about[manifest] = {"max_duration_s": data.longest_s} | changed_texts(of_set, trained.tokenizer, normaliser)
        if spoken[manifest]:
            frame_s = decoder.search.writer.times.shift_s
            about[manifest]["latency"] = latency_of(
                data, found, spoken[manifest], normaliser=normaliser, frame_s=frame_s
            )
        settings = trained.experiment.model.heads[head]
        before = settings.unrefined(decoding)
        if before and not options.own_job:
            drafts = recognise_all(trained, trained.decoder(before, head=head), data)
            about[manifest]["before_refinement"] = draft_figures(data, found, drafts, trained.tokenizer, how) | {
                "refined": share_below(drafts.transcripts.values(), settings.refines_below)
            }
        for each in data.rejections.entries + found.rejected:
            print(f"rejected {each.line}", file=sys.stderr)
        print_differing(found.differing)
    if log_probs:
        log_probs.close()
    result = trained.description(decoder) | how | {"labels": trained.tokenizer.kind}
    named = {"head": head, "decoding": str(decoding)}
    out = options.predictions
    if out and options.are_several:
        out /= f"{trained.folder.name}-{trained.updates}{f'-{head}' * (len(options.heads) > 1)}.jsonl"
    if options.own_job:
        sets = {manifest: findings[manifest] | about[manifest] for manifest in findings}
        return result | {"sets": sets, "predictions": str(out.absolute()) if out else "", "named": named}
    if out:
        try:
            write_predictions(out, findings, named)
        except OSError as error:
            failed.append(f"--predictions {out} cannot be written: {error.strerror}")
    result["sets"] = {
        manifest: figures_of(of_set, num_worst=options.worst, **how) | about[manifest]
        for manifest, of_set in findings.items()
    }
    if options.calibrate:
        confidences, is_right = (np.concatenate(each) for each in zip(*map(judged_of, findings.values()), strict=True))
        result["calibration"] = calibrate(
            trained.folder,
            trained.updates,
            trained.weights,
            decoding,
            confidences,
            is_right,
            head=trained.other_than_primary(head),
        )
    return result


def draft_figures(
    data: PlannedData, found: Recognition, drafts: Recognition, tokenizer: Tokenizer, how: dict[str, Any]
) -> dict[str, Any]:
    """Error rates of a set before refinement, and the share of words that refinement changed (`changed`)."""
    counts = scored(data, drafts, tokenizer, **how)
    changed = share_changed((each.text, found.transcripts[row].text) for row, each in drafts.transcripts.items())
    return {"wer": counts["wer"], "cer": counts["cer"], "changed": changed}


def share_below(transcripts: Iterable[Transcript], probability: float) -> float | None:
    """Returns the share of labels whose probability is below a limit; None without labels."""
    log_probs = [each for transcript in transcripts for each in transcript.log_probs]
    return float(np.mean(np.exp(log_probs) < probability)) if log_probs else None


def share_changed(pairs: Iterable[tuple[str, str]]) -> float | None:
    """Returns the number of word edits between the texts of all pairs over the words of the first texts.

    None: the first texts have no words.
    """
    edits = [word_errors(before, after) for before, after in pairs]
    num_words = sum(each.words for each in edits)
    num_edits = sum(each.substitutions + each.deletions + each.insertions for each in edits)
    return num_edits / num_words if num_words else None


def own_rows(data: PlannedData, of_set: Utterances, job: Job | None) -> tuple[PlannedData, Int[np.ndarray, " N"]]:
    """The recordings of a job in the shapes of the whole set, and their rows in it.

    The first job has the utterances that the plan rejects.
    """
    if job is None:
        return data, np.arange(len(data.index))
    rows = data.index.rows_of(of_set.rows[job.rows(len(of_set))])
    own = part_of(data, rows)
    return replace(own, rejections=data.rejections) if job.number == 0 else own, rows


def write_predictions(out: Path, findings: Mapping[str, Findings], named: Mapping[str, str]) -> None:
    """Writes a line of JSON for each utterance of all sets."""
    with open_text(out) as file:
        for manifest, found in findings.items():
            lines = ({"set": manifest, **named} | line for line in found["lines"])
            file.writelines(map(json_line, lines))


def merge_jobs(paths: Sequence[Path], out: Path) -> None:
    """Joins the findings of all jobs of an evaluation: prints and writes what one job for all would.

    Raises:
        RunError: If an utterance could not be evaluated.
    """
    parts = [json.loads(read_text(path)) for path in paths]
    results = []
    for of_run in zip(*(part["runs"] for part in parts), strict=True):
        result = {name: value for name, value in of_run[0].items() if name not in ("sets", "predictions", "named")}
        names, how = list(of_run[0]["sets"]), {name: result[name] for name in ("normaliser", "alignment")}
        findings = {name: joined_findings([each["sets"][name] for each in of_run]) for name in names}
        if of_run[0]["predictions"]:
            write_predictions(Path(of_run[0]["predictions"]), findings, of_run[0]["named"])
        result["sets"] = {
            name: figures_of(findings[name], num_worst=parts[0]["worst"], **how)
            | {key: of_run[0]["sets"][name][key] for key in ("max_duration_s", "removed", "round_trip")}
            for name in names
        }
        results.append(result)
    conclude(results, by=parts[0]["by"], out=out)


def recognises(run: Path) -> bool:
    """Whether a run has a recognising head; True if the run does not exist, which `load` reports."""
    path = run_and_checkpoint(run.resolve())[0] / EXPERIMENT
    return not path.exists() or load_experiment(path).model.recognises


def check_options_of_losses(run: Path, options: EvaluateOptions, flags: Sequence[str]) -> None:
    """Checks the options for a run without a recognising head.

    Raises:
        UserError: If an option or a flag requires recognised texts.
    """
    given = given_flags(options, "predictions", "log_probs", "calibrate", "latency", "head")
    if given := given or list(flags[:1]):
        raise UserError(f"{run} has no head that recognises texts (it is only pre-trained): remove {given[0]}")


def evaluate_losses(trained: Trained, utterances: Mapping[str, Utterances]) -> dict[str, Any]:
    """Computes the losses of weights without a recognising head; returns a description and the losses of each set."""
    losses, sets = trained.losses(), {}
    for manifest, of_set in utterances.items():
        data = trained.plan(of_set)
        if message := about_long(data):
            print(f"{manifest}: {message}", file=sys.stderr)
        figures, rejected, differing = measure(losses, trained.variables, data)
        sets[manifest] = figures
        print_differing(differing)
        for each in rejected:
            print(f"rejected {each.line}", file=sys.stderr)
    return trained.description() | {"sets": sets}


def check(options: EvaluateOptions) -> None:
    """Checks the options.

    Raises:
        UserError: If the normaliser is unknown, a set, a run or a head is given twice, or options cannot be combined.
    """
    if options.are_several and options.log_probs:
        raise UserError(
            f"--log-probs with {len(options.runs)} runs and {len(options.heads)} heads: expected one run and one head; "
            "call the command once for each"
        )
    if len(set(options.head)) < len(options.head):
        raise UserError(f"--head {' '.join(options.head)}: a head is given twice; expected each head once")
    check_normaliser(options.normaliser)
    if len(set(options.data)) < len(options.data):
        raise UserError(f"--data {' '.join(options.data)}: a set is given twice; expected each set once")
    names = [run.resolve() for run in options.runs]
    if len(set(names)) < len(names):
        raise UserError(f"{' '.join(map(str, options.runs))}: a run is given twice; expected each run once")
    folders = {run_and_checkpoint(run)[0] for run in names}
    if options.predictions and len({folder.name for folder in folders}) < len(folders):
        raise UserError(
            f"--predictions with runs of the same name ({', '.join(map(str, options.runs))}): their files would have "
            "the same name; rename a run, or call the command once for each"
        )
    if not options.own_job:
        return
    if not options.json:
        raise UserError(f"--job {options.job} without --json OUT: expected a file, to which the jobs are joined")
    if given := given_flags(options, "calibrate", "log_probs", "latency"):
        raise UserError(f"{given[0]} with --job: expected one job for all recordings")
    if others := [str(run) for run in options.runs if not recognises(run)]:
        raise UserError(f"--job with {', '.join(others)}: losses need whole batches; expected one job without --job")
