"""The ``typesafe-sdk``."""

from __future__ import annotations

from feature_runs import CHAT, run
from typesafe_sdk import AsyncTypeSafeClient, Choice, Noul, Score, TypeSafeClient

QUESTIONS = {
    "late": Noul(instructions="Is it late?"),
    "team": Choice(instructions="Who?", criteria={"shipping": "Parcels", "billing": None}),
    "anger": Score(instructions="How angry?", criteria=["calm", "angry"]),
}
client = TypeSafeClient(api_key="unused", base_url=CHAT)


def systemone() -> None:
    answer = client.system_one(state={"ticket": "late parcel"}, questions=QUESTIONS)
    assert answer.choices["team"].choice in ("shipping", "billing")


async def asynchronous() -> None:
    async with AsyncTypeSafeClient(api_key="unused", base_url=CHAT) as own:
        answer = await own.system_one(state="late parcel", questions=QUESTIONS)
        assert 0 <= answer.nouls["late"].noul <= 1


def models() -> None:
    assert client.models.list()


def wrong_model() -> None:
    try:
        client.system_one(state="x", questions=QUESTIONS, model="jev-1.13.0")
    except Exception as error:
        assert "model_not_found" in repr(error) or "jev-1.13.0" in str(error), repr(error)
    else:
        raise AssertionError("answered")


run(
    "typesafe-sdk",
    {"System One": systemone, "async": asynchronous, "models": models, "wrong model": wrong_model},
)
