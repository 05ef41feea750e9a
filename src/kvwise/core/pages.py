"""Pages: which pages of the arena are free, and which form an object. It owns no memory."""

from __future__ import annotations

from array import array
from itertools import pairwise

from kvwise.core import columns

_END = 0xFFFFFFFF
_FREE = 0xFFFFFFFE


class Pages:
    """A free list of `count` pages, and for every page in use the page that follows it.

    Fixed pages cannot fragment: an object takes any free pages. Pages freed together are handed out
    together again, so that objects of one size keep to neighbouring pages and I/O vectors stay
    short.
    """

    def __init__(self, count: int) -> None:
        """Make all of `count` pages free.

        Raises:
            ValueError: no pages, or more than a 32-bit link can name.
        """
        if not 0 < count < _FREE:
            raise ValueError(f"an arena has between 1 and {_FREE - 1} pages, not {count}")
        self.count = count
        self._free = array("I", range(count - 1, -1, -1))
        self._next = array("I", [_FREE]) * count

    @property
    def free_count(self) -> int:
        """Pages that are free."""
        return len(self._free)

    def allocate(self, count: int) -> tuple[int, ...] | None:
        """Take `count` pages, linked in order; None, and no change, when fewer are free."""
        if count <= 0 or count > len(self._free):
            return None
        taken = self._free[-count:]
        del self._free[-count:]
        taken.reverse()
        links = self._next
        for page, after in pairwise(taken):
            links[page] = after
        links[taken[-1]] = _END
        return tuple(taken)

    def chain(self, first: int) -> tuple[int, ...]:
        """The pages of the object whose first page is `first`."""
        links, page, pages = self._next, first, []
        while page != _END:
            pages.append(page)
            page = links[page]
            if page == _FREE:
                raise ValueError(f"page {pages[-1]} is not part of an object")
        return tuple(pages)

    def chains(self, firsts: array[int], each: int) -> tuple[int, ...]:
        """The pages of many objects of `each` pages, by their first ones."""
        return tuple(columns.follow(self._next, firsts, each))

    def free(self, pages: tuple[int, ...]) -> None:
        """Give pages back.

        Raises:
            ValueError: one of them is free already; nothing changes then.
        """
        links = self._next
        if any(links[page] == _FREE for page in pages):
            raise ValueError(f"freed twice: one of pages {pages}")
        for page in pages:
            links[page] = _FREE
        self._free.extend(reversed(pages))
