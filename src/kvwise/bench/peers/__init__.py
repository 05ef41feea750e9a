"""Other caches measured beside kvwise: finding them, driving them, and comparing pass by pass."""
