"""Check the live engine: every operation that it executes, and its answers to a request that is alone or among others.

First a few batches are traced, and every executed operation is run at each number of rows that the configuration allows
(trace.py). Then the engine gets the same request (the needle) many times, with the patch and without it. The neighbours
matter: on a CPU the bits of a prompt depend on them only beyond about 500 tokens of context, and a prompt in the prefix cache
is not computed again. So the needle is long, some neighbours are long, and there are up to `max_num_seqs` of them. The needle
is sent with its own salt, which keeps it out of the cache, and with a shared one. Finally an answer is requested again with
its beginning in the prompt, at the end of the longest context that is claimed, because a preempted request is computed so.
"""

import asyncio
import logging
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from vllm import SamplingParams
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind

from playhead_inference.cache import load_verdict, machine_identity, save_verdict, verdict_directory, verdict_key
from playhead_inference.config import read_facts, server_refusals
from playhead_inference.guard import refusals
from playhead_inference.identity import code_identity, model_identity, process_identity, server_arguments
from playhead_inference.verdict import (
    CONTROL,
    Answer,
    Cell,
    decide_verdict,
    fingerprint,
    read_control,
    summarize_answers,
)
from playhead_inference.versions import require_known_version

log = logging.getLogger("vllm.playhead_inference")

CONTEXT: Final = 1200
TOKENS: Final = 8
WAVES: Final = ((1, 0, 0), (3, 4, 0), (6, 2, 0), (4, 2, 27), (4, 2, 42), (5, 2, 56))
"""Needles, long neighbours and short ones of each wave: alone, with long ones, with more needles, in batches of 33, 48, 63."""

STOCK_WAVES: Final = 3
"""Number of waves in the control, which is enough for stock vLLM to vary."""

SHORT_NEIGHBOUR: Final = (20, 60)
"""Minimum and maximum tokens of a short neighbour."""

ARRIVAL_TOKENS: Final = 32
"""Tokens of the shortest answer in a batch that shrinks by one request per step. All requests arrive during them."""

LONG_CONTEXT: Final = 4096
ANSWER_TOKENS: Final = 16
CONTINUED: Final = (1, 5, 9, 15)
"""Numbers of answer tokens that are moved into the prompt. With more than LONG_CONTEXT tokens, only the third is tried."""

PENALTIES: Final[Mapping[str, Any]] = {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.1}

SAMPLINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.8, "seed": 42},
    "shaped": {"temperature": 0.8, "seed": 42, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "n": 2, **PENALTIES},
}

COMPANY: Final[Sequence[Mapping[str, Any]]] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "seed": 7, "top_p": 0.8},
    {"temperature": 0.0, "logprobs": 20, **PENALTIES},
    {"temperature": 1.2, "top_k": 20, "min_p": 0.05, "logprobs": 1},
)
"""Sampling parameters of the neighbours, none of which may change the other answers."""

TRACES: Final[Sequence[Sequence[Mapping[str, Any]]]] = (
    COMPANY,
    ({"temperature": 0.0},),
    ({"temperature": 0.8, "seed": 1, "logprobs": 5},),
)
"""Sampling parameters of the traced batches: a mixed one, and two that vLLM computes on other code paths."""

ATTEMPTS: Final = 5


@dataclass(slots=True)
class SelfCheck:
    """The self-check of one engine."""

    engine: Any
    args: Any = None
    """The parsed arguments of vLLM's server."""
    request_count: int = 0

    async def report(self) -> dict[str, Any]:
        """Run the check, and return the content of `GET /batch_invariance`."""
        config = self.engine.vllm_config
        device = config.device_config.device_type
        reasons = [*refusals(read_facts(config, device)), *server_refusals(self.args)]
        identity, unknown = await self._read_identity()
        reasons += unknown
        common = {"fingerprint": fingerprint(identity), "refused": reasons, "cached": False, **identity}
        if reasons:
            return {"verdict": decide_verdict([], [], [], reasons), **common}
        settings = _check_settings(config)
        directory = None if "process" in identity else verdict_directory()
        key = verdict_key(common["fingerprint"], settings, machine_identity())
        if (cached := load_verdict(directory, key)) and (recheck := await self._recheck()):
            return {**cached, "cached": True, "asked_again": asdict(recheck)}
        report = {**common, "checked": settings, **await self._run_checks(identity, device)}
        if why := save_verdict(directory, key, report):
            log.warning("the verdict could not be saved for the next start: %s", why)
        return report

    async def control(self) -> dict[str, Any]:
        """Run the control on stock vLLM, and return its cells with its identity."""
        identity, _ = await self._read_identity()
        return {"of": identity, "cells": [asdict(found) for found in await self._count_answers(patched=False)]}

    async def _read_identity(self) -> tuple[dict[str, Any], list[str]]:
        """Read what the answers depend on, and the reasons why some of it is not known."""
        workers = await self.engine.collective_rpc("playhead_facts")
        identity = {"vllm": require_known_version(), "code": code_identity(), "workers": workers, "model": {}}
        identity |= {"arguments": server_arguments(self.args), **process_identity(self.engine.vllm_config)}
        try:
            # Reading a checkpoint takes seconds and must not block the server's event loop.
            identity["model"] = await asyncio.to_thread(
                model_identity, self.engine.vllm_config, getattr(self.args, "chat_template", None)
            )
        except ValueError as error:
            return identity, [str(error)]
        return identity, []

    async def _recheck(self) -> Cell | None:
        """Compare a needle alone and among others when the verdict was cached, to see that this process is patched too."""
        draw = random.Random(20251121)  # noqa: S311 # the same prompts at every start
        needle = _random_prompt(draw, self._needle_length(), self._vocabulary_size())
        answers: list[Answer] = []
        for wave in ((1, 0, 0), (2, 2, 4)):
            salts = [self._salt() for _ in range(wave[0])]
            answers += await self._send_wave(draw, needle, salts, wave[1:], SAMPLINGS["greedy"])
        found = summarize_answers("greedy", answers)
        return found if found.distinct == 1 else None

    async def _run_checks(self, identity: Mapping[str, Any], device: str) -> dict[str, Any]:
        """Check each operation, each layer, and the engine's answers."""
        # On a GPU, vLLM's own mode cannot be turned off in a running process, so the control ran before in another one.
        stock = (
            await self._count_answers(patched=False)
            if device == "cpu"
            else read_control(identity, os.environ.get(CONTROL))
        )
        operations, untraced = await self._trace_and_sweep()
        layers = await self.engine.collective_rpc("playhead_layers")
        patched = await self._count_answers(patched=True)
        batches = await self.engine.collective_rpc("playhead_seen")
        differing = [name for worker in (*operations, *layers) for name in worker["differing"]]
        uncovered = [*untraced, *(name for worker in operations for name in worker["uncovered"])]
        uncovered += self._missing_batch_sizes(batches) if device == "cpu" else []
        return {
            "verdict": decide_verdict(patched, stock, differing, [], uncovered),
            "operations": operations,
            "uncovered": uncovered,
            "layers": {
                "swept": sum(worker["swept"] for worker in layers),
                "shapes": max(worker["shapes"] for worker in layers),
                "differing": differing,
            },
            "patched": [asdict(found) for found in patched],
            "control": [asdict(found) for found in stock],
            "seen": batches,
            "not_claimed": list(NOT_CLAIMED),
        }

    def _missing_batch_sizes(self, batches: Sequence[Mapping[str, Any]]) -> list[str]:
        most, largest = self._max_requests(), min(worker["largest"] for worker in batches)
        return (
            []
            if largest >= most
            else [f"the engine computed at most {largest} requests at once, but may compute {most}"]
        )

    async def _trace_and_sweep(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Trace and sweep the executed operations; return the results, and the reasons why some were not traced."""
        counts = (await self.engine.collective_rpc("playhead_trace", args=(True,)))[0]
        budget = self.engine.vllm_config.scheduler_config.max_num_batched_tokens
        requests = next((count for count in counts["requests"] if count <= self._max_requests()), None)
        tokens = next((count for count in reversed(counts["tokens"]) if count <= budget), None)
        untraced: list[str] = []
        if requests is None or tokens is None:
            untraced.append(
                "no batch of this configuration can be traced: that needs 11 requests and 151 tokens at once"
            )
        else:
            results = [await self._record_batch(tokens, requests, samplings) for samplings in TRACES]
            missing = f"no batch of {requests} requests with {tokens} tokens was computed together, so none was traced"
            untraced += [missing] * results.count(False)
        await self.engine.collective_rpc("playhead_trace", args=(False,))
        return await self.engine.collective_rpc("playhead_sweep"), untraced

    async def _record_batch(self, tokens: int, requests: int, samplings: Sequence[Mapping[str, Any]]) -> bool:
        """Send a batch while another request is computed, so that it is computed together. Return whether it was."""
        draw = random.Random(20251122)  # noqa: S311 # likewise
        wanted_steps = {(tokens, requests), (requests, requests)}
        before = len((await self.engine.collective_rpc("playhead_steps"))[0])
        share = tokens // requests
        lengths = [share] * (requests - 1) + [tokens - share * (requests - 1)]
        for _ in range(ATTEMPTS):
            asks = [self._ask(self._long_prompt(draw), self._salt(), {"temperature": 0.0}, 1)]
            asks += [
                self._ask(
                    _random_prompt(draw, length, self._vocabulary_size()), self._salt(), samplings[at % len(samplings)]
                )
                for at, length in enumerate(lengths)
            ]
            await asyncio.gather(*asks)
            steps = (await self.engine.collective_rpc("playhead_steps"))[0][before:]
            if wanted_steps <= {(step[0], step[1]) for step in steps}:
                return True
        return False

    def _long_prompt(self, draw: random.Random) -> list[int]:
        """The longest prompt that takes one step."""
        config = self.engine.vllm_config
        budget = config.scheduler_config.max_num_batched_tokens
        return _random_prompt(draw, min(budget, config.model_config.max_model_len - TOKENS), self._vocabulary_size())

    async def _count_answers(self, *, patched: bool) -> list[Cell]:
        await self.engine.collective_rpc("playhead_patch", args=(patched,))
        most = self._max_requests()
        fullest = (3, 2, most - 5) if most >= 8 else (1, 0, 0)
        waves = (*WAVES, fullest) if patched else WAVES[:STOCK_WAVES]
        try:
            cells = [await self._sampling_cell(name, waves, sampling) for name, sampling in SAMPLINGS.items()]
            cells.append(await self._continued_cell())
            return [*cells, await self._shrinking_cell()] if patched else cells
        finally:
            await self.engine.collective_rpc("playhead_patch", args=(True,))

    async def _sampling_cell(
        self, name: str, waves: Sequence[tuple[int, int, int]], sampling: Mapping[str, Any]
    ) -> Cell:
        """Send all waves past the prefix cache, then one of them again with a shared salt, so that it hits the cache."""
        draw = random.Random(20251119)  # noqa: S311 # the same prompts at every start
        needle = _random_prompt(draw, self._needle_length(), self._vocabulary_size())
        answers: list[Answer] = []
        for needles, *neighbours in (wave for wave in waves if sum(wave) <= self._max_requests()):
            answers += await self._send_wave(draw, needle, [self._salt() for _ in range(needles)], neighbours, sampling)
        shared = self._salt()
        for needles, *neighbours in ((1, 0, 0), WAVES[2]):
            answers += await self._send_wave(draw, needle, [shared] * needles, neighbours, sampling)
        return summarize_answers(name, answers)

    async def _continued_cell(self) -> Cell:
        """Compare a long answer with one whose beginning is part of the prompt, as for a preempted request.

        There, a token that was computed alone is computed among others of its own request, at the end of a long context.
        """
        draw = random.Random(20251120)  # noqa: S311 # likewise
        longest = int(self.engine.vllm_config.model_config.max_model_len)
        needle = _random_prompt(draw, longest - ANSWER_TOKENS, self._vocabulary_size())
        whole = await self._ask(needle, self._salt(), SAMPLINGS["greedy"], ANSWER_TOKENS)
        answers = [whole]
        for at in CONTINUED if longest <= LONG_CONTEXT else CONTINUED[2:3]:
            rest = await self._ask([*needle, *whole.tokens[:at]], self._salt(), SAMPLINGS["greedy"], ANSWER_TOKENS - at)
            answers.append(Answer(tokens=whole.tokens[:at] + rest.tokens, logprobs=whole.logprobs[:at] + rest.logprobs))
        return summarize_answers("continued", answers)

    async def _shrinking_cell(self) -> Cell:
        """Decode a needle in a batch of every size: its neighbours end one after the other, one per token."""
        draw = random.Random(20251123)  # noqa: S311 # likewise
        room = int(self.engine.vllm_config.model_config.max_model_len) - SHORT_NEIGHBOUR[1]
        most = max(2, min(self._max_requests(), room - ARRIVAL_TOKENS))
        tokens = min(most + ARRIVAL_TOKENS, room)
        needle = _random_prompt(draw, min(SHORT_NEIGHBOUR[1], room), self._vocabulary_size())
        alone = await self._ask(needle, self._salt(), SAMPLINGS["greedy"], tokens)
        others = [_random_prompt(draw, SHORT_NEIGHBOUR[0] // 2, self._vocabulary_size()) for _ in range(most - 1)]
        asks = [self._ask(needle, self._salt(), SAMPLINGS["greedy"], tokens)]
        asks += [
            self._ask(other, self._salt(), COMPANY[at % len(COMPANY)], max(1, tokens - 1 - at))
            for at, other in enumerate(others)
        ]
        among, *_ = await asyncio.gather(*asks)
        return summarize_answers("shrinking", [alone, among])

    async def _send_wave(
        self,
        draw: random.Random,
        needle: Sequence[int],
        salts: Sequence[str],
        neighbours: Sequence[int],
        sampling: Mapping[str, Any],
    ) -> list[Answer]:
        """Send needles and neighbours together in random order, and return the needles' answers."""
        long, short = neighbours
        lengths = [draw.randint(self._needle_length() // 4, self._needle_length()) for _ in range(long)]
        lengths += [min(draw.randint(*SHORT_NEIGHBOUR), self._needle_length()) for _ in range(short)]
        others = [_random_prompt(draw, length, self._vocabulary_size()) for length in lengths]
        requests = [(needle, salt, sampling) for salt in salts]
        requests += [(other, "", COMPANY[at % len(COMPANY)]) for at, other in enumerate(others)]
        draw.shuffle(requests)
        answers = await asyncio.gather(
            *(self._ask(prompt, salt or self._salt(), how) for prompt, salt, how in requests)
        )
        return [answer for answer, (_, salt, _) in zip(answers, requests, strict=True) if salt]

    async def _ask(self, prompt: Sequence[int], salt: str, sampling: Mapping[str, Any], tokens: int = TOKENS) -> Answer:
        """Send one request, whose answer is streamed token by token."""
        self.request_count += 1
        params = SamplingParams(
            max_tokens=tokens,
            min_tokens=tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            **{"logprobs": 5, **sampling},
        )
        prompt_ = TokensPrompt(prompt_token_ids=list(prompt), cache_salt=salt)
        pieces: dict[int, Answer] = {}
        async for output in self.engine.generate(prompt_, params, f"playhead-check-{self.request_count}"):
            for part in output.outputs:
                pieces[part.index] = _extend_answer(pieces.get(part.index), part)
        if not pieces:
            raise RuntimeError("the engine ended a request of the self-check without an answer")
        whole = [pieces[at] for at in sorted(pieces)]
        return Answer(
            tokens=tuple(token for each in whole for token in each.tokens),
            logprobs=tuple(position for each in whole for position in each.logprobs),
        )

    def _salt(self) -> str:
        return f"playhead-check-{self.request_count}-{random.getrandbits(64):x}"

    def _needle_length(self) -> int:
        return min(CONTEXT, int(self.engine.vllm_config.model_config.max_model_len) - TOKENS)

    def _vocabulary_size(self) -> int:
        return int(self.engine.vllm_config.model_config.get_vocab_size())

    def _max_requests(self) -> int:
        return int(self.engine.vllm_config.scheduler_config.max_num_seqs)


NOT_CLAIMED: Final = (
    "the same bits on another machine, ISA, number of threads or version: compare the fingerprint",
    "for a mixture of experts, the same bits after a restart",
    "anything for a request that samples without a seed",
    "prompt logprobs, structured outputs, tools and every other field of a request that the check does not use",
)


def _extend_answer(answer: Answer | None, output: Any) -> Answer:
    """Append newly streamed tokens to an answer."""
    before = answer or Answer(tokens=(), logprobs=())
    logprobs = tuple(
        tuple(sorted((token, float(entry.logprob).hex()) for token, entry in position.items()))
        for position in output.logprobs or ()
    )
    return Answer(tokens=(*before.tokens, *output.token_ids), logprobs=(*before.logprobs, *logprobs))


def _random_prompt(draw: random.Random, length: int, vocabulary: int) -> list[int]:
    """A prompt of random tokens, independent of any tokenizer."""
    return [draw.randrange(vocabulary) for _ in range(length)]


def _check_settings(config: Any) -> dict[str, Any]:
    """The settings of vLLM that this check covers. A cached verdict is valid only for these."""
    return {
        "context": min(CONTEXT, config.model_config.max_model_len),
        "continued_context": config.model_config.max_model_len,
        "samplings": [*SAMPLINGS],
        "waves": [list(wave) for wave in WAVES],
        "chunked_prefill": bool(config.scheduler_config.enable_chunked_prefill),
        "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "experts": bool(config.model_config.is_moe),
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
    }
