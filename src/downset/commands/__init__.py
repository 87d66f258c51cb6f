"""The commands, one file for each: thin functions over the library."""
