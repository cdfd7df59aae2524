"""Medians of paired ratios, and how sure they are."""

import random
import statistics

DRAWS = 2000


def interval(values, draws=DRAWS):
    """The median's bootstrap 95 % interval. The same values give the same interval."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def summary(values):
    """What the tables and the JSON show of repeated values."""
    low, high = interval(values)
    return {"median": statistics.median(values), "low": low, "high": high, "n": len(values)}


def verdict(ratio, goal):
    """Whether a summary of ratios reaches ("at least" or "at most", bound): by its median; "sure" says whether
    the whole interval lies on the median's side of the bound."""
    word, bound = goal
    if word == "at least":
        return {"reached": ratio["median"] >= bound,
                "sure": ratio["low"] >= bound or ratio["high"] < bound}
    return {"reached": ratio["median"] <= bound, "sure": ratio["high"] <= bound or ratio["low"] > bound}
