"""File formats, with one folder or file for each. `reading.READERS` and `writing.WRITERS` list them by suffix."""
