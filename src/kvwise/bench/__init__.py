"""The room that measures kvwise on a real engine; it decides nothing about caching."""
