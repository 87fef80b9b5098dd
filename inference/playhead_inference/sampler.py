"""Run the steps of vLLM's sampler on a GPU at every number of requests, and compare each row bit by bit.

The sampler of vLLM's second model runner consists of Triton kernels, which bypass torch's dispatcher, so a trace shows neither
their shapes nor their arguments. Here each is called as vLLM calls it. The parameters differ from request to request, and
the logits are rounded to the model's dtype, so that some of them are equal. A step's neighbours also differ in what they ask
for: the number of logprobs, and whether anybody uses top-k or top-p.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from typing import Any, Final

import torch

Step = Callable[[int, int], Sequence[Any]]
"""Computes the rows of the requests from the first number on, as many as the second one says."""

SHOWN: Final = 6
"""Columns of the logprobs that are compared: the sampled token and the five that a request asked for."""

MOST_LOGPROBS: Final = 20

SPREAD: Final = 1.6
"""Standard deviation of the logits."""


def differing_steps(vocabulary: int, most: int, dtype: Any, device: Any) -> tuple[int, list[str]]:
    """Return the number of steps, and those in which a row depends on the other requests, up to `most` of them."""
    steps = dict(_sampler_steps(vocabulary, most, dtype, device))
    found = {name: _differing_counts(step, most) for name, step in steps.items()}
    return len(steps), [
        f"sampler, {name}, at {counts[0]} requests and {len(counts) - 1} more numbers of them"
        for name, counts in found.items()
        if counts
    ]


def _differing_counts(step: Step, most: int) -> list[int]:
    whole = step(0, most)
    found = []
    for count in range(1, most):
        at = 0 if count % 2 else most - count
        rows = (each[at : at + count] for each in whole)
        if not all(torch.equal(row, part) for row, part in zip(rows, step(at, count), strict=True)):
            found.append(count)
    return found


def _sampler_steps(vocabulary: int, most: int, dtype: Any, device: Any) -> Iterator[tuple[str, Step]]:
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
    from vllm.v1.worker.gpu.sample.gumbel import apply_temperature, gumbel_sample
    from vllm.v1.worker.gpu.sample.logit_bias import apply_logit_bias
    from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores
    from vllm.v1.worker.gpu.sample.min_p import apply_min_p
    from vllm.v1.worker.gpu.sample.penalties import apply_penalties

    draw = torch.Generator().manual_seed(1)

    def repeat(*values: float, dtype: Any = torch.float32) -> Any:
        return torch.tensor(list(islice(cycle(values), most)), dtype=dtype, device=device)

    def integers(low: int, high: int, *shape: int, dtype: Any = torch.int32) -> Any:
        return torch.randint(low, high, shape, generator=draw, dtype=dtype).to(device)

    raw = (torch.randn(most, vocabulary, generator=draw) * SPREAD).to(dtype).to(device)
    requests = torch.arange(most, dtype=torch.int32, device=device)
    temperature, seeds = repeat(0.0, 0.8, 1.0), integers(0, 1 << 40, most, dtype=torch.int64)
    positions = integers(0, 4096, most, dtype=torch.int64)
    sampled = integers(0, vocabulary, most, dtype=torch.int64)
    everything, some = repeat(vocabulary, dtype=torch.int32), repeat(40, vocabulary, 20, dtype=torch.int32)
    all_mass, nucleus, most_mass = repeat(1.0), repeat(0.9), repeat(0.9, 1.0, 0.8, 0.95)
    penalties = (repeat(1.1, 1.0), repeat(0.0, 0.3, 0.3), repeat(0.5, 0.0))
    in_prompt = integers(-(1 << 31), (1 << 31) - 1, most, -(-vocabulary // 32))
    in_answer = (integers(0, 8, most, vocabulary) - 5).clamp(min=0)
    none = torch.zeros(most, dtype=torch.int32, device=device)
    min_p = repeat(0.0, 0.05, 0.01)
    # Eight different tokens for each request: those that it may use, those with a bias, and those that end an answer.
    tokens = ((torch.arange(8) * 7 + torch.arange(most)[:, None]) % vocabulary).to(torch.int32).to(device)
    biases = torch.randn(most, 8, generator=draw).to(device)
    allowed, biased, ending = (repeat(*counts, dtype=torch.int32) for counts in ((0, 0, 5), (0, 3), (2, 0)))
    shortest = (positions + repeat(2, 0, dtype=torch.int64)).to(torch.int32)

    def floats(at: int, count: int) -> Any:
        return raw[at : at + count].float()

    def in_place(change: Callable[[Any, int, int], Any]) -> Step:
        def step(at: int, count: int) -> Sequence[Any]:
            logits = floats(at, count)
            changed = change(logits, at, at + count)
            return (logits if changed is None else changed,)

        return step

    def logprobs(at: int, count: int) -> Sequence[Any]:
        # A neighbour that wants more logprobs widens the table of the whole batch.
        columns = MOST_LOGPROBS if count == most else SHOWN - 1 + count % (MOST_LOGPROBS - SHOWN + 2)
        found = compute_topk_scores(raw[at : at + count], columns, sampled[at : at + count])
        return found.logprob_token_ids[:, :SHOWN], found.logprobs[:, :SHOWN], found.selected_token_ranks

    def nucleus_alone(logits: Any, start: int, end: int) -> Any:
        # Whether a neighbour uses top-k changes the kernel, but not this row.
        return apply_top_k_top_p(logits, None if (end - start) % 2 else everything[start:end], nucleus[start:end])

    def top_k_alone(logits: Any, start: int, end: int) -> Any:
        return apply_top_k_top_p(logits, some[start:end], None if (end - start) % 2 else all_mass[start:end])

    yield "logprobs", logprobs
    yield (
        "temperature",
        in_place(lambda logits, start, end: apply_temperature(logits, requests[start:end], temperature)),
    )
    yield "min_p", in_place(lambda logits, start, end: apply_min_p(logits, requests[start:end], min_p))
    yield "top_p", in_place(nucleus_alone)
    yield "top_k", in_place(top_k_alone)
    yield (
        "top_k and top_p",
        in_place(lambda logits, start, end: apply_top_k_top_p(logits, some[start:end], most_mass[start:end])),
    )
    yield (
        "penalties",
        in_place(
            lambda logits, start, end: apply_penalties(
                logits, requests[start:end], none, none[start:end], *penalties, in_prompt, in_answer
            )
        ),
    )
    yield (
        "bias",
        in_place(
            lambda logits, start, end: apply_logit_bias(
                logits,
                requests[start:end],
                positions[start:end],
                allowed,
                tokens,
                biased,
                tokens,
                biases,
                shortest,
                ending,
                none,
                tokens,
                False,
            )
        ),
    )
    yield (
        "sampling",
        in_place(
            lambda logits, start, end: gumbel_sample(
                logits,
                requests[start:end],
                temperature,
                seeds,
                positions[start:end],
                apply_temperature=False,
                is_drafting=False,
            )
        ),
    )
