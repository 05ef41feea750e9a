"""Pages: which pages of the arena are free, and which form an object. It owns no memory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
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

    def allocate(self, each: int, objects: int = 1) -> tuple[int, ...] | None:
        """Take `each` pages, linked in order, for each of some objects, one after the other.

        None, and no change, when fewer are free.
        """
        count = each * objects
        if count <= 0 or count > len(self._free):
            return None
        taken = self._free[-count:]
        del self._free[-count:]
        taken.reverse()
        links = self._next
        if each > 1:
            for page, after in pairwise(taken):
                links[page] = after
        for last in taken[each - 1 :: each]:
            links[last] = _END
        return tuple(taken)

    def chain(self, first: int) -> tuple[int, ...]:
        """The pages of the object whose first page is `first`."""
        links, page, pages = self._next, first, []
        while page < _FREE:
            pages.append(page)
            page = links[page]
        if page == _FREE:
            raise ValueError(f"page {pages[-1]} is not part of an object")
        return tuple(pages)

    def chain_all(self, firsts: Sequence[int]) -> tuple[int, ...]:
        """The pages of some objects, by their first ones, one object after the other."""
        links, pages = self._next, list[int]()
        for first in firsts:
            if links[first] == _END:
                pages.append(first)
            else:
                pages.extend(self.chain(first))
        return tuple(pages)

    def chains(self, firsts: array[int], each: int) -> tuple[int, ...]:
        """The pages of many objects of `each` pages, by their first ones."""
        return tuple(columns.follow(self._next, firsts, each))

    def free(self, firsts: Sequence[int]) -> None:
        """Give back the pages of objects, by their first pages, one after the other.

        Raises:
            ValueError: one of them is free already; it and those after it do not change then.
        """
        links, free = self._next, self._free
        for first in firsts:
            after = links[first]
            if after == _FREE:
                raise ValueError(f"freed twice: page {first}")
            if after == _END:
                links[first] = _FREE
                free.append(first)
                continue
            pages = self.chain(first)
            for page in pages:
                links[page] = _FREE
            free.extend(pages[::-1])
