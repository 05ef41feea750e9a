"""The demo's text: the same everywhere, different for every number, long enough."""

from __future__ import annotations

import hashlib

from kvwise.bench.documents import WORDS, document


def test_documents_are_the_same_on_every_machine() -> None:
    """A change of the text is a change of the measurement, so it is made on purpose."""
    digest = hashlib.sha256(document(0).text.encode()).hexdigest()

    assert digest[:16] == "81fee88a88ec203b"


def test_documents_differ_from_their_first_words_on() -> None:
    """No two conversations share a prefix, or one would be measured on the other's cache."""
    starts = {document(number).text[:200] for number in range(40)}

    assert len(starts) == 40


def test_documents_are_long_and_have_no_blanks_left() -> None:
    """Every template was filled."""
    for number in range(12):
        text = document(number).text
        assert len(text.split()) >= WORDS
        assert not set("{}") & set(text)
