"""The vLLM v1 connector: `kv_connector_module_path` names this package. It patches nothing in vLLM.

The scheduler half asks and keeps the books, the worker half copies; what they tell each other is in
`orders`. Only `connector` and `stats` import vLLM, so that the halves can be read, and tested,
without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvwise.engines.vllm.connector import KvwiseConnector

__all__ = ["KvwiseConnector"]


def __getattr__(name: str) -> object:
    """The connector class, imported with vLLM at the moment vLLM asks for it."""
    if name == "KvwiseConnector":
        from kvwise.engines.vllm import connector

        return connector.KvwiseConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
