"""The contract of all planners: a method is a name in a family's dict, or any callable with the same parameters.

What a planner can do is declared, never inferred from its name. Its options are the parameters of its signature that
are keyword-only or have a default. Its `Method` states the rest.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Literal

from downset.budget import DEFAULT_SECONDS, Budget, Clock
from downset.errors import InvalidPlan, UsageError

__all__ = [
    "ChainName",
    "Chosen",
    "Contract",
    "Method",
    "check_choice",
    "check_choices",
    "check_whole",
    "choose",
    "is_whole",
]

_ROUNDING = 1e-9
"""The share of a value by which a stated bound may be above it: sums of seconds are rounded."""

ChainName = Literal["pieces", "blocks", "relays"]


@dataclass(frozen=True, slots=True)
class Contract:
    """The contract between a family and its planners. `plans`: what they plan, for messages. `problem`: the positional
    arguments. `settings`: options that the family's public function passes to every planner that takes them. `returns`:
    the type of the result. `others`: further arguments of that function, proposed where an option is misspelt.

    `value_and_bound`: from the problem and the result of a callable, its value, and a bound on every value that holds
    whatever the callable says; it raises InvalidPlan for a result that breaks a law. `bound`: the field of the result
    that holds a bound, with its field `proven`. Without `value_and_bound` the family's public function judges both."""

    plans: str
    problem: tuple[str, ...]
    settings: tuple[str, ...]
    returns: type
    others: tuple[str, ...] = ()
    value_and_bound: Callable[..., tuple[float, float]] | None = None
    bound: str = "bound"


@dataclass(frozen=True, slots=True)
class Method:
    """A planner and what it can do.

    `proves`: its search covers the whole documented space, so that its bounds and its answer "no plan" hold for that
    space. Under memory limits, planning of pipelines then tries further plans before it reports that there is none.
    downset trusts no bound and no proof of a callable that does not declare it, except those of pipelines.
    `chain`: the chain of units of a graph that a planner of pipelines gets: its pieces, one unit for each block, or
    pieces that pass tensors on over several stages (relays).

    A callable without a `Method` has the defaults; pass `Method(planner, ...)` to declare more."""

    plan: Callable[..., Any]
    proves: bool = False
    chain: ChainName = "pieces"

    signature: inspect.Signature | None = field(init=False, repr=False, compare=False)
    """None for a compiled function without a signature, which is called without options."""
    options: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The options that the planner names in its signature."""
    takes_any: bool = field(init=False, repr=False, compare=False)
    """Whether it takes options that it does not name."""

    def __post_init__(self) -> None:
        try:
            signature = inspect.signature(self.plan)
        except (TypeError, ValueError):
            signature = None
        parameters = signature.parameters.values() if signature is not None else ()
        named = tuple(
            one.name
            for one in parameters
            if one.kind is one.KEYWORD_ONLY or (one.kind is one.POSITIONAL_OR_KEYWORD and one.default is not one.empty)
        )
        object.__setattr__(self, "signature", signature)
        object.__setattr__(self, "options", named)
        object.__setattr__(self, "takes_any", any(one.kind is one.VAR_KEYWORD for one in parameters))

    def takes(self, option: str) -> bool:
        """Whether the planner can be given an option of this name."""
        return self.takes_any or option in self.options

    def taken(self, **settings: Any) -> dict[str, Any]:
        """Those of the settings that the planner takes."""
        return {setting: value for setting, value in settings.items() if self.takes(setting)}

    def __call__(self, *problem: Any, **options: Any) -> Any:
        """Call the planner and return its result. One that takes a `clock` has that of a `time_limit_s` (10 s) and a
        `work_limit` (none) unless it is given. Raises UsageError for an option that it does not take."""
        if self.takes("clock") and "clock" not in options:
            limits = options.pop("time_limit_s", DEFAULT_SECONDS), options.pop("work_limit", None)
            options["clock"] = Budget(*limits).start()
        _check_options(_name_of(self.plan), self, options, settings=())
        return self.plan(*problem, **options)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A method with its name and the options that the user gave for it. `listed`: it is one of the family's own."""

    name: str
    method: Method
    contract: Contract
    options: Mapping[str, object]
    listed: bool = True

    def __call__(self, *problem: Any, clock: Clock, **settings: Any) -> Any:
        """Plan with the settings that the method takes: among them are the clock, and its limits as `time_limit_s` and
        `work_limit`. Raises UsageError for a result of another type, InvalidPlan for a callable's result that breaks a
        law or states a bound above its value."""
        settings |= {"clock": clock, **clock.budget.limits()}
        result = self.method.plan(*problem, **self.method.taken(**settings), **self.options)
        if not isinstance(result, self.contract.returns):
            raise UsageError(
                f"method {self.name!r} returned {type(result).__name__}; a planner of {self.contract.plans} returns "
                f"{self.contract.returns.__name__}"
            )
        if self.listed or self.contract.value_and_bound is None:
            return result
        return self._judged(result, *self.contract.value_and_bound(*problem, result))

    def _judged(self, result: Any, value: float, own: float) -> Any:
        """The result of a callable with a bound that holds: its own where it proves, else `own`."""
        field = self.contract.bound
        stated = getattr(result, field)
        if isinstance(stated, bool) or not isinstance(stated, (int, float)):
            raise UsageError(f"method {self.name!r} states the bound {stated!r}; a bound is a number")
        if not stated <= value + _ROUNDING * abs(value):
            raise InvalidPlan(
                f"method {self.name!r} states a bound of {stated:,}, above the value {value:,} of its own plan"
            )
        if self.method.proves and result.proven:
            return replace(result, **{field: value})
        bound = max(own, stated) if self.method.proves else own
        return replace(result, **{field: min(bound, value), "proven": bound >= value})


def choose(
    method: str | Method | Callable[..., Any],
    methods: Mapping[str, Method],
    contract: Contract,
    options: Mapping[str, object] = MappingProxyType({}),
    *,
    other: Collection[str] = (),
) -> Chosen:
    """The method of that name in the family's dict, or the given callable. Raises UsageError for an unknown name, an
    option that the method does not take, or a callable with other parameters.

    `other`: names of methods of a related problem, for a better message where a user gives one here. A callable with
    the name of a method in the dict gets a different name."""
    if isinstance(method, str):
        if method not in methods:
            problem = f"there is no {method!r} for" if method in other else f"unknown method {method!r} for"
            raise UsageError(f"{problem} {contract.plans}; choose one of {', '.join(methods)}")
        name, planner = method, methods[method]
    elif callable(method):
        planner = method if isinstance(method, Method) else Method(method)
        name = next((name for name, listed in methods.items() if listed is planner), "")
        if not name:
            name = _name_of(planner.plan)
            name += " (callable)" if name in methods else ""
    else:
        raise UsageError(f"a method is a name or a callable, not {method!r}; choose one of {', '.join(methods)}")
    _check_shape(name, planner, contract, options)
    _check_options(name, planner, options, settings=contract.settings, others=contract.others)
    return Chosen(name, planner, contract, options, any(planner is listed for listed in methods.values()))


def check_choice(what: str, value: object, choices: Collection[str]) -> None:
    """Raise UsageError that lists the choices, unless `value` is one of them."""
    if not isinstance(value, str) or value not in choices:
        raise UsageError(f"unknown {what} {value!r}; choose one of {', '.join(choices)}")


def is_whole(value: object) -> bool:
    """Whether the value is an int; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_whole(name: str, value: object, *, least: int = 0, most: int = 1 << 62) -> None:
    """Raise UsageError that names the argument, unless the value is a whole number within these limits."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UsageError(f"{name} must be a whole number from {least} to {most:,}; given {value!r}")


def check_choices(count: int | None) -> None:
    """Raise UsageError for a number of choices to try that is below 1."""
    if count is not None and count < 1:
        raise UsageError(f"choices must be at least 1; given {count}")


def _check_options(
    name: str, method: Method, options: Mapping[str, object], *, settings: Collection[str], others: Collection[str] = ()
) -> None:
    for option in options:
        if option in settings or not method.takes(option):
            own = [name for name in method.options if name not in settings]
            close = get_close_matches(option, [*own, *settings, *others], 1)
            hint = f"; did you mean {close[0]!r}?" if close and close[0] != option else ""
            raise UsageError(
                f"method {name!r} takes no option {option!r}; its own are: {', '.join(own) or 'none'}{hint}"
            )


def _check_shape(name: str, method: Method, contract: Contract, options: Mapping[str, object]) -> None:
    """Raise UsageError unless the planner can be called with the contract's arguments and these options."""
    if method.signature is None:
        return
    options_taken = {option: None for option in (*contract.settings, *options) if method.takes(option)}
    try:
        method.signature.bind(*contract.problem, **options_taken)
    except TypeError as error:
        raise UsageError(
            f"method {name!r} cannot be called as planners of {contract.plans} are, with "
            f"({', '.join(contract.problem)}) and options by keyword: {error}"
        ) from None


def _name_of(plan: Callable[..., Any]) -> str:
    return str(getattr(plan, "__name__", "callable"))
