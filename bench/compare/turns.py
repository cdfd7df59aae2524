"""Programs take turns: every round measures each once, the order rotated, so that a machine that changes its
speed changes it for all, and figures are compared within their round."""

import math

from . import Failure
from .process import Others, wait_for_quiet


class Missing(Exception):
    """A round lacks what a side should have measured."""

    def __init__(self, side):
        super().__init__(side)
        self.side = side


class Round(dict):
    """Side -> what it measured."""

    def __missing__(self, side):
        raise Missing(side)


TRIES = 2


class Turns:
    """Rounds of one line; of a side that fails the sentence is kept, and after two failures it is given up."""

    def __init__(self, sides):
        self.sides = dict(sides)
        self.rounds, self.errors, self.others = [], {}, []
        self.failures = dict.fromkeys(self.sides, 0)
        self.interrupted = False

    def play(self, runs, pids=lambda: (), progress=lambda text: None, wait=0):
        """wait: seconds at most that a round waits for other programs to end."""
        names = list(self.sides)
        for run in range(runs):
            current = Round()
            self.rounds.append(current)
            try:
                wait_for_quiet(wait, pids())
            except KeyboardInterrupt:
                self.interrupted = True
                return self
            for i in range(len(names)):
                name = names[(run + i) % len(names)]
                if self.failures[name] >= TRIES:
                    continue
                progress(f"round {run + 1} of {runs}: {name}")
                try:
                    with Others(pids()) as others:
                        current[name] = self.sides[name](run)
                except Failure as failure:
                    self.errors[name] = str(failure)
                    self.failures[name] += 1
                except KeyboardInterrupt:
                    self.interrupted = True
                    return self
                if others.cores is not None:
                    self.others.append(others.cores)
        return self

    def values(self, figure):
        """The figure of every round that has what it needs; a Failure says why there is none."""
        found, missing = [], None
        for current in self.rounds:
            try:
                value = float(figure(current))
            except Missing as lack:
                missing = lack.side
                continue
            if math.isfinite(value):  # an answer of one token has no speed
                found.append(value)
        if found:
            return found
        if missing in self.errors:
            raise Failure(self.errors[missing])
        raise Failure("interrupted" if self.interrupted or missing is None else f"{missing} was not measured")
