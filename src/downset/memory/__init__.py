"""Which bytes are live when: memory models, storages, lifetimes, records, and the bounds that follow from them."""
