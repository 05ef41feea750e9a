"""Sim: the same brain in virtual time. It owns simulated machines, and never imports real ones."""
