"""Programs that run inside a peer's own environment. They use the standard library and that peer.

They see nothing of kvwise but this folder, and kvwise imports none of the modules named after a
peer.
"""
