"""What a process uses, sampled while something runs."""

import asyncio
import os

from benchmarks.peers import machine


def test_each_sample_has_what_the_store_held_even_when_asking_is_cut_off():
    answers = iter([1, 2, 3])

    async def kept():
        held = next(answers, None)
        if held is None:
            await asyncio.sleep(60)  # cut off by the end of the block; the last sample asks anew
        return held

    async def watched():
        nonlocal answers
        async with machine.watching(os.getpgid(0), every_s=0.001, kept=kept) as watch:
            while len(watch.samples) < 3:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)
            answers = iter([4])
        return watch

    watch = asyncio.run(watched())
    assert watch.kept == [1, 2, 3, 4]
    assert len(watch.times) == len(watch.samples) == 4
    assert watch.times == sorted(watch.times)


def test_without_a_store_nothing_is_kept():
    async def watched():
        async with machine.watching(os.getpgid(0)) as watch:
            pass
        return watch

    watch = asyncio.run(watched())
    assert watch.kept == [0, 0]
    assert watch.last.resident >= watch.last.own > 0
