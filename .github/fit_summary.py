"""Prints the JSON of `downset fit` as lines of a job's summary, or with `--outputs` as outputs of a step."""

import json
import sys
from pathlib import Path


def taken(document):
    """(name of the figure, bytes of the original, bytes of the shipped file)."""
    if measured := document.get("measured"):
        kernels = measured.get("with_kernels")
        counted = kernels or measured
        name = f"with {kernels['kernels']}" if kernels else f"measured in {measured['runtime']}"
        return name, counted["before"], counted["after"]
    arena = document["arena_bytes"]
    return "arena (by the memory model)", arena["before"], arena["after"]


def main(arguments):
    text = Path(arguments[-1]).read_text()
    document = json.loads(text) if text.strip() else {}
    error = document.get("error")
    if "arena_bytes" not in document:
        message = error["message"] if error else "downset fit printed no result"
        print("" if "--outputs" in arguments else f"**downset fit:** {message}")
        return
    name, before, after = taken(document)
    if "--outputs" in arguments:
        print(f"before-bytes={before}\nafter-bytes={after}")
        return
    print(
        f"### {document['model']}\n\n| bytes | before | after |\n|---|---|---|\n| {name} | {before:,} | {after:,} |\n"
    )
    if error:
        print(f"**{error['message']}**")


main(sys.argv[1:])
