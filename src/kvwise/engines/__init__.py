"""Adapters, one for each host engine, by its public interface. They decide nothing."""
