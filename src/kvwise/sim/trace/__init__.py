"""Traces of what users asked of engines: read, made up, and measured. No engine is run here."""
