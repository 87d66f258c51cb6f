"""Compares two files around the operators of their main graphs: settings, names, numbers of inputs and outputs, and the
graphs that operators call. A rewrite leaves all of it as it is, but for what a version of a format asks for."""

from __future__ import annotations

from collections.abc import Container, Hashable
from dataclasses import replace

from downset.equivalence.bijection import check_bijection, find_bijection
from downset.equivalence.claims import Unproven
from downset.equivalence.file_network import Body, FileNetwork

__all__ = ["called_difference", "same_called_graphs", "same_settings", "same_surroundings"]


def same_surroundings(first: FileNetwork, second: FileNetwork) -> None:
    """Prove that the files state the same of themselves, of their main graphs and of their inputs and outputs."""
    same_settings(first, second)
    main, other = first.bodies[0], second.bodies[0]
    if main.settings != other.settings or main.named.keys() != other.named.keys():
        raise Unproven("their main graphs state something else")
    if first.named.keys() != second.named.keys():
        raise Unproven("they differ in the names of inputs or outputs")
    if len(main.inputs) != len(other.inputs) or len(main.outputs) != len(other.outputs):
        raise Unproven("they have different numbers of inputs or outputs")


def same_settings(first: FileNetwork, second: FileNetwork, without: Container[object] = ()) -> None:
    """Prove that the files have the same settings, apart from those `without` which they are compared."""
    for key in (*first.settings, *(key for key in second.settings if key not in first.settings)):
        ours, theirs = first.settings.get(key), second.settings.get(key)
        if key in without or ours == theirs or _lawful(key, ours, theirs):
            continue
        if not (ours is None and _imports_alone(first, second, key, theirs)):
            raise Unproven(f"they differ in {key if isinstance(key, str) else key[0]}")


def same_called_graphs(first: FileNetwork, second: FileNetwork) -> None:
    """Prove that the graphs that operators call are equal in both files; rewrites do not change them."""
    difference = called_difference(first, second)
    if difference:
        raise Unproven(difference)


def called_difference(first: FileNetwork, second: FileNetwork) -> str | None:
    """A message about the first difference of the graphs that operators call by number; None without one."""
    ours, theirs = _without_main(first), _without_main(second)
    return check_bijection(ours, theirs, find_bijection(ours, theirs))


def _lawful(key: object, ours: Hashable, theirs: Hashable) -> bool:
    """Whether a rewrite may make this change: it may use ONNX Runtime's operators, and writes version 4 of the format
    for older files, in which every initializer must be an input."""
    if key == ("version of the format",):
        return isinstance(ours, int) and ours < 4 and theirs == 4
    return key == ("version of operator set", "com.microsoft") and ours is None and theirs == (1,)


def _imports_alone(first: FileNetwork, second: FileNetwork, key: object, theirs: Hashable) -> bool:
    """Whether the second file imports a set of operators of which neither file has any, as ONNX Runtime's optimisation
    makes every file do."""
    if not isinstance(key, tuple) or key[:-1] != ("version of operator set",) or key[-1] in ("", "com.microsoft"):
        return False
    plain = isinstance(theirs, tuple) and len(theirs) == 1  # a version and no further field
    nodes = (*first.nodes, *second.nodes)
    return plain and not any(key[-1] in node.kind for node in nodes if type(node.kind) is tuple)


def _without_main(network: FileNetwork) -> FileNetwork:
    kept = [index for body in network.bodies[1:] for index in body.nodes]
    new = {old: index for index, old in enumerate(kept)}
    bodies = tuple(replace(body, nodes=tuple(new[index] for index in body.nodes)) for body in network.bodies[1:])
    nothing = Body("", (), (), ())
    nodes = tuple(network.nodes[index] for index in kept)
    return FileNetwork(network.label, network.values, nodes, bodies or (nothing,))
