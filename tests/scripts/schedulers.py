"""Stand-ins for Slurm and Kubernetes on one machine. They start the processes of a run, disturb and restart them.

`python -m tests.scripts.schedulers OPTION … COMMAND …` is srun; `Slurm` puts it on the PATH of a batch script.
A disturbance is [update, name of a signal, numbers of processes]: after this update, the processes receive the signal.
"""

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
SLURM = {"--kill-on-bad-exit", "--wait"}
WAIT_S = 20
"""Seconds until the other processes are killed after one has ended, in place of --wait and of the grace period."""


def free_port(first=0, last=0):
    for port in range(first, last + 1):
        with socket.socket() as made, suppress(OSError):
            made.bind(("127.0.0.1", port))
            return made.getsockname()[1]
    raise OSError("no port is free")


def last_update(events):
    with suppress(FileNotFoundError):
        lines = [json.loads(line) for line in events.read_text().splitlines() if '"train_step"' in line]
        return max((line["data"]["update"] for line in lines), default=0)
    return 0


def together(command, environments, folder, log):
    """Runs processes until all have ended. Returns their exit codes, as in a shell, in the order of their ends.

    Args:
        command: Command of all processes.
        environments: Environment of each process.
        folder: Folder with `run`, the folder of the training run, and `disturbances`, whose first line is used.
        log: File for their output.
    """
    first, *others = (folder / "disturbances").read_text().splitlines() or ["[]"]
    (folder / "disturbances").write_text("\n".join(others))
    update, name, numbers = json.loads(first) or (float("inf"), "SIGTERM", ())
    jobs = [subprocess.Popen(command, env=each, stdout=log, stderr=log, cwd=ROOT) for each in environments]
    try:
        ended = _wait(jobs, lambda: last_update(folder / "run" / "events.jsonl") >= update, name, numbers)
    finally:
        for job in jobs:
            job.kill()
    return [code if code >= 0 else 128 - code for code in (job.returncode for job in ended)]


def _wait(jobs, is_due, name, numbers):
    """Sends the signal when it is due, and waits for all jobs. Returns them in the order of their ends."""
    ended, deadline, is_sent = [], float("inf"), False
    while len(ended) < len(jobs):
        time.sleep(0.01)
        if not is_sent and is_due():
            is_sent = True
            for number in numbers:
                jobs[number].send_signal(signal.Signals[name])
        ended += [job for job in jobs if job.poll() is not None and job not in ended]
        deadline = min(deadline, time.monotonic() + WAIT_S) if ended else deadline
        for job in jobs:
            if time.monotonic() > deadline and job.poll() is None:
                job.kill()
    return ended


class Slurm:
    """Runs a batch script, again while it asks `scontrol` to requeue its job."""

    def __init__(self, folder, processes):
        self.folder = folder
        for name, command in (
            ("srun", f'exec {sys.executable} -m tests.scripts.schedulers "$@"'),
            ("scontrol", f'echo "$@" >> {folder}/requeued'),
        ):
            (folder / "bin").mkdir(exist_ok=True)
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{command}\n")
            (folder / "bin" / name).chmod(0o755)
        # JAX derives the port from the number of the job.
        job = free_port(65536 - 2**12, 65535) - (65536 - 2**12)
        self.environment = {
            "PATH": f"{folder}/bin:{os.environ['PATH']}", "PYTHON": sys.executable, "PYTHONPATH": str(ROOT),
            "SLURM_JOB_ID": str(job), "SLURM_NTASKS": str(processes), "FOLDER": str(folder), "REQUEUE_AFTER_S": "0",
        }  # fmt: skip

    def run(self, script, *arguments, env):
        """Returns the exit codes of the script."""
        codes, requests = [], self.folder / "requeued"
        while not codes or (requests.exists() and len(requests.read_text().splitlines()) == len(codes)):
            done = subprocess.run(["bash", script, *arguments], env=env | self.environment, cwd=ROOT, check=False)
            codes.append(done.returncode)
        return codes


def srun(*words):
    options = list(itertools.takewhile(lambda word: word.startswith("--"), words))
    if unknown := {option.partition("=")[0] for option in options} - SLURM:
        sys.exit(f"srun: unrecognized option {unknown}")
    folder, processes = Path(os.environ["FOLDER"]), int(os.environ["SLURM_NTASKS"])
    step = {"NODELIST": "127.0.0.1", "NUM_NODES": "1", "NUM_TASKS": str(processes), "TASKS_PER_NODE": str(processes)}
    environments = [
        os.environ
        | {f"SLURM_STEP_{name}": value for name, value in step.items()}
        | {"SLURM_PROCID": str(number), "SLURM_LOCALID": str(number)}
        for number in range(processes)
    ]
    with open(folder / "log", "a", encoding="utf-8") as log:
        sys.exit(max(together(words[len(options) :], environments, folder, log)))


class Kubernetes:
    """Runs the pods of a JobSet, and follows its policies when one of them fails."""

    def __init__(self, folder, manifest):
        self.folder = folder
        self.spec = yaml.safe_load(manifest.read_text())["spec"]
        self.job = self.spec["replicatedJobs"][0]["template"]["spec"]
        self.container = self.job["template"]["spec"]["containers"][0]
        self.port = free_port()

    def environment(self, index):
        values = {}
        for entry in self.container["env"]:
            if "valueFrom" in entry:
                field = entry["valueFrom"]["fieldRef"]["fieldPath"]
                assert field == "metadata.annotations['jobset.sigs.k8s.io/coordinator']"
                assert self.spec["coordinator"]
                values[entry["name"]] = "127.0.0.1"
            else:
                values[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], entry["value"])
        host, _, port = values["JAX_COORDINATOR_ADDRESS"].partition(":")
        assert int(port) == self.container["ports"][0]["containerPort"]
        values |= {"JAX_COORDINATOR_ADDRESS": f"{host}:{self.port}", "XDG_CACHE_HOME": str(self.folder / "cache")}
        return {"JOB_COMPLETION_INDEX": str(index), "KUBERNETES_SERVICE_HOST": "10.0.0.1"} | values

    def action(self, code):
        """Returns what happens after a pod has failed with this exit code."""
        rules = (
            rule["onExitCodes"]["values"] for rule in self.job["podFailurePolicy"]["rules"] if "onExitCodes" in rule
        )
        reason = "PodFailurePolicy" if any(code in values for values in rules) else "BackoffLimitExceeded"
        message = f"Container train for pod default/train failed with exit code {code} matching FailJob rule at index 0"
        for rule in self.spec["failurePolicy"]["rules"]:
            patterns = rule.get("onJobFailureMessagePatterns", [""])
            if reason in rule["onJobFailureReasons"] and any(re.search(pattern, message) for pattern in patterns):
                return rule["action"]
        return "RestartJobSet"

    def run(self, *arguments, env):
        """Returns the actions until the run has ended. The arguments are in place of those of the manifest."""
        actions = []
        pods = [env | self.environment(index) for index in range(self.job["parallelism"])]
        command = [sys.executable, "-m", self.container["args"][0], *arguments]
        while actions.count("RestartJobSet") <= self.spec["failurePolicy"]["maxRestarts"]:
            with open(self.folder / "log", "a", encoding="utf-8") as log:
                failed = [code for code in together(command, pods, self.folder, log) if code]
            if not failed:
                return actions
            actions.append(self.action(failed[0]))
            if actions[-1] == "FailJobSet":
                return actions
        return [*actions, "too many restarts"]


if __name__ == "__main__":
    srun(*sys.argv[1:])
