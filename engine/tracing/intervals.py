"""Arithmetic of sets of intervals: how long two things happened at the same time, up to any moment.

A set is two sorted arrays; the length it covers up to a time is a piecewise linear function, so the overlap
of thousands of windows with thousands of spans is a few vector operations instead of a nested loop.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]


class Intervals:
    """Disjoint, sorted, closed intervals."""

    def __init__(self, begins: Times, ends: Times) -> None:
        """Use `union`."""
        self.begins, self.ends = begins, ends
        lengths = np.cumsum(ends - begins)
        self._edges = np.column_stack((begins, ends)).ravel()
        self._covered = np.column_stack((lengths - (ends - begins), lengths)).ravel()

    @property
    def length(self) -> float:
        return float((self.ends - self.begins).sum())

    def covered(self, until: Times) -> Times:
        """Length covered before each time."""
        if not self._edges.size:
            return np.zeros_like(until)
        return np.interp(until, self._edges, self._covered)

    def within(self, edges: Times) -> Times:
        """Length covered between each pair of neighbouring edges."""
        return np.diff(self.covered(edges))

    def common(self, other: Intervals) -> Intervals:
        """Times that are in both."""
        edges = np.unique(np.concatenate((self._edges, other._edges)))
        if edges.size < 2:
            return union([])
        middles = (edges[1:] + edges[:-1]) / 2
        both = self._contains(middles) & other._contains(middles)
        return Intervals(edges[:-1][both], edges[1:][both])

    def without(self, other: Intervals) -> Intervals:
        """Times that are in this set and not in the other."""
        edges = np.unique(np.concatenate((self._edges, other._edges)))
        if edges.size < 2:
            return union([])
        middles = (edges[1:] + edges[:-1]) / 2
        rest = self._contains(middles) & ~other._contains(middles)
        return Intervals(edges[:-1][rest], edges[1:][rest])

    def _contains(self, times: Times) -> npt.NDArray[np.bool_]:
        if not self.begins.size:
            return np.zeros(times.shape, dtype=np.bool_)
        place = np.searchsorted(self.begins, times, side="right") - 1
        inside: npt.NDArray[np.bool_] = (place >= 0) & (times <= self.ends[np.maximum(place, 0)])
        return inside


def union(intervals: Iterable[tuple[float, float]]) -> Intervals:
    """The set of times in any of the intervals; those of no length are left out."""
    pairs = np.array(sorted(pair for pair in intervals if pair[1] > pair[0]), dtype=np.float64).reshape(-1, 2)
    if not pairs.size:
        empty = np.empty(0, dtype=np.float64)
        return Intervals(empty, empty)
    reach = np.maximum.accumulate(pairs[:, 1])
    starts = np.concatenate(([True], pairs[1:, 0] > reach[:-1]))
    last = np.concatenate((np.flatnonzero(starts)[1:] - 1, [len(pairs) - 1]))
    return Intervals(pairs[starts, 0], reach[last])
