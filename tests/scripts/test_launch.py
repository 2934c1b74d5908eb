"""Files that start runs on clusters: linters and schemas, commands and flags that they name, and runs under stand-ins
of the schedulers, which are disturbed and end with the arrays of an undisturbed run.

Not checked without a cluster: the rules that Kubernetes and JobSet state as expressions, quotas, storage classes, the
images of the registry, options of sbatch, and TPUs.
"""

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from asr_jax.cli.command_line import flags_of_experiment, load_config
from asr_jax.cli.train import TrainOptions
from asr_jax.core.flags import flags_of, names_of
from tests.forked import ROOT, made_corpus, with_devices
from tests.scripts.schedulers import Kubernetes, Slurm, free_port, last_update
from tests.training.arrays import contents

MANIFESTS = sorted((ROOT / "deploy").rglob("*.yaml"))
JOB_SETS = [path for path in MANIFESTS if "kind: JobSet" in path.read_text()]
UPDATES = 40


def relative(path):
    return str(path.relative_to(ROOT))


def checked(tool, *arguments, extra):
    """Runs a checker of the environment of the tests."""
    command = shutil.which(tool, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not command:
        pytest.skip(f"{tool} is not installed: it comes with the extra {extra}")
    done = subprocess.run([command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("script", sorted((ROOT / "scripts").glob("*.sh")), ids=lambda path: path.name)
def test_shellcheck(script):
    checked("shellcheck", script, extra="dev")


def test_yamllint():
    checked("yamllint", "--strict", "deploy", ".github", ".pre-commit-config.yaml", "CITATION.cff", extra="dev")


def test_hadolint():
    checked("hadolint", "Dockerfile", extra="launch")


@pytest.mark.parametrize("path", MANIFESTS, ids=relative)
def test_schemas_of_kubernetes(path, tmp_path):
    """JobSets are no part of Kubernetes; the jobs in them are."""
    manifest = yaml.safe_load(path.read_text())
    if manifest["kind"] == "JobSet":
        template = manifest["spec"]["replicatedJobs"][0]["template"]
        manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}} | template
    (tmp_path / "it.yaml").write_text(yaml.safe_dump(manifest))
    checked("kubernetes-validate", "--strict", "--quiet", str(tmp_path / "it.yaml"), extra="launch")


@pytest.mark.parametrize("path", JOB_SETS, ids=relative)
def test_fields_of_job_sets(path):
    """A field that the schema lacks is lost, and a value of another type is an error."""
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="it comes with the extra launch")
    manifest = yaml.safe_load(path.read_text())
    assert models.JobsetV1alpha2JobSet.from_dict(manifest).to_dict() == manifest


def read(name):
    return (ROOT / name).read_text()


def docker(instruction):
    (found,) = re.findall(rf"^{instruction} (.*)$", read("Dockerfile"), re.MULTILINE)
    return found


def container(path):
    (job,) = yaml.safe_load(path.read_text())["spec"]["replicatedJobs"]
    (found,) = job["template"]["spec"]["template"]["spec"]["containers"]
    return found


def uses():
    """Yields the commands of this package that files run: the file, and the words after python."""
    for path in JOB_SETS:
        yield relative(path), ["-m", *container(path)["args"]]
    yield "Dockerfile", [*json.loads(docker("ENTRYPOINT"))[1:], *json.loads(docker("CMD"))]
    (module,) = re.findall(r'"\$python" -m (\S+) "\$@"', read("scripts/slurm.sh"))
    for file in ("scripts/slurm.sh", "docs/slurm.md", "docs/mpirun.md", "docs/container.md"):
        for line in re.findall(r"(?:scripts/slurm\.sh|asr_jax\.train) (--config .*)", read(file)):
            yield file, ["-m", module, *shlex.split(line)]


@pytest.mark.parametrize(("file", "words"), [pytest.param(*use, id=use[0]) for use in uses()])
def test_commands_and_flags_exist(file, words):
    option, module, *arguments = words
    assert option == "-m"
    assert importlib.util.find_spec(module)
    known = {"--help", "--config", *names_of(flags_of(TrainOptions))}
    if "--config" in arguments:
        experiment = load_config(str(ROOT / arguments[arguments.index("--config") + 1]))
        known |= {*names_of(flags_of_experiment(experiment))}
    assert {word for word in arguments if word.startswith("--")} <= known


def test_the_image_has_what_the_dockerfile_copies():
    allowed = {line.removeprefix("!") for line in read(".dockerignore").splitlines() if line[0] == "!"}
    lines = re.findall(r"^COPY (.*) \S+$", read("Dockerfile"), re.MULTILINE)
    copied = [name for line in lines for name in line.split()]
    assert set(copied) == allowed
    assert all((ROOT / name).exists() for name in copied)
    extras = re.findall(r"^([\w-]+) = \[", read("pyproject.toml"), re.MULTILINE)
    used = re.findall(r"EXTRAS=([\w,]+)", read("Dockerfile"))
    assert len(used) == 3
    assert {extra for each in used for extra in each.split(",")} <= set(extras)


@pytest.mark.parametrize("path", JOB_SETS, ids=relative)
def test_job_sets_have_one_number_of_processes(path):
    spec = yaml.safe_load(path.read_text())["spec"]
    (job,) = spec["replicatedJobs"]
    template = job["template"]["spec"]
    assert (job["replicas"], template["completions"], template["backoffLimit"]) == (1, template["parallelism"], 0)
    env = {entry["name"]: entry.get("value") for entry in container(path)["env"]}
    if "JAX_COORDINATOR_ADDRESS" in env:
        assert int(env["JAX_NUM_PROCESSES"]) == template["parallelism"]


@pytest.mark.parametrize(
    ("code", "restarts", "requeued"), [(75, 0, True), (75, 3, True), (75, 4, False), (137, 0, False), (2, 0, False)]
)
def test_the_job_is_requeued_a_limited_number_of_times(code, restarts, requeued, tmp_path):
    for name, line in {"srun": f"exit {code}", "scontrol": f'echo "$@" > {tmp_path}/requeued'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    given = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "MAX_REQUEUES": "4"}
    given |= {"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}
    done = subprocess.run(["bash", ROOT / "scripts/slurm.sh"], env=given, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert (tmp_path / "requeued").exists() == requeued
    assert ("not requeued after 4 times" in done.stderr) == (restarts == 4)


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    manifests = made_corpus(tmp_path_factory.mktemp("corpus") / "made")
    sets = ["--data.train", manifests / "train.jsonl", "--data.validation", manifests / "validation.jsonl"]
    lengths = ["--training.num-updates", UPDATES, "--training.validation.every", 10, "--training.log-every", 1]
    return [*map(str, ["--config", ROOT / "tests/resume_config.py", *sets, *lengths, "--run-dir"])]


def slurm(folder, arguments, *disturbances):
    """Returns the exit codes of scripts/slurm.sh with four processes, and what they print."""
    (folder / "disturbances").write_text("\n".join(map(json.dumps, disturbances)))
    codes = Slurm(folder, 4).run("scripts/slurm.sh", *arguments, folder / "run", env=with_devices(1))
    return codes, (folder / "log").read_text()


@pytest.fixture(scope="module")
def undisturbed(arguments, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    codes, output = slurm(folder, arguments)
    assert codes == [0], output[-3000:]
    return folder / "run"


def assert_same(folder, undisturbed):
    expected, found = contents(undisturbed, UPDATES), contents(folder, UPDATES)
    assert found.keys() == expected.keys()
    assert all(leaf.tobytes() == expected[path].tobytes() for path, leaf in found.items())


@pytest.mark.slow
def test_slurm_requeues_a_run_that_is_stopped_and_killed(arguments, undisturbed, tmp_path):
    codes, output = slurm(tmp_path, arguments, [6, "SIGTERM", [0, 1, 2, 3]], [24, "SIGKILL", [2]])
    assert codes == [75, 137, 0], output[-3000:]
    assert output.count("resumed at update") == 2
    assert_same(tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_slurm_requeues_no_run_that_cannot_begin(arguments, tmp_path):
    codes, output = slurm(tmp_path, [*arguments, "--training.log-every", "0"])
    assert codes == [2], output[-3000:]


@pytest.mark.slow
def test_kubernetes_restarts_a_run_that_is_preempted_and_killed(arguments, undisturbed, tmp_path):
    disturbances = [6, "SIGTERM", [3]], [24, "SIGKILL", [0]]
    (tmp_path / "disturbances").write_text("\n".join(map(json.dumps, disturbances)))
    jobs = Kubernetes(tmp_path, ROOT / "deploy/kubernetes/train.yaml")
    actions = jobs.run(*arguments, tmp_path / "run", env=with_devices(1))
    assert actions == ["RestartJobSetAndIgnoreMaxRestarts", "RestartJobSet"], (tmp_path / "log").read_text()[-3000:]
    assert jobs.action(2) == "FailJobSet"
    assert_same(tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_mpirun_forwards_a_signal_and_the_same_command_goes_on(arguments, undisturbed, tmp_path):
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not mpirun:
        pytest.skip("mpirun is not installed: it comes with the extra launch")
    (options,) = re.findall(r"^mpirun --host \S+ (.*) -x JAX_COORDINATOR_ADDRESS", read("docs/mpirun.md"), re.MULTILINE)
    address = f"JAX_COORDINATOR_ADDRESS=127.0.0.1:{free_port()}"
    command = [mpirun, "-n", "4", "--oversubscribe", *shlex.split(options), "-x", address]
    command += [sys.executable, "-m", "asr_jax.train", *arguments, tmp_path / "run"]
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    outputs = []
    for code in (75, 0):
        job = subprocess.Popen(command, env=with_devices(1, **as_root), cwd=ROOT, **pipes)
        try:
            while code and last_update(tmp_path / "run" / "events.jsonl") < 6:
                assert job.poll() is None, job.communicate()
                time.sleep(0.01)
            if code:
                job.send_signal(signal.SIGUSR1)
            outputs.append(job.communicate(timeout=240)[0])
        finally:
            job.kill()
        assert job.returncode == code, outputs[-1][-3000:]
    assert "resumed at update" in outputs[1]
    assert_same(tmp_path / "run", undisturbed)
