"""The peers' processes: the walkthrough's scorer and the floor run on a tiny model, and all of them are stopped."""

from __future__ import annotations

import asyncio
import os

import httpx
import numpy as np
import pytest

import tiny_models
from benchmarks.peers import servers
from benchmarks.peers.asking import ANSWERED, REFUSED, Patience, ask
from benchmarks.peers.cases import routing, three_questions
from benchmarks.peers.servers import LLAMA, OURS, PEERS, WALKTHROUGH, Plan
from benchmarks.peers.workloads import connected


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    room = tmp_path_factory.mktemp("peers")
    model = tiny_models.write("llama", room / "model.gguf")
    return Plan(model=model, threads=1, context_tokens=2048, chats=2, source=servers.ROOT, logs=room / "logs")


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_walkthroughs_scorer_shares_a_state_and_takes_one_request_at_a_time(plan):
    async def use(running):
        peer = running.peer
        async with connected(running) as client:
            single = await ask(client, peer, routing(1), cell="c", patience=Patience())
            several = await ask(client, peer, three_questions(1), cell="c", patience=Patience())
            cases = [routing(number) for number in range(2, 14)]
            impatient = Patience(attempts=1)
            crowd = await asyncio.gather(*(ask(client, peer, c, cell="c", patience=impatient) for c in cases))
            again = await ask(client, peer, routing(1), cell="c", patience=Patience())
        return single, several, crowd, again

    with servers.running(PEERS[WALKTHROUGH], plan) as running:
        single, several, crowd, again = asyncio.run(use(running))
    assert not is_running(running.pid)
    assert (single.outcome, several.outcome) == (ANSWERED, ANSWERED)
    assert again.answers == single.answers
    first, *others = several.answers
    assert first.reused == 0
    assert all(answer.reused == others[0].reused > 0 for answer in others)
    outcomes = [record.outcome for record in crowd]
    assert set(outcomes) == {ANSWERED, REFUSED}


def test_a_shared_state_answers_like_the_whole_prompt(plan):
    """Not bit for bit, because two decodes add up in another order than one; but far nearer than another state's."""
    case, other = three_questions(4), three_questions(5)

    async def use(running):
        async with connected(running) as client:
            together = await ask(client, running.peer, case, cell="c", patience=Patience())
            bodies = [running.peer.body(asked)["decisions"] for asked in (case, other)]
            same, another = [
                [(await client.post("/invocations", json={"decision": one})).json() for one in decisions]
                for decisions in bodies
            ]
        return together, same, another

    def distance(results):
        pairs = zip(together.answers, results, strict=True)
        return max(np.abs(np.subtract(a.numbers, r["result"]["option_logits"])).max() for a, r in pairs)

    with servers.running(PEERS[WALKTHROUGH], plan) as running:
        together, same, another = asyncio.run(use(running))
    assert distance(same) < distance(another) / 4


def test_the_floor_decodes_and_is_stopped(plan):
    plan.logs.mkdir(exist_ok=True)
    with servers.floor(plan) as floor:
        assert floor.seconds("some words here", evaluated=20, reused=0) > 0
        assert floor.seconds("other words there", evaluated=20, reused=30) > 0
        assert floor.seconds("other words there", evaluated=600, reused=30) > 0
    assert not is_running(floor.pid)


def test_a_peer_that_cannot_start_is_quoted(plan, tmp_path):
    broken = tiny_models.write_bad_magic(tmp_path / "broken.gguf")
    wrong = Plan(model=broken, threads=1, context_tokens=512, chats=2, source=servers.ROOT, logs=tmp_path / "logs")
    with (
        pytest.raises(SystemExit, match="cannot load"),
        servers.running(PEERS[WALKTHROUGH], wrong),
    ):
        pass


def test_ours_is_imported_from_the_checkout_that_was_named(plan, tmp_path):
    other = Plan(
        model=plan.model,
        threads=1,
        context_tokens=2048,
        chats=2,
        source=tmp_path,
        logs=plan.logs,
        arguments=("--x", "1"),
    )
    paths = servers.environment(PEERS[OURS], other)["PYTHONPATH"].split(os.pathsep)
    assert paths == [str(tmp_path / "runtime"), str(tmp_path)]
    command = servers.command(PEERS[OURS], other, port=1, alone=True)
    assert command[-3:] == ["--x", "1", "--no-reuse-prefixes"]
    assert "--no-reuse-prefixes" not in servers.command(PEERS[OURS], other, port=1, alone=False)


def test_every_peer_that_is_offered_can_be_described():
    assert {peer.kind for peer in PEERS.values()} == {OURS, LLAMA, WALKTHROUGH}
    assert all(name == peer.name for name, peer in PEERS.items())
    assert httpx.URL("http://peer" + PEERS[OURS].path).path == "/v1/systemone"
