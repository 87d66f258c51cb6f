"""Whether two files hold the same network: what is proven, and what runs of both have shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from downset.results.streams import StreamForm

__all__ = ["BY_RUNTIME", "ROUNDING", "Comparison", "Proof", "Rounding", "StreamProof", "StreamRuns", "Verdict"]

ROUNDING = 1e-4
"""The largest difference that counts as rounding, as a share of the largest value."""


Verdict = Literal["proven", "not proven", "differ"]

BY_RUNTIME = (
    "ONNX Runtime's own optimisation of the original is not proven; the file is proven to hold what that makes of it"
)
"""Why a file is not proven that is made from ONNX Runtime's optimised form of the original."""


@dataclass(frozen=True, slots=True)
class StreamProof:
    """The statement that is proven of a stream: called with `hop` rows, it computes what the window computes on its
    last `window` rows. `form`: how it keeps its `states`. `first_exact`: the first hop, from 0, with its outputs;
    `warm`: the first from which on all rows of the window were given, whatever the initial states are."""

    window: int
    hop: int
    form: StreamForm
    states: int
    first_exact: int
    warm: int


@dataclass(frozen=True, slots=True)
class Proof:
    """The outcome of comparing two files without running them. `proven`: the second file holds the same network as the
    first, or with `optimised` the network that ONNX Runtime's optimisation makes of the first; that optimisation is
    checked by runs only. `exact`: every element is computed as before; False where sums are added in another sequence.
    `finite`: it is proven for finite values only, because kernels are padded with zeros, or sums change places with an
    average. `rewrites`: the number of tensors that are proven to hold parts of others, in a rewritten network.
    `placed`: the second file holds offsets that keep apart all tensors live at the same time. `states`: how many states
    it keeps in place; the proof is then an induction over the calls, which assumes that TFLite Micro runs the file and
    that the caller initialises them and writes nothing else to the arena. `reason`: why there is no proof. `stream`:
    where the second file is a stream, what is proven of it."""

    proven: bool
    exact: bool = True
    optimised: bool = False
    rewrites: int = 0
    placed: bool = False
    reason: str = ""
    finite: bool = False
    stream: StreamProof | None = None
    states: int = 0


@dataclass(frozen=True, slots=True)
class Rounding:
    """How the outputs of a file relate to those of the original at ONNX Runtime's levels of optimisation. `level`: the
    level at which they are equal bit for bit ("extended", "none" or "all"; "" for no level). `own_error`: the largest
    difference of the original's outputs with and without optimisation; None where that has no number. `times`: how many
    of these differences are allowed in each output and run. `beyond`: how the file differs by more; "" where it does
    not."""

    level: str
    own_error: float | None
    times: float
    beyond: str = ""


@dataclass(frozen=True, slots=True)
class StreamRuns:
    """How a stream was run: `warm` hops were not compared; with `noise` its states began as NaN or random integers."""

    warm: int
    noise: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome of running two files on the same inputs. `equal`: whether the outputs are equal bit for bit; None
    where no runtime here could run the files. `max_abs_error`: the largest difference in all outputs. `largest`: the
    largest absolute value in the first file's float outputs, or in its integers if it has no floats. `floats`: whether
    all outputs that differ are floats.

    `proof`: the result without running. `runs`: the number of inputs. `varies`: whether any output differed from one
    input to the next (None: there was one input). `inside`: the number of tensors inside both files that were compared;
    `inside_note`: how they differ, if they do. `placed`: whether the outputs are equal in TFLite Micro, too,
    with the offsets of the second file; None where no such run was made in addition to the others. Where nothing is
    proven, `tried` says by which further inputs a difference was looked for, and `reached` how the files differ on one
    of them. `unshown`: a difference of the files that no run shows, such as other values of a constant in a branch.
    `assumed`: what was assumed about sizes that the first file leaves open. `stream_runs`: where the second file is a
    stream, how it was run: `runs` hops were compared with windows."""

    equal: bool | None
    max_abs_error: float | None
    runtime: str
    note: str = ""
    largest: float = 0.0
    floats: bool = False
    proof: Proof | None = None
    runs: int = 1
    varies: bool | None = None
    inside: int = 0
    inside_note: str = ""
    placed: bool | None = None
    unshown: str = ""
    tried: tuple[str, ...] = ()
    reached: str = ""
    assumed: str = ""
    rounding: Rounding | None = None
    other_sizes: tuple[str, ...] = ()
    stream_runs: StreamRuns | None = None

    @property
    def proven(self) -> bool:
        """Whether the second file is proven to hold the first's network, without a part that only runs check."""
        return self.proof is not None and self.proof.proven and not self.proof.optimised

    @property
    def reason(self) -> str:
        """Why it is not proven; "" where it is."""
        if self.proven:
            return ""
        if self.proof is None:
            return self.note
        return BY_RUNTIME if self.proof.proven else self.proof.reason

    def agrees(self, tolerance: float | None = None) -> bool:
        """Whether all runs agree: up to rounding, or where a tolerance is given, to within it. True where nothing was
        run."""
        if self.reached:
            return False
        if tolerance is not None:
            return self.equal is None or self.within(tolerance)
        return self.equal is None or (self.rounds_alike and not self.inside_note)

    def verdict(self, tolerance: float | None = None) -> Verdict:
        """The answer. Runs that differ outweigh a proof, which says nothing about runtimes."""
        if not self.agrees(tolerance):
            return "differ"
        return "proven" if self.proven else "not proven"

    @property
    def telling(self) -> bool:
        """Whether runs were made that could have shown a difference: outputs that are the same for all inputs cannot,
        and a difference that is known and not shown was not."""
        return self.equal is not None and self.varies is not False and not self.unshown

    @property
    def exact(self) -> bool:
        """Whether the outputs must be equal bit for bit: the second file is proven to compute every element as the
        first does, and the runtime computes operator by operator. ONNX Runtime may fuse the two files differently, and
        LiteRT's kernels may add up the terms of fewer rows, as a stream has them, in another sequence."""
        if self.proof is None or not self.proven or not self.proof.exact:
            return False
        return self.runtime not in ("ort", "litert") if self.proof.stream else self.runtime != "ort"

    @property
    def rounds_alike(self) -> bool:
        """Whether the outputs are equal, or floats that differ by no more than rounding. In ONNX Runtime a file of
        which more is known is judged by the original's own rounding there."""
        if self.rounding is not None:
            return not self.rounding.beyond
        if self.equal or self.max_abs_error is None:
            return bool(self.equal)
        return self.floats and not self.exact and self.max_abs_error <= ROUNDING * max(self.largest, 1e-6)

    def within(self, tolerance: float) -> bool:
        """Whether the outputs are equal, or no value differs by more than `tolerance`."""
        return bool(self.equal) or (self.max_abs_error is not None and self.max_abs_error <= tolerance)
