"""What mypy says of programs that use the client. test_wheel.py compares it with the comments."""

import pydantic
from berth_client import AsyncClient, Client, Tls


class Record(pydantic.BaseModel):
    name: str


def blocking(client: Client) -> None:
    reveal_type(client.generate("x", max_tokens=3).text)  # says: Revealed type is "str"
    reveal_type(client.parse(Record, "x"))  # says: Revealed type is "typing_examples.Record"
    for part in client.stream([1, 2], stop=["."], logit_bias={1: 0.5}):
        reveal_type(part.finish_reason)  # says: Literal['stop'] | Literal['length'] | Literal['cancelled'] | Literal['error'] | None
    client.chat([{"role": "user", "content": "x"}], early_stopping=True, whitespace="compact", json_schema=Record)
    reveal_type(client.embed("x", pooling="mean").embedding)  # says: Revealed type is "list[float]"
    client.embed("x", pooling="max")  # says: Argument "pooling" has incompatible type
    client.generate("x", max_token=3)  # says: Unexpected keyword argument "max_token"; did you mean "max_tokens"?
    client.generate("x", max_tokens="3")  # says: Argument "max_tokens" has incompatible type "str"; expected "int"
    client.chat([{"role": "user"}])  # says: Missing key "content" for TypedDict "ChatMessage"
    client.chat("x", whitespace="none")  # says: Argument "whitespace" has incompatible type


async def awaiting(client: AsyncClient) -> None:
    reveal_type(await client.parse(Record, "x"))  # says: Revealed type is "typing_examples.Record"
    async for part in client.stream_chat("x"):
        reveal_type(part.token_ids)  # says: Revealed type is "list[int]"
    reveal_type(await client.list_sessions())  # says: Revealed type is "list[berth_client.types.Session]"


Client(tls=Tls(ca=5))  # says: Argument "ca" to "Tls" has incompatible type "int"
