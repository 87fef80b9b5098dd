"""Find the smallest part of a list that still fails, by delta debugging (Zeller and Hildebrandt, ddmin, 2002)."""

from collections.abc import Awaitable, Callable, Sequence


async def find_smallest[T](items: Sequence[T], still_fails: Callable[[Sequence[T]], Awaitable[bool]]) -> Sequence[T]:
    """Return a part that fails, of which no item can be left out. The whole list must fail."""
    current, parts = list(items), 2
    while len(current) > 1:
        size = -(-len(current) // parts)
        slices = [current[place : place + size] for place in range(0, len(current), size)]
        smaller = await _first_that_fails(current, slices, still_fails)
        if smaller is not None:
            current, parts = smaller, 2 if len(smaller) <= size else max(parts - 1, 2)
        elif size == 1:
            break
        else:
            parts = min(len(current), parts * 2)
    return current


async def _first_that_fails[T](
    current: Sequence[T], slices: Sequence[Sequence[T]], still_fails: Callable[[Sequence[T]], Awaitable[bool]]
) -> list[T] | None:
    """Try each slice alone, and then everything but each slice."""
    for part in slices:
        if len(part) < len(current) and await still_fails(part):
            return list(part)
    if len(slices) > 2:
        for number in range(len(slices)):
            rest = [one for place, part in enumerate(slices) if place != number for one in part]
            if await still_fails(rest):
                return rest
    return None
