"""Who multiplies by W: one file an engine, each with `connect(topology, ...) -> Network`."""
