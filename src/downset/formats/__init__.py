"""File formats, one folder or file each. `reading.READERS` and `writing.WRITERS` name them by suffix."""
