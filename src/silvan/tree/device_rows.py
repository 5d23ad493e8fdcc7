"""The rows of a table on a graphics card, sorted into the nodes of some trees."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from silvan.tree import device_kernels as kernels
from silvan.tree.gain import Rule
from silvan.tree.grow import Frontier, Plan
from silvan.tree.level import fill_bases, place_level, sample_level
from silvan.tree.node_rows import Binned
from silvan.tree.rows import TreeRows, find_counted
from silvan.tree.sampling import DRAW_STEPS, TREES_A_HASH, RowSampling, cut_offsets, sampling_limits
from silvan.tree.split import Splits
from silvan.util.device import DeviceError, cuda, failures_as_such, free_bytes

_STAGING_BYTES = 1 << 28  # so much of a table is sent to the device at once
_MOST_ROWS_A_BLOCK = 1 << 14
_FULL_GRID = 4096  # blocks that keep a large device busy
_LEVEL_BYTES = 1 << 28  # histograms of a level that take more are counted in several parts
_FEW_ROWS, _MANY_NODES = 512, 4096  # once that many nodes have fewer rows on average, the processor goes on
_ROW_BYTES = 8  # of a row in a tree: its place in both lists
_SPARE = 1 << 28  # memory left to the driver, compiled kernels and a level's histograms


@dataclass
class DeviceTable:
    """A table on the device: every row's codes, its target, and the key by which trees sample it."""

    table: Binned
    rows: object
    row_bytes: int
    target_at: int
    lows: np.ndarray  # int64, what a target's numbers are kept above; none where classes are counted
    pieces: int  # of 16 bits, of each of these numbers
    keys: tuple[object, object, object]

    @classmethod
    def of(cls, table: Binned) -> "DeviceTable":
        """Send a table to the device."""
        with failures_as_such():
            return _send(table)

    def sample(self, key: np.ndarray, trees: range, draw: RowSampling, threads: int) -> "DeviceRows":
        """Return the rows of consecutive trees at their roots; ``threads`` of the processor choose splits."""
        return DeviceRows(self, key, trees, draw, threads)

    def batches(self, trees: range, draw: RowSampling) -> list[range]:
        """Return consecutive trees in batches whose rows fit the device together."""
        with failures_as_such():
            free = free_bytes() - _SPARE - 2 * _LEVEL_BYTES
        each = _ROW_BYTES * len(self.table) * sampling_limits(draw)[0] / DRAW_STEPS
        most = int(free / (1.01 * each + 1))
        if most < 1:
            raise DeviceError("the rows of a tree do not fit the memory of the graphics card")
        most = most // TREES_A_HASH * TREES_A_HASH or most
        return [trees[first : first + most] for first in range(0, len(trees), most)]


def _send(table: Binned) -> DeviceTable:
    device, n, width = cuda(), *table.codes.shape
    lows, pieces, n_pieces = np.zeros(0, np.int64), 1, 1
    if table.target.ndim == 2:
        numbers = table.target[:, 1:]
        lows = numbers.min(axis=0) if n else np.zeros(numbers.shape[1], np.int64)
        highest = int((numbers.max(axis=0) - lows).max()) if n else 0
        pieces = -(-max(highest.bit_length(), 1) // 16)
        n_pieces = numbers.shape[1] * pieces
    target_at = width + width % 2
    row_bytes = -(-(target_at + 2 * n_pieces) // 32) * 32
    if n * row_bytes + _SPARE > free_bytes():
        raise DeviceError("the table does not fit the memory of the graphics card")
    rows = device.device_array(max(n * row_bytes, 1), np.uint8)
    step = max(1, _STAGING_BYTES // (width + 2 * n_pieces))
    for first in range(0, n, step):
        codes = np.ascontiguousarray(table.codes[first : first + step]).reshape(-1)
        target = table.target[first : first + step]
        if target.ndim == 1:
            words = target.astype(np.uint16).reshape(-1, 1)
        else:
            octets = (target[:, 1:] - lows).astype("<u8").view("<u2").reshape(len(target), len(lows), 4)
            words = np.ascontiguousarray(octets[:, :, :pieces]).reshape(len(target), n_pieces)
        grid = -(-len(words) // kernels.THREADS)
        sent = device.to_device(codes), device.to_device(words)
        kernels.pack_rows[grid, kernels.THREADS](*sent, first, width, target_at, rows, row_bytes)
        device.synchronize()
    keys, places, sizes = table.row_keys, np.zeros(0, np.uint32), np.zeros(0, np.uint32)
    if keys.dtype.names is not None:
        places, sizes = keys["place"].astype(np.uint32), keys["rows"].astype(np.uint32)
        keys = np.ascontiguousarray(keys["person"])
    sent_keys = device.to_device(keys), device.to_device(places), device.to_device(sizes)
    return DeviceTable(table, rows, row_bytes, target_at, lows, pieces, sent_keys)


class DeviceRows:
    """The rows of some trees while they grow, as ``TreeRows`` has them in memory.

    A node's rows are consecutive in one of two lists on the device: sorting a node moves its rows to the other.
    """

    def __init__(
        self, on_device: DeviceTable, key: np.ndarray, trees: range, draw: RowSampling, threads: int = 1
    ) -> None:
        """Sample the rows of consecutive trees; ``threads`` of the processor choose splits."""
        self.threads = threads
        self.rest: TreeRows | None = None
        self.on_device, self.table = on_device, on_device.table
        with failures_as_such():
            self.starts, self.stops, self.order, self.other = _sample(on_device, key, trees, draw)
        self.turned = np.zeros(len(trees), np.uint8)
        self.offsets = cut_offsets(np.arange(trees.start, trees.stop))

    @property
    def n_nodes(self) -> int:
        """How many nodes there are so far."""
        return len(self.starts)

    def find(self, frontier: Frontier, plan: Plan, rule: Rule, tie_key: np.ndarray) -> Splits:
        """Decide every open node with the rows at hand; ``tie_key`` decides between equal gains."""
        if self.rest is None and self._are_few(frontier, rule):
            with failures_as_such():
                self.rest = self._fetch(frontier.node)
        if self.rest is not None:
            return self.rest.find(frontier, plan, rule, tie_key, self.threads)
        features = sample_level(frontier, plan)
        widths = np.where(features >= 0, self.table.bins.n_bins[features], 0).sum(axis=1)
        sizes = np.cumsum(widths * self.table.n_stats * np.dtype(self.table.count_type).itemsize)
        bounds = [0, *np.flatnonzero(np.diff(sizes // _LEVEL_BYTES)) + 1, len(frontier)]
        parts = [
            find_counted(self, frontier.take(np.arange(a, b)), features[a:b], plan, rule, tie_key, self.threads)
            for a, b in pairwise(bounds)
        ]
        return Splits(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _are_few(self, frontier: Frontier, rule: Rule) -> bool:
        """Whether to choose splits from histograms would take the processor longer than to count so few rows."""
        rows = int((self.stops[frontier.node] - self.starts[frontier.node]).sum())
        return rule.objective.compiled and len(frontier) >= _MANY_NODES and rows < _FEW_ROWS * len(frontier)

    def _fetch(self, nodes: np.ndarray) -> TreeRows:
        """Return the rows of open nodes in memory."""
        device, sizes = cuda(), self.stops[nodes] - self.starts[nodes]
        begin = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        firsts = _first_blocks(sizes, kernels.SORTED)
        out = device.device_array(max(int(begin[-1]), 1), np.uint32)
        if firsts[-1]:
            level = (self.starts[nodes], self.turned[nodes], begin, firsts)
            sent = [device.to_device(np.ascontiguousarray(array)) for array in level]
            kernels.gather_nodes[int(firsts[-1]), kernels.THREADS](self.order, self.other, *sent, out)
        starts, stops = np.zeros((2, len(self.starts)), np.int64)
        starts[nodes], stops[nodes] = begin[:-1], begin[1:]
        fetched = TreeRows.sorted(self.table, out.copy_to_host()[: begin[-1]], starts, stops, self.offsets)
        self.order = self.other = None
        return fetched

    def fill(self, nodes: np.ndarray, features: np.ndarray, threads: int = 1) -> np.ndarray:
        """Add up the histograms of some nodes, of the features listed for each: (bins of all, statistics)."""
        table = self.table
        bases = fill_bases(features, table.bins.n_bins)
        begin = place_level(features, bases, table.bins.shift, self.offsets[nodes])
        shape = (int(bases[-1, 0]), table.n_stats)
        if not shape[0] or not features.size:
            return np.zeros(shape, table.count_type)
        with failures_as_such():
            return self._fill(nodes, features, bases, begin, shape)

    def _fill(
        self, nodes: np.ndarray, features: np.ndarray, bases: np.ndarray, begin: np.ndarray, shape: tuple[int, int]
    ) -> np.ndarray:
        device, there = cuda(), self.on_device
        hist = device.to_device(np.zeros(shape[0] * shape[1], self.table.count_type))
        sizes = self.stops[nodes] - self.starts[nodes]
        n_rows = int(np.clip(sizes.sum() // _FULL_GRID, 4 * kernels.THREADS, _MOST_ROWS_A_BLOCK))
        firsts = _first_blocks(sizes, n_rows)
        if firsts[-1]:
            at_once, copies, copy_size = self._blocks(features)
            grid = (int(firsts[-1]), -(-features.shape[1] // at_once))
            level = (self.starts[nodes], self.stops[nodes], self.turned[nodes], firsts)
            asked = (features.astype(np.int32), begin, bases, self.table.bins.shift)
            sent = [device.to_device(np.ascontiguousarray(array)) for array in (*level, *asked)]
            lists = (there.rows, there.row_bytes, there.target_at, self.order, self.other)
            how = (at_once, copies, copy_size, hist)
            launch = grid, kernels.THREADS, 0, 4 * copies * copy_size
            if self.table.target.ndim == 1:
                kernels.count_classes[launch](*lists, *sent[:4], n_rows, *sent[4:], shape[1], *how)
            else:
                lows = device.to_device(there.lows)
                kernels.add_sums[launch](*lists, *sent[:4], n_rows, *sent[4:], lows, there.pieces, *how)
        found: np.ndarray = hist.copy_to_host().reshape(shape)
        return found

    def _blocks(self, features: np.ndarray) -> tuple[int, int, int]:
        """Return how many features a block counts, in how many copies of how many words; no copies if none fits."""
        per_bin = (
            self.table.n_stats if self.table.target.ndim == 1 else 1 + self.on_device.pieces * (self.table.n_stats - 1)
        )
        widest = int(self.table.bins.n_bins.max()) * per_bin
        most = kernels.SHARED_BYTES // 4
        at_once = min(most // widest, features.shape[1], kernels.MOST_FEATURES)
        if not at_once:
            return 1, 0, 0
        size = at_once * widest | 1  # odd: copies of a count are in different banks of the memory
        return at_once, max(1, min(8, most // 2 // size)), size

    def apply(self, nodes: np.ndarray, splits: Splits, needed: np.ndarray, threads: int = 1) -> None:
        """Send the nodes' rows to their children, which get the next numbers.

        Rows of splits that are not ``needed`` stay where they are.
        """
        if self.rest is not None:
            self.rest.apply(nodes, splits, needed, self.threads)
            return
        middles, turned = self.starts[nodes].copy(), self.turned[nodes].copy()
        which = np.flatnonzero(needed)
        if len(which):
            with failures_as_such():
                middles[which] += self._sort(nodes[which], Splits(*(column[which] for column in splits)))
            turned[which] ^= 1
        starts, stops = self.starts[nodes], self.stops[nodes]
        self.starts = np.concatenate([self.starts, np.stack([starts, middles], axis=1).reshape(-1)])
        self.stops = np.concatenate([self.stops, np.stack([middles, stops], axis=1).reshape(-1)])
        self.turned = np.concatenate([self.turned, np.repeat(turned, 2)])
        self.offsets = np.concatenate([self.offsets, np.repeat(self.offsets[nodes], 2)])

    def _sort(self, nodes: np.ndarray, splits: Splits) -> np.ndarray:
        """Sort the rows of nodes by their splits; return how many go left."""
        device, there = cuda(), self.on_device
        firsts = _first_blocks(self.stops[nodes] - self.starts[nodes], kernels.SORTED)
        counts = device.to_device(np.zeros((len(nodes), 2), np.int32))
        if not firsts[-1]:
            return np.zeros(len(nodes), np.int64)
        level = (self.starts[nodes], self.stops[nodes], self.turned[nodes], firsts)
        missing = np.where(splits.missing_left, 0, 256).astype(np.int32)
        by_category = self.table.bins.categorical[splits.feature].astype(np.uint8)
        rule = (splits.feature.astype(np.int32), splits.bin.astype(np.int32), missing, by_category, splits.words)
        sent = [device.to_device(np.ascontiguousarray(array)) for array in (*level, *rule)]
        launch = int(firsts[-1]), kernels.THREADS
        kernels.sort_nodes[launch](there.rows, there.row_bytes, self.order, self.other, *sent, counts)
        found: np.ndarray = counts.copy_to_host()[:, 0].astype(np.int64)
        return found


def _first_blocks(sizes: np.ndarray, rows_a_block: int) -> np.ndarray:
    """Return the number of each node's first block, and that of all blocks."""
    return np.concatenate([[0], np.cumsum(-(-sizes // rows_a_block))]).astype(np.int64)


def _sample(
    there: DeviceTable, key: np.ndarray, trees: range, draw: RowSampling
) -> tuple[np.ndarray, np.ndarray, object, object]:
    device, n, n_trees = cuda(), len(there.table), len(trees)
    limit, salt = sampling_limits(draw)
    blocks = -(-n // kernels.SORTED)
    groups = (trees.stop - 1) // TREES_A_HASH - trees.start // TREES_A_HASH + 1
    counts = device.to_device(np.zeros((n_trees, max(blocks, 1)), np.int32))
    asked = (*np.asarray(key, np.uint64), *there.keys, trees.start, n_trees, limit, salt)
    if n:
        kernels.count_sampled[(blocks, groups), kernels.THREADS](*asked, counts)
    found = counts.copy_to_host().astype(np.int64)
    ends = np.cumsum(found.reshape(-1)).reshape(found.shape)
    if _ROW_BYTES * int(ends[-1, -1]) + _SPARE > free_bytes():
        raise DeviceError("the rows of so many trees do not fit the memory of the graphics card")
    order, other = (device.device_array(max(int(ends[-1, -1]), 1), np.uint32) for _ in range(2))
    if n:
        starts = device.to_device(ends - found)
        kernels.list_sampled[(blocks, groups), kernels.THREADS](*asked, starts, order)
    return (ends - found)[:, 0].copy(), ends[:, -1].copy(), order, other
