"""The shell around the brain: arena, workers, pump, store, daemon, client. It decides nothing."""
