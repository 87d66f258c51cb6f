"""What jsonschema finds in place of the package of this name, which compiles a grammar of IRIs when it is imported: 1.1
s of CPU in each of the processes of a Ray node. A wheel of Ray brings no such package; it comes with `cyclonedx-bom`."""

raise ImportError("tests/not_imported")
