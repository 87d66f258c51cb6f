"""Placements under more constraints: aliases, conflicts, textures, waves, and a largest memory block. These
modules are public: docs/arenas.md shows how to call them."""
