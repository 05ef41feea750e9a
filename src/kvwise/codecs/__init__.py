"""Codecs: how the payload of an object is written down. They move no bytes between places."""
