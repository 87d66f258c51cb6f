"""The commands, one file each: thin functions over the library."""
