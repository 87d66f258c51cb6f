"""The JSON forms that commands print with --json, as docs/schemas describes them. Keys are added, never renamed.

Each function returns a command's keys as plain values. The command line adds the keys that all commands share (`kind`,
`schema`, `ok`, `error`).
"""
