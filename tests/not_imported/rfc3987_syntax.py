"""Keeps jsonschema from importing the package of this name, which compiles a grammar of IRIs: 1.1 s of CPU in each
process of a Ray node. Ray does not need it; `cyclonedx-bom` brings it."""

raise ImportError("tests/not_imported")
