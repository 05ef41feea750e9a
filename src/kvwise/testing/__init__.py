"""Conformance suites and doubles to prove plug-ins with. Nothing at run time needs them."""
