"""Check the live engine: what it executes, operation by operation, and what it answers, alone and in company.

First a few batches are traced, and every operation that was executed is run at each number of rows that the configuration
allows (trace.py). Then the engine is asked the same thing many times, with our patch and without it. The company matters: on a
CPU the bits of a prompt differ by its neighbours only beyond some 500 tokens of context, and a prompt that lies in the prefix
cache is not computed again. So the needle is long, some neighbours are long and others many, up to `max_num_seqs`, and it is
asked both with a salt of its own, which keeps it out of the cache, and with one that it shares. And an answer is asked for
again with its beginning in the prompt, at the end of the longest context that is claimed: a preempted request is computed so.
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

from playhead_inference.cache import load_verdict, machine, save_verdict, verdict_directory, verdict_key
from playhead_inference.config import facts as configured
from playhead_inference.config import server_refusals
from playhead_inference.guard import refusals
from playhead_inference.identity import code_identity, model_identity, process_identity, server_arguments
from playhead_inference.verdict import CONTROL, Answer, Cell, apart, cell, fingerprint, word
from playhead_inference.versions import known

log = logging.getLogger("vllm.playhead_inference")

CONTEXT: Final = 1200
TOKENS: Final = 8
WAVES: Final = ((1, 0, 0), (3, 4, 0), (6, 2, 0), (4, 2, 27), (4, 2, 42), (5, 2, 56))
"""Needles, long neighbours and short ones of each wave: alone, among the long, among itself, in batches of 33, 48 and 63."""

STOCK_WAVES: Final = 3
"""How many of them the control goes through: all that it takes for stock vLLM to vary."""

SHORT: Final = (20, 60)
"""Tokens of a short neighbour."""

LEAD: Final = 32
"""Tokens of the shortest answer where the batch shrinks by one request a step: meanwhile all of them arrive."""

LONG: Final = 4096
ANSWER: Final = 16
CONTINUED: Final = (1, 5, 9, 15)
"""How much of an answer is given with the prompt; in a context of more than LONG tokens, which takes its time, only the third."""

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
"""What neighbours ask for: what one of them needs must not change the others."""

TRACES: Final[Sequence[Sequence[Mapping[str, Any]]]] = (
    COMPANY,
    ({"temperature": 0.0},),
    ({"temperature": 0.8, "seed": 1, "logprobs": 5},),
)
"""Batches to trace: mixed, and two kinds that vLLM computes by other paths."""

ATTEMPTS: Final = 5


@dataclass(slots=True)
class Check:
    """The self-check of one engine."""

    engine: Any
    args: Any = None
    """The arguments of vLLM's server, parsed."""
    asked: int = 0

    async def report(self) -> dict[str, Any]:
        """Everything that `GET /batch_invariance` says."""
        config = self.engine.vllm_config
        device = config.device_config.device_type
        refused = [*refusals(configured(config, device)), *server_refusals(self.args)]
        built, unknown = await self._built()
        refused += unknown
        said = {"fingerprint": fingerprint(built), "refused": refused, "cached": False, **built}
        if refused:
            return {"verdict": word([], [], [], refused), **said}
        settings = _checked(config)
        directory = None if "process" in built else verdict_directory()
        key = verdict_key(said["fingerprint"], settings, machine())
        if (kept := load_verdict(directory, key)) and (again := await self._still_holds()):
            return {**kept, "cached": True, "asked_again": asdict(again)}
        report = {**said, "checked": settings, **await self._checked(built, device)}
        if why := save_verdict(directory, key, report):
            log.warning("the verdict was not kept for the next start: %s", why)
        return report

    async def control(self) -> dict[str, Any]:
        """What stock vLLM does, and whose answer that is."""
        built, _ = await self._built()
        return {"of": built, "cells": [asdict(found) for found in await self._swept(patched=False)]}

    async def _built(self) -> tuple[dict[str, Any], list[str]]:
        """What the answers depend on, and why that cannot be said."""
        workers = await self.engine.collective_rpc("playhead_facts")
        built = {"vllm": known(), "code": code_identity(), "workers": workers, "model": {}}
        built |= {"arguments": server_arguments(self.args), **process_identity(self.engine.vllm_config)}
        try:
            # Reading a checkpoint takes seconds: meanwhile the server's loop goes on.
            built["model"] = await asyncio.to_thread(
                model_identity, self.engine.vllm_config, getattr(self.args, "chat_template", None)
            )
        except ValueError as error:
            return built, [str(error)]
        return built, []

    async def _still_holds(self) -> Cell | None:
        """A needle alone and in company, asked of a server whose check is remembered: this process is patched too."""
        draw = random.Random(20251121)  # noqa: S311 # the same prompts at every start
        needle = _words(draw, self._context(), self._vocabulary())
        answers: list[Answer] = []
        for wave in ((1, 0, 0), (2, 2, 4)):
            salts = [self._salt() for _ in range(wave[0])]
            answers += await self._wave(draw, needle, salts, wave[1:], SAMPLINGS["greedy"])
        found = cell("greedy", answers)
        return found if found.distinct == 1 else None

    async def _checked(self, built: Mapping[str, Any], device: str) -> dict[str, Any]:
        """Operation by operation, layer by layer, and through the engine."""
        # vLLM's own mode, on a GPU, cannot be turned off in a running process: its control ran before, in one of its own.
        stock = await self._swept(patched=False) if device == "cpu" else apart(built, os.environ.get(CONTROL))
        operations, untraced = await self._traced()
        layers = await self.engine.collective_rpc("playhead_layers")
        patched = await self._swept(patched=True)
        seen = await self.engine.collective_rpc("playhead_seen")
        differing = [name for worker in (*operations, *layers) for name in worker["differing"]]
        uncovered = [*untraced, *(name for worker in operations for name in worker["uncovered"])]
        uncovered += self._unseen(seen) if device == "cpu" else []
        return {
            "verdict": word(patched, stock, differing, [], uncovered),
            "operations": operations,
            "uncovered": uncovered,
            "layers": {
                "swept": sum(worker["swept"] for worker in layers),
                "shapes": max(worker["shapes"] for worker in layers),
                "differing": differing,
            },
            "patched": [asdict(found) for found in patched],
            "control": [asdict(found) for found in stock],
            "seen": seen,
            "not_claimed": list(NOT_CLAIMED),
        }

    def _unseen(self, seen: Sequence[Mapping[str, Any]]) -> list[str]:
        most, met = self._most(), min(worker["largest"] for worker in seen)
        return [] if met >= most else [f"the engine computed at most {met} requests at once and may compute {most}"]

    async def _traced(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Verdicts on what was executed, and why some of it was not traced."""
        told = (await self.engine.collective_rpc("playhead_trace", args=(True,)))[0]
        budget = self.engine.vllm_config.scheduler_config.max_num_batched_tokens
        requests = next((count for count in told["requests"] if count <= self._most()), None)
        tokens = next((count for count in reversed(told["tokens"]) if count <= budget), None)
        untraced: list[str] = []
        if requests is None or tokens is None:
            untraced.append("no batch of this configuration can be traced: it takes 11 requests and 151 tokens at once")
        else:
            recorded = [await self._recorded(tokens, requests, samplings) for samplings in TRACES]
            missing = f"no batch of {requests} requests with {tokens} tokens came together to be traced"
            untraced += [missing] * recorded.count(False)
        await self.engine.collective_rpc("playhead_trace", args=(False,))
        return await self.engine.collective_rpc("playhead_sweep"), untraced

    async def _recorded(self, tokens: int, requests: int, samplings: Sequence[Mapping[str, Any]]) -> bool:
        """Send a batch that arrives while another is computed, so that it is computed together. Whether it was."""
        draw = random.Random(20251122)  # noqa: S311 # likewise
        wanted = {(tokens, requests), (requests, requests)}
        before = len((await self.engine.collective_rpc("playhead_steps"))[0])
        share = tokens // requests
        lengths = [share] * (requests - 1) + [tokens - share * (requests - 1)]
        for _ in range(ATTEMPTS):
            asks = [self._ask(self._long(draw), self._salt(), {"temperature": 0.0}, 1)]
            asks += [
                self._ask(_words(draw, length, self._vocabulary()), self._salt(), samplings[at % len(samplings)])
                for at, length in enumerate(lengths)
            ]
            await asyncio.gather(*asks)
            steps = (await self.engine.collective_rpc("playhead_steps"))[0][before:]
            if wanted <= {(step[0], step[1]) for step in steps}:
                return True
        return False

    def _long(self, draw: random.Random) -> list[int]:
        """A prompt that takes one step, as long as it may be."""
        config = self.engine.vllm_config
        budget = config.scheduler_config.max_num_batched_tokens
        return _words(draw, min(budget, config.model_config.max_model_len - TOKENS), self._vocabulary())

    async def _swept(self, *, patched: bool) -> list[Cell]:
        await self.engine.collective_rpc("playhead_patch", args=(patched,))
        most = self._most()
        fullest = (3, 2, most - 5) if most >= 8 else (1, 0, 0)
        waves = (*WAVES, fullest) if patched else WAVES[:STOCK_WAVES]
        try:
            cells = [await self._cell(name, waves, sampling) for name, sampling in SAMPLINGS.items()]
            cells.append(await self._continued())
            return [*cells, await self._shrinking()] if patched else cells
        finally:
            await self.engine.collective_rpc("playhead_patch", args=(True,))

    async def _cell(self, name: str, waves: Sequence[tuple[int, int, int]], sampling: Mapping[str, Any]) -> Cell:
        """All waves, cold; then one of them again with a salt that is shared, so that it hits the prefix cache."""
        draw = random.Random(20251119)  # noqa: S311 # the same prompts at every start
        needle = _words(draw, self._context(), self._vocabulary())
        answers: list[Answer] = []
        for needles, *neighbours in (wave for wave in waves if sum(wave) <= self._most()):
            answers += await self._wave(draw, needle, [self._salt() for _ in range(needles)], neighbours, sampling)
        shared = self._salt()
        for needles, *neighbours in ((1, 0, 0), WAVES[2]):
            answers += await self._wave(draw, needle, [shared] * needles, neighbours, sampling)
        return cell(name, answers)

    async def _continued(self) -> Cell:
        """A long answer to a long prompt, and again with its beginning given as prompt: what a preempted request goes through.

        There a token that was computed alone is computed among others of its own request, at the end of a long context.
        """
        draw = random.Random(20251120)  # noqa: S311 # likewise
        longest = int(self.engine.vllm_config.model_config.max_model_len)
        needle = _words(draw, longest - ANSWER, self._vocabulary())
        whole = await self._ask(needle, self._salt(), SAMPLINGS["greedy"], ANSWER)
        answers = [whole]
        for at in CONTINUED if longest <= LONG else CONTINUED[2:3]:
            rest = await self._ask([*needle, *whole.tokens[:at]], self._salt(), SAMPLINGS["greedy"], ANSWER - at)
            answers.append(Answer(tokens=whole.tokens[:at] + rest.tokens, logprobs=whole.logprobs[:at] + rest.logprobs))
        return cell("continued", answers)

    async def _shrinking(self) -> Cell:
        """A needle that is decoded in a batch of every size: its neighbours end one by one, a token after each other."""
        draw = random.Random(20251123)  # noqa: S311 # likewise
        room = int(self.engine.vllm_config.model_config.max_model_len) - SHORT[1]
        most = max(2, min(self._most(), room - LEAD))
        tokens = min(most + LEAD, room)
        needle = _words(draw, min(SHORT[1], room), self._vocabulary())
        alone = await self._ask(needle, self._salt(), SAMPLINGS["greedy"], tokens)
        others = [_words(draw, SHORT[0] // 2, self._vocabulary()) for _ in range(most - 1)]
        asks = [self._ask(needle, self._salt(), SAMPLINGS["greedy"], tokens)]
        asks += [
            self._ask(other, self._salt(), COMPANY[at % len(COMPANY)], max(1, tokens - 1 - at))
            for at, other in enumerate(others)
        ]
        among, *_ = await asyncio.gather(*asks)
        return cell("shrinking", [alone, among])

    async def _wave(
        self,
        draw: random.Random,
        needle: Sequence[int],
        salts: Sequence[str],
        neighbours: Sequence[int],
        sampling: Mapping[str, Any],
    ) -> list[Answer]:
        """Needles and neighbours together, in an order drawn by lot; the needles' answers."""
        long, short = neighbours
        lengths = [draw.randint(self._context() // 4, self._context()) for _ in range(long)]
        lengths += [min(draw.randint(*SHORT), self._context()) for _ in range(short)]
        others = [_words(draw, length, self._vocabulary()) for length in lengths]
        asked = [(needle, salt, sampling) for salt in salts]
        asked += [(other, "", COMPANY[at % len(COMPANY)]) for at, other in enumerate(others)]
        draw.shuffle(asked)
        found = await asyncio.gather(*(self._ask(prompt, salt or self._salt(), how) for prompt, salt, how in asked))
        return [answer for answer, (_, salt, _) in zip(found, asked, strict=True) if salt]

    async def _ask(self, prompt: Sequence[int], salt: str, sampling: Mapping[str, Any], tokens: int = TOKENS) -> Answer:
        """One request, its answer handed out token by token as to a stream."""
        self.asked += 1
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
        async for output in self.engine.generate(prompt_, params, f"playhead-check-{self.asked}"):
            for part in output.outputs:
                pieces[part.index] = _longer(pieces.get(part.index), part)
        if not pieces:
            raise RuntimeError("the engine ended a request of the self-check without an answer")
        whole = [pieces[at] for at in sorted(pieces)]
        return Answer(
            tokens=tuple(token for each in whole for token in each.tokens),
            logprobs=tuple(position for each in whole for position in each.logprobs),
        )

    def _salt(self) -> str:
        return f"playhead-check-{self.asked}-{random.getrandbits(64):x}"

    def _context(self) -> int:
        return min(CONTEXT, int(self.engine.vllm_config.model_config.max_model_len) - TOKENS)

    def _vocabulary(self) -> int:
        return int(self.engine.vllm_config.model_config.get_vocab_size())

    def _most(self) -> int:
        return int(self.engine.vllm_config.scheduler_config.max_num_seqs)


NOT_CLAIMED: Final = (
    "the same bits on another machine, ISA, number of threads or version: compare the fingerprint",
    "for a mixture of experts, the same bits after a restart",
    "anything for a request that samples without a seed",
    "prompt logprobs, structured outputs, tools and every other field of a request that the check does not use",
)


def _longer(answer: Answer | None, output: Any) -> Answer:
    """With the tokens that came now."""
    before = answer or Answer(tokens=(), logprobs=())
    logprobs = tuple(
        tuple(sorted((token, float(entry.logprob).hex()) for token, entry in position.items()))
        for position in output.logprobs or ()
    )
    return Answer(tokens=(*before.tokens, *output.token_ids), logprobs=(*before.logprobs, *logprobs))


def _words(draw: random.Random, length: int, vocabulary: int) -> list[int]:
    """A prompt of tokens, so that no tokenizer has a say."""
    return [draw.randrange(vocabulary) for _ in range(length)]


def _checked(config: Any) -> dict[str, Any]:
    """Which of vLLM's choices this check goes through. A verdict is remembered for these and no others."""
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
