"""A queue makes its calls in order, and whoever waits for it goes on when it is empty, also if that was before."""

import asyncio
from concurrent.futures import Future

from proxy.recording.ordered_queue import OrderedQueue


async def test_calls_wait_for_the_work_before_them() -> None:
    calls: list[str] = []
    queue = OrderedQueue(lambda: calls.append("empty"))
    first, second = Future[None](), Future[None]()
    queue.append(lambda: calls.append("first"), first)
    queue.append(lambda: calls.append("second"), second)
    queue.append(lambda: calls.append("last"))
    second.set_result(None)
    await asyncio.sleep(0)
    assert calls == []
    first.set_result(None)
    await queue.wait_until_empty()
    assert calls == ["first", "second", "last", "empty"]


async def test_whoever_waits_for_a_queue_that_is_empty_already_goes_on() -> None:
    queue = OrderedQueue(lambda: None)
    work = Future[None]()
    queue.append(lambda: None, work)
    work.set_result(None)
    async with asyncio.timeout(10):
        # What waits begins only after the queue was emptied.
        await asyncio.gather(queue.wait_until_empty())
        await queue.wait_until_empty()
