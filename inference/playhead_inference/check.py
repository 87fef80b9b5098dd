"""Ask the live engine the same thing many times, alone and in company, with our attention and without it.

The company matters: on a CPU the bits of a prompt differ by its neighbours only beyond some 500 tokens of context, and a
prompt that lies in the prefix cache is not computed again. So the needle is long, its neighbours are long, and it is asked
both with a salt of its own, which keeps it out of the cache, and with one that it shares. And an answer is asked for again with
its beginning in the prompt, at the end of the longest context that is claimed: a preempted request is computed like that.
"""

import asyncio
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from vllm import SamplingParams
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind

from playhead_inference.config import facts as configured
from playhead_inference.guard import refusals
from playhead_inference.verdict import CONTROL, Answer, Cell, apart, cell, fingerprint, word
from playhead_inference.versions import known

CONTEXT: Final = 1200
TOKENS: Final = 8
WAVES: Final = ((1, 0), (3, 4), (6, 2))
"""Needles and neighbours of each wave: alone, among the long, among itself."""

LONG: Final = 4096
ANSWER: Final = 16
CONTINUED: Final = (1, 5, 9, 15)
"""A prompt and its answer of so many tokens together, and how much of the answer is given with the prompt."""

SAMPLINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.8, "seed": 42},
}


@dataclass(slots=True)
class Check:
    """The self-check of one engine."""

    engine: Any
    asked: int = 0

    async def report(self) -> dict[str, Any]:
        """Everything that `GET /batch_invariance` says."""
        config = self.engine.vllm_config
        device = config.device_config.device_type
        refused = refusals(configured(config, device))
        built = {"vllm": known(), "workers": await self.engine.collective_rpc("playhead_facts")}
        report = {"fingerprint": fingerprint(built), "refused": list(refused), **built}
        if refused:
            return {"verdict": word([], [], [], refused), **report}
        # vLLM's own mode, on a GPU, cannot be turned off in a running process: its control ran before, in one of its own.
        without = await self._swept(patched=False) if device == "cpu" else apart(built, os.environ.get(CONTROL))
        return report | await self._checked(without)

    async def control(self) -> dict[str, Any]:
        """What stock vLLM does, and whose answer that is."""
        built = {"vllm": known(), "workers": await self.engine.collective_rpc("playhead_facts")}
        return {"of": built, "cells": [asdict(found) for found in await self._swept(patched=False)]}

    async def _checked(self, without: Sequence[Cell]) -> dict[str, Any]:
        """Layer by layer, and through the engine."""
        layers = await self.engine.collective_rpc("playhead_layers")
        patched = await self._swept(patched=True)
        differing = [name for worker in layers for name in worker["differing"]]
        return {
            "verdict": word(patched, without, differing, []),
            "layers": {"swept": sum(worker["swept"] for worker in layers), "differing": differing},
            "patched": [asdict(found) for found in patched],
            "control": [asdict(found) for found in without],
            "seen": await self.engine.collective_rpc("playhead_seen"),
            "checked": _checked(self.engine.vllm_config),
            "not_claimed": list(NOT_CLAIMED),
        }

    async def _swept(self, *, patched: bool) -> list[Cell]:
        await self.engine.collective_rpc("playhead_patch", args=(patched,))
        try:
            return [await self._cell(name, **sampling) for name, sampling in SAMPLINGS.items()] + [
                await self._continued()
            ]
        finally:
            await self.engine.collective_rpc("playhead_patch", args=(True,))

    async def _cell(self, name: str, **sampling: Any) -> Cell:
        """All waves, cold; then the last one again with a salt that is shared, so that it hits the prefix cache."""
        draw = random.Random(20251119)  # noqa: S311 # the same prompts at every start
        needle = _words(draw, self._context(), self._vocabulary())
        answers: list[Answer] = []
        for needles, neighbours in WAVES:
            answers += await self._wave(draw, needle, [self._salt() for _ in range(needles)], neighbours, sampling)
        shared = self._salt()
        for needles, neighbours in ((1, 0), WAVES[-1]):
            answers += await self._wave(draw, needle, [shared] * needles, neighbours, sampling)
        return cell(name, answers)

    async def _continued(self) -> Cell:
        """A long answer to a long prompt, and again with its beginning given as prompt: what a preempted request goes through.

        There a token that was computed alone is computed among others of its own request, at the end of a long context.
        """
        draw = random.Random(20251120)  # noqa: S311 # likewise
        length = min(LONG, int(self.engine.vllm_config.model_config.max_model_len)) - ANSWER
        needle = _words(draw, length, self._vocabulary())
        whole = await self._ask(needle, self._salt(), SAMPLINGS["greedy"], ANSWER)
        answers = [whole]
        for at in CONTINUED:
            rest = await self._ask([*needle, *whole.tokens[:at]], self._salt(), SAMPLINGS["greedy"], ANSWER - at)
            answers.append(Answer(tokens=whole.tokens[:at] + rest.tokens, logprobs=whole.logprobs[:at] + rest.logprobs))
        return cell("continued", answers)

    async def _wave(
        self, draw: random.Random, needle: Sequence[int], salts: Sequence[str], neighbours: int, sampling: Any
    ) -> list[Answer]:
        """Needles and neighbours together, in an order drawn by lot; the needles' answers."""
        others = [
            _words(draw, draw.randint(self._context() // 4, self._context()), self._vocabulary())
            for _ in range(neighbours)
        ]
        asked = [(needle, salt) for salt in salts] + [(other, None) for other in others]
        draw.shuffle(asked)
        found = await asyncio.gather(*(self._ask(prompt, salt or self._salt(), sampling) for prompt, salt in asked))
        return [answer for answer, (_, salt) in zip(found, asked, strict=True) if salt is not None]

    async def _ask(self, prompt: Sequence[int], salt: str, sampling: Mapping[str, Any], tokens: int = TOKENS) -> Answer:
        self.asked += 1
        params = SamplingParams(
            max_tokens=tokens,
            min_tokens=tokens,
            ignore_eos=True,
            logprobs=5,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            **sampling,
        )
        prompt_ = TokensPrompt(prompt_token_ids=list(prompt), cache_salt=salt)
        answer: Answer | None = None
        async for output in self.engine.generate(prompt_, params, f"playhead-check-{self.asked}"):
            answer = _answer(output.outputs[0])
        if answer is None:
            raise RuntimeError("the engine ended a request of the self-check without an answer")
        return answer

    def _salt(self) -> str:
        return f"playhead-check-{self.asked}-{random.getrandbits(64):x}"

    def _context(self) -> int:
        return min(CONTEXT, int(self.engine.vllm_config.model_config.max_model_len) - TOKENS)

    def _vocabulary(self) -> int:
        return int(self.engine.vllm_config.model_config.get_vocab_size())


NOT_CLAIMED: Final = (
    "the same bits on another machine, ISA, number of threads or version: compare the fingerprint",
    "anything for a request that samples without a seed",
    "prompt logprobs",
)


def _answer(output: Any) -> Answer:
    return Answer(
        tokens=tuple(output.token_ids),
        logprobs=tuple(
            tuple(sorted((token, float(entry.logprob).hex()) for token, entry in position.items()))
            for position in output.logprobs
        ),
    )


def _words(draw: random.Random, length: int, vocabulary: int) -> list[int]:
    """A prompt of tokens, so that no tokenizer has a say."""
    return [draw.randrange(vocabulary) for _ in range(length)]


def _checked(config: Any) -> dict[str, Any]:
    """Which of vLLM's choices this check went through."""
    return {
        "context": min(CONTEXT, config.model_config.max_model_len),
        "continued_context": min(LONG, config.model_config.max_model_len),
        "samplings": list(SAMPLINGS),
        "chunked_prefill": bool(config.scheduler_config.enable_chunked_prefill),
        "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "experts": bool(config.model_config.is_moe),
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
    }
