"""Adapters of host engines. Each talks to one engine through its public interface, decides nothing."""
