"""Which bytes are live at which step: memory models, storages, lifetimes, records, and bounds."""
