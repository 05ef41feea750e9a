"""Rules: how one is said to be broken. What the rules are is written where they are checked."""

from __future__ import annotations


class RuleBroken(AssertionError):
    """The brain, or the simulator itself, broke a rule.

    Attributes:
        rule: the rule, in the same words whatever the circumstances.
    """

    def __init__(self, rule: str, details: str) -> None:
        super().__init__(f"{rule}: {details}")
        self.rule = rule


def require(rule: str, details: object, *, held: bool) -> None:
    """Refuse to go on when a rule does not hold."""
    if not held:
        raise RuleBroken(rule, str(details))
