"""Ask the configured agent to run a fork. The URL is from the configuration alone, no redirect is followed, and no secret is sent."""

from typing import Final

import httpx2

from calls.codec.json import dumps
from store.query.rest_shapes import Shape

TIMEOUT: Final = httpx2.Timeout(10.0)


async def start_agent(url: str, message: Shape) -> Shape:
    """Send the agent a message as JSON; return its status, or why there is none. What else it answers is not read."""
    try:
        # The proxy of the environment may be Playhead itself.
        async with httpx2.AsyncClient(timeout=TIMEOUT, trust_env=False, follow_redirects=False) as client:
            headers = {"content-type": "application/json"}
            async with client.stream("POST", url, content=dumps(message), headers=headers) as response:
                return {"status": response.status_code, "problem": _problem_of(response.status_code)}
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return {"status": None, "problem": f"the agent does not answer: {str(error) or type(error).__name__}"}


def _problem_of(status: int) -> str | None:
    return None if 200 <= status < 300 else f"the agent refused with status {status}"
