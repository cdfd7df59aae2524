"""Commands with a time limit, whose failures are one sentence; and what other programs did meanwhile."""

import json
import os
import resource
import shlex
import signal
import subprocess
import time

from . import Failure

TICKS = os.sysconf("SC_CLK_TCK")


def terminate(child):
    """Ends a child that leads its own group, with all it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            pass
        try:
            child.wait(timeout=5)
            break
        except subprocess.TimeoutExpired:
            continue


def run(command, timeout):
    """The standard output of a command. On an interrupt or at the time limit nothing of it is left running."""
    command = [str(part) for part in command]
    shown = shlex.join(command)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True, errors="replace", start_new_session=True)
    except OSError as error:
        raise Failure(f"{shown} could not be started: {error.strerror}") from None
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise Failure(f"{shown} took longer than {timeout:.0f} s") from None
    finally:
        if child.returncode is None:
            terminate(child)
    if child.returncode:
        said = [line for line in err.splitlines() if line.strip()]
        raise Failure(f"{shown} ended with {child.returncode}: {said[-1].strip()[:300] if said else 'it said nothing'}")
    return out


def run_json(command, timeout):
    out = run(command, timeout)
    try:
        return json.loads(out)
    except ValueError:
        raise Failure(f"{shlex.join(map(str, command))} did not print JSON but {out[:80]!r}") from None


def busy_seconds():
    """Processor time of the whole machine, or None where the system does not say."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            fields = [int(x) for x in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return (sum(fields) - fields[3] - fields[4]) / TICKS  # less idle and waiting for a disk


def process_seconds(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def wait_for_quiet(seconds, pids=(), most=0.25):
    """Waits, at most so long, until other programs use less than a part of a core."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with Others(pids) as others:
            time.sleep(0.5)
        if others.cores is None or others.cores < most:
            return


class Others:
    """with Others(pids) as o: ...; o.cores: cores that other programs used meanwhile. pids: of our own programs
    that go on running."""

    def __init__(self, pids=()):
        self.pids, self.cores = tuple(pids), None

    def _ours(self):
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(u.ru_utime + u.ru_stime for u in used) + sum(process_seconds(pid) for pid in self.pids)

    def __enter__(self):
        self.begin, self.busy, self.ours = time.monotonic(), busy_seconds(), self._ours()
        return self

    def __exit__(self, *exception):
        busy, took = busy_seconds(), time.monotonic() - self.begin
        if busy is not None and self.busy is not None and took > 0.05:
            self.cores = max(0.0, (busy - self.busy - (self._ours() - self.ours)) / took)
