"""How many tokens to draft at which batch size: the engine's schedule, and its rules.

A schedule is a list of inclusive ranges [first batch size, last, tokens]; the engine
carries a range's tokens on over gaps and past the last one. It applies its rules in its
child only, after the weights are loaded, so they are applied here first. Source:
`vllm/v1/spec_decode/dynamic/utils.py`.
"""

import re
from itertools import pairwise

from worker import grammar
from worker.grammar import Value

# Methods whose proposer asserts a fixed count: a schedule kills the engine at its first step.
FIXED_COUNT = frozenset({"suffix", "medusa", "ngram_gpu", "extract_hidden_states"})

_RANGE = re.compile(r"(?P<first>\d+)\s*(?:(?P<dash>-)\s*(?P<last>\d*))?\s*:\s*(?P<tokens>\d+)")


def parse(given: str) -> Value:
    """A schedule as JSON, or as `1-16:5,17-64:3,65-:0`; ValueError with a clause otherwise."""
    schedule = grammar.json_list(given) if "[" in given else [_range(p) for p in given.split(",")]
    if wrong := fault(schedule):
        raise ValueError(wrong)
    return schedule


def _range(text: str) -> Value:
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"has a part {text.strip()!r} that is not like 1-16:5 or 17-:0")
    first = int(match["first"])
    return [first, int(match["last"] or first), int(match["tokens"])]


def cut_off(most: int, tokens: int, max_num_seqs: int | None) -> list[Value]:
    """Draft `tokens` up to `most` requests in a step, and none above."""
    schedule: list[Value] = [[1, most, tokens]]
    if max_num_seqs is None or max_num_seqs > most:
        schedule.append([most + 1, max(max_num_seqs or 0, most + 1), 0])
    return schedule


def fault(schedule: Value) -> str | None:
    """What is wrong with a schedule, as a clause, or None."""
    entries = schedule if isinstance(schedule, list) else []
    ranges = sorted(
        tuple(part for part in entry if type(part) is int)
        for entry in entries
        if isinstance(entry, list)
    )
    if not ranges or len(ranges) != len(entries) or any(len(part) != 3 for part in ranges):
        return "is not a list of whole numbers [first batch size, last, count]"
    if any(last < first or count < 0 for first, last, count in ranges):
        return "has a range that ends before it begins, or a count below 0"
    if ranges[0][0] != 1:
        return "does not begin at a batch size of 1"
    overlap = any(later[0] <= earlier[1] for earlier, later in pairwise(ranges))
    return "has ranges that overlap" if overlap else None
