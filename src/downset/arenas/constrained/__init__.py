"""Placements under more constraints: banks, aliases, conflicts, textures, waves, and a largest memory block."""
