"""The searches of downset, compiled."""

import array
import enum
from collections.abc import Mapping, Sequence

import numpy
import numpy.typing

class Outcome(enum.Enum):
    """How a search ended."""

    SOLVED = 0
    """What was asked for is found."""

    IMPOSSIBLE = 1
    """Proof that there is none."""

    LIMIT = 2
    """A limit came first: nothing is settled."""

    OUT_OF_MEMORY = 3
    """Likewise, and no time will settle it."""

def interrupt(interrupted: bool) -> None:
    """
    Whether the searches that run, and those to come, end at once as if their time were over.
    """

class OrderProblem:
    """
    Operators in a topological order and the storages they touch, as ascending lists.
    """

    def __init__(
        self,
        predecessors: Sequence[Sequence[int]],
        nbytes: Sequence[int],
        producers: Sequence[Sequence[int]],
        consumers: Sequence[Sequence[int]],
        kept: Sequence[bool],
        in_place: Sequence[Sequence[int]],
        in_place_bytes: Sequence[Sequence[int]],
        floor_bytes: int,
    ) -> None: ...
    def reversed(self) -> OrderProblem:
        """The same orders, read from their ends."""

def decompose(problem: OrderProblem, relaxed: bool) -> tuple[OrderProblem, list[list[int]], bool]:
    """
    (The problem of segments with the same least peak, the operators of each, whether all are fixed).
    """

class BestFirst:
    """A search for an order of least peak that goes on where it stopped."""

    def __init__(self, problem: OrderProblem, byte_limit: int) -> None: ...
    def advance(self, bound_bytes: int, incumbent_bytes: int, time_limit_s: float, state_limit: int) -> Outcome:
        """
        SOLVED: `steps` is below the incumbent and least of all; IMPOSSIBLE: none is below it.
        """

    @property
    def bound(self) -> int: ...
    @property
    def expanded(self) -> int: ...
    @property
    def steps(self) -> list[int]: ...

def order_peak(problem: OrderProblem, steps: Sequence[int]) -> int:
    """Bytes."""

def greedy(problem: OrderProblem, time_limit_s: float, move_limit: int) -> list[int]:
    """
    Always the operator that leaves the least live; [] where a limit is reached.
    """

def beam(
    problem: OrderProblem, width: int, bound_bytes: int, incumbent_bytes: int, time_limit_s: float, state_limit: int
) -> tuple[list[int], int]:
    """(Order below the incumbent or [], states expanded)."""

def closure_bound(problem: OrderProblem, known: Sequence[int], time_limit_s: float, member_limit: int) -> int:
    """Bytes that no order stays below. `known` is any order."""

def pair_bound(
    problem: OrderProblem, known: Sequence[int], bound_bytes: int, time_limit_s: float, member_limit: int
) -> int:
    """
    Bytes that no order stays below, from pairs of operators; at least `bound_bytes`.
    """

class LivePieces:
    """
    Pieces of lifetimes, [low, high), and the record that each is of; bytes by record.
    """

    def __init__(
        self, low: array.array[int], high: array.array[int], record: array.array[int], nbytes: array.array[int]
    ) -> None: ...
    def breadths(self) -> tuple[list[int], list[int]]:
        """(Steps, ascending; the bytes that live from each on)."""

    def padded_breadth(self, unit: int) -> int:
        """
        The least end of records whose offsets are multiples of `unit`, by the steps alone.
        """

    def collisions(self, offsets: array.array[int], most: int) -> list[tuple[int, int, int]]:
        """
        (Step, record that holds the bytes, record that comes to live on them), the first `most`.
        """

    def breadth_turns(self, later_step_first: bool) -> list[int]:
        """By record: the turn in which greedy by breadth first names it."""

def litert_sequence(
    steps: Sequence[int], tensors: Sequence[int], nbytes: Sequence[int], whole: Sequence[bool]
) -> list[int]:
    """The tensors in the sequence in which LiteRT's planner places them."""

class MemoriesProblem:
    """
    Operators, and storages in fast or slow memory.

    By storage: room, load, store, begin, end. By operator: (storage, whether it is written,
    cost of a direct access or -1).
    """

    def __init__(
        self,
        predecessors: Sequence[Sequence[int]],
        workspace: Sequence[int],
        storages: Sequence[Sequence[int]],
        accesses: Sequence[Sequence[tuple[int, bool, int]]],
        fast_bytes: int,
    ) -> None: ...

def memories_belady(problem: MemoriesProblem, order: Sequence[int]) -> tuple[int, list[int]]:
    """(Cost, choices by link: 1 in fast memory, 2 kept there)."""

def memories_residency(
    problem: MemoriesProblem, order: Sequence[int], incumbent: int, width: int, time_limit_s: float, state_limit: int
) -> tuple[int, list[int], int, int]:
    """(Cost below the incumbent or -1, choices by link, bound, states)."""

def memories_orders(
    problem: MemoriesProblem,
    groups: Sequence[Sequence[int]],
    order: Sequence[int],
    seed: int,
    few: int,
    time_limit_s: float,
    tries: int,
    order_limit: int,
) -> tuple[list[tuple[int, list[int]]], int]:
    """
    ((Cost, order of groups) of the best few orders, orders tried).

    Operators of a group run one directly after the other.
    """

def memories_bound(problem: MemoriesProblem, incumbent: int, time_limit_s: float, node_limit: int) -> tuple[int, int]:
    """(Cost that no order stays below, nodes)."""

def memories_joint(
    problem: MemoriesProblem, incumbent: int, time_limit_s: float, state_limit: int
) -> tuple[int, list[int], int, bool, int]:
    """
    (Cost below the incumbent or -1, order, bound, whether the search ended, states).
    """

class Records:
    """
    Buffers that live in certain steps. `pinned`: an offset, or -1; `active`: ascending, half-open.
    """

    def __init__(
        self,
        nbytes: Sequence[int],
        alignment: Sequence[int],
        pinned: Sequence[int],
        active: Sequence[Sequence[tuple[int, int]]],
    ) -> None: ...
    def __len__(self) -> int: ...

def arena_within(
    records: Records, capacity_bytes: int, time_limit_s: float, node_limit: int
) -> tuple[list[int], Outcome, int]:
    """(Offsets if SOLVED, how the search ended, placements tried)."""

def arena_lower(
    records: Records,
    offsets: Sequence[int],
    bound_bytes: int,
    time_limit_s: float,
    step_limit: int,
    visit_limit: int,
    seed: int,
) -> tuple[list[int], int, int]:
    """
    (Offsets, height in bytes, placements tried): the placement given, or a lower one.
    """

def place_in_order(records: Records, sequence: Sequence[int], gap: int, time_limit_s: float) -> list[int]:
    """
    The offset of each record in its lowest or its smallest gap; -1: not in the sequence, or not in time.
    """

def place_above(records: Records, sequence: Sequence[int], offsets: Sequence[int]) -> list[int]:
    """
    The offsets; those of the sequence at -1 lie in turn above everything that they meet.
    """

def spread(
    records: Records,
    sequence: Sequence[int],
    capacities_bytes: Sequence[int],
    block_bytes: int,
    choices: Sequence[Sequence[int]],
) -> tuple[list[int], list[int]]:
    """(Arena, offset) of each record; ([], []) where one finds no room."""

def fill_strip(records: Records, time_limit_s: float) -> list[int]:
    """The offset of each record by best fit; -1: not in time."""

def assign_in_order(records: Records, sequence: Sequence[int], first: bool, time_limit_s: float) -> list[int]:
    """The object of each record; -1: not in the sequence, or not in time."""

def positional_maxima(records: Records) -> list[int]:
    """The largest i-th size of all steps, for each i."""

def shared_objects(
    records: Records, maxima_bytes: Sequence[int], incumbent_bytes: int, time_limit_s: float, state_limit: int
) -> tuple[list[int], int, int]:
    """(Object of each record or [], bound in bytes, states)."""

class StageLattice:
    """Downsets of at most 64 operators, their endings, and chains of these."""

    def __init__(
        self,
        predecessors: Sequence[int],
        max_ops: int,
        max_groups: int,
        single_root: bool,
        time_limit_s: float,
        pair_limit: int,
    ) -> None: ...
    def complete(self) -> bool: ...
    def states(self) -> int: ...
    def pairs(self) -> int: ...
    def stages(self) -> list[int]: ...
    def weigh(self, costs: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """
        By stage: its most expensive group, the sum of its groups, and how many they are.
        """

    def schedules(self) -> tuple[int, int]:
        """How many chains of stages there are, as (high, low) words of 64 bits."""

    def solve(self, prices: Sequence[int]) -> tuple[list[int], int]:
        """
        (The cheapest chain, its price); a price below 0 forbids a stage, no chain: ([], -1).
        """

class RowForm:
    """
    Operators along rows.

    Five integers an input (tensor, scale, per, low, high), three an operator (rows, MACs a row, whole).
    """

    def __init__(
        self,
        op_inputs: Sequence[Sequence[int]],
        op_outputs: Sequence[Sequence[int]],
        numbers: Sequence[Sequence[int]],
        rows: Sequence[int],
        outputs: Sequence[int],
    ) -> None: ...

class PieceSearch:
    """Chains of pieces of at most 1024 vertices."""

    def __init__(
        self,
        form: RowForm,
        vertices: Sequence[Sequence[int]],
        layers: Sequence[int],
        *,
        strips: int,
        diameter: int,
        state_limit: int,
    ) -> None: ...
    def within(self, threshold_macs: int, time_limit_s: float) -> tuple[Outcome, int]:
        """
        (How the search ended, a cost that has to be allowed if it is IMPOSSIBLE).
        """

    def refine(self, threshold_macs: int, first: bool, time_limit_s: float) -> bool:
        """
        Whether ties among chains within the threshold were settled: by their sum, or as the paper does (`first`).
        """

    def pieces(self) -> list[list[int]]: ...
    def costs(self) -> list[int]: ...
    def states(self) -> int: ...
    def pairs(self) -> int: ...

class StripNetwork:
    """
    A network that is computed in strips of rows.

    Sixteen integers an operator: how it makes rows, stride, reach, begin, end, factor, adds, first input,
    bits of a padded row, left, right, SAME along columns, graph output, persistent bytes, whether rows are
    cut off, view. Walks are those of kernels that let results lie over inputs, fourteen integers or none.
    """

    def __init__(
        self,
        form: RowForm,
        numbers: Sequence[Sequence[int]],
        overwritten: Sequence[Sequence[int]],
        walks: Sequence[Sequence[int]],
        row_bits: Sequence[int],
        *,
        alignment: int,
        moving_persistent_bytes: int,
        only_reader: bool,
        outputs_apart: bool,
        inputs_apart: bool,
        counts_scratch: bool,
    ) -> None: ...
    def set_scratch(self, call: Sequence[int], nbytes: int) -> None:
        """
        State the scratch of an operator on rows, one of the calls that `strips_price` lists.
        """

class StripSegment:
    """
    Operators first to stop, and what is live around them.

    Nine integers an input: tensor, bytes, the input whose bytes it shares, reads by operators outside, whether
    it is the tensor for which these bytes were taken, else reads of that one, input of the graph, kept, alone.
    """

    def __init__(
        self,
        network: StripNetwork,
        first: int,
        stop: int,
        *,
        inputs: Sequence[Sequence[int]],
        results: Sequence[int],
        results_counted: Sequence[bool],
        live_beside: int,
    ) -> None: ...

def strips_price(
    network: StripNetwork, segment: StripSegment, strips: int, recomputed: Sequence[int], even: bool
) -> tuple[bool, int, int, int, int, int, int, list[list[int]]]:
    """
    (Possible, peak bytes, peak where nothing overlaps, MACs, copied bytes, operators, persistent bytes,
    operators on rows of which no scratch is stated). Those are: operator, rows made, pads above and below,
    whether it reads a padded copy, rows of each input.
    """

class PipelineNetwork:
    """Seconds a byte and seconds a transfer by pair of devices."""

    def __init__(
        self,
        per_byte_s: Sequence[Sequence[float]],
        latency_s: Sequence[Sequence[float]],
        *,
        uniform: bool,
        overlap: bool,
        shared: bool,
    ) -> None: ...

def longest_paths(
    arcs: Sequence[numpy.typing.NDArray[numpy.int64]],
    weights: numpy.typing.NDArray[numpy.float64],
    distance: numpy.typing.NDArray[numpy.float64],
    least: float,
) -> tuple[list[int], list[float]]:
    """
    (Arcs of a circle of positive weight, [] where there is none; distances.)

    Arcs are tails, heads and frames.
    """

class LoadSegment:
    """
    Costs of strips: MACs, bytes in and out, the work of each class of devices; each upper, lower and
    final, by row.
    """

    def __init__(self, tables: numpy.typing.NDArray[numpy.float64]) -> None: ...

class LoadChain:
    """
    Every segment by its cuts (start, stop); MACs before each cut, bytes over it.
    """

    def __init__(
        self,
        segments: Mapping[tuple[int, int], LoadSegment],
        macs_before: Sequence[float],
        crossing_bytes: Sequence[float],
    ) -> None: ...

class LoadDevice:
    """Type, class of work, work a second, MACs a second, full duplex."""

    def __init__(self, type: int, work_class: int, speed: float, peak: float, full: bool) -> None: ...

class LoadProblem:
    """
    Devices in the order of strips; source and sink are devices, or -1; forbidden are (start, stop, device).
    """

    def __init__(
        self,
        chain: LoadChain,
        devices: Sequence[LoadDevice],
        network: PipelineNetwork,
        *,
        source: int,
        sink: int,
        forbidden: Sequence[tuple[int, int, int]],
    ) -> None: ...

class RoundAims:
    """A limit on latency, and whether a stage may be several blocks."""

    def __init__(self, *, latency_limit_s: float, several_blocks: bool) -> None: ...

def least_load(
    problem: LoadProblem, *, incumbent_s: float, time_limit_s: float, state_limit: int
) -> tuple[float, float, bool, int, list[tuple[int, list[tuple[int, int, list[int]]], list[int]]]]:
    """
    (Period or infinity, bound, whether the search ended, states, stages).

    A stage is (leader, blocks, devices), a block (start, stop, row boundaries).
    """

def least_rounds(
    problem: LoadProblem, aims: RoundAims, *, incumbent_s: float, time_limit_s: float, state_limit: int
) -> tuple[float, float, bool, int, list[tuple[int, list[tuple[int, int, list[int]]], list[int]]]]:
    """Likewise by the paper's equations."""

def least_latency(
    problem: LoadProblem, aims: RoundAims, *, time_limit_s: float, state_limit: int
) -> tuple[float, float, bool, int, list[tuple[int, list[tuple[int, int, list[int]]], list[int]]]]:
    """Likewise the plan of least latency; its period is given."""

class WholeLayerProblem:
    """
    Downsets of vertices from none to all, by size; tensors as (maker or -1, 1 for a result or 0, readers...);
    seconds by type of device and vertex; the type of each device, rising; by type whether it is full duplex.
    """

    def __init__(
        self,
        vertices: int,
        downsets: Sequence[Sequence[int]],
        tensors: Sequence[Sequence[int]],
        message_s: Sequence[float],
        compute_s: Sequence[Sequence[float]],
        types: Sequence[int],
        *,
        full: Sequence[int],
        overlap: bool,
        shared: bool,
    ) -> None: ...

def whole_layer_stages(
    problem: WholeLayerProblem, *, limit_s: float, time_limit_s: float
) -> tuple[Outcome, float, list[tuple[int, int]], int]:
    """
    (How it ended, the largest load of the best stages within the limit, stages as (downset behind it, type), states).

    On a shared network: the least seconds of the medium, with every load within the limit.
    """
