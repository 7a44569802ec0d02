"""Small tasks the script invents: arithmetic, counting, echo, JSON, extraction, tool calls, story requests.

Each function returns one document in the chat form of `chat.conversation`, or plain text. All answers are
computed, so they are right by construction.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from . import story_words as words
from .chat import calls_block, conversation
from .stories import cast, fill, story

_SYSTEMS = (
    "You are a helpful assistant.",
    "You are helpful.",
    "Answer briefly.",
    "You are Stepahead, a small model.",
    "",
)
_CITIES = [
    "Paris", "London", "Berlin", "Madrid", "Rome", "Oslo", "Vienna", "Prague", "Dublin", "Lisbon", "Tokyo",
    "Beijing", "Shanghai", "Sydney", "Cairo", "Toronto", "Boston", "Chicago", "Lima", "Athens",
]  # fmt: skip
_SURNAMES = [
    "Smith", "Brown", "Miller", "Green", "Baker", "Young", "King", "Hill", "Wood", "Stone", "Lee", "Kim",
    "Chen", "Wang", "Garcia", "Silva", "Rossi", "Novak",
]  # fmt: skip
_PRODUCTS = (
    "lamp", "chair", "table", "book", "bag", "clock", "cup", "bike", "phone", "jacket", "kettle", "pen",
)  # fmt: skip
_TITLES = ("Mr", "Ms", "Dr")


def _person(rng: random.Random) -> dict[str, Any]:
    first = rng.choice(words.GIRLS + words.BOYS)
    return {
        "name": f"{first} {rng.choice(_SURNAMES)}",
        "age": rng.randint(5, 90),
        "city": rng.choice(_CITIES),
        "job": rng.choice(words.JOBS),
        "email": f"{first.lower()}{rng.randint(1, 99)}@example.com",
        "active": rng.random() < 0.5,
    }


def _order(rng: random.Random) -> dict[str, Any]:
    items = [
        {"product": rng.choice(_PRODUCTS), "colour": rng.choice(words.COLOURS), "quantity": rng.randint(1, 9)}
        for _ in range(rng.randint(1, 3))
    ]
    return {
        "id": rng.randint(100, 9999),
        "customer": rng.choice(_SURNAMES),
        "items": items,
        "paid": rng.random() < 0.5,
    }


def _value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(8 if depth else 5)
    if kind == 0:
        return rng.randint(0, 1000)
    if kind == 1:
        return round(rng.uniform(0, 100), rng.choice((1, 2)))
    if kind == 2:
        return rng.choice((True, False, None))
    if kind in (3, 4):
        return rng.choice((*words.COLOURS, *words.TOYS, *words.FOODS, *_CITIES, *words.JOBS))
    if kind == 5:
        return [_value(rng, depth - 1) for _ in range(rng.randint(0, 4))]
    keys = rng.sample(_KEYS, rng.randint(1, 4))
    return {key: _value(rng, depth - 1) for key in keys}


_KEYS = [
    "name", "id", "type", "value", "count", "size", "colour", "city", "price", "tags", "items", "status",
    "owner", "date", "total", "title", "parent", "children", "enabled", "level", "score", "weight",
    "address", "country", "notes", "version",
]  # fmt: skip


def _system(rng: random.Random) -> str:
    return rng.choice(_SYSTEMS)


def _wrap(rng: random.Random, user: str, answer: str, reasoning: str = "", **extra: Any) -> str:
    """A one-turn conversation; one in five is in thinking mode, with the given reasoning."""
    effort = rng.choice((50, 75, 75, 100)) if reasoning and rng.random() < 0.4 else None
    return conversation([(user, answer)], system=_system(rng), effort=effort, reasoning=reasoning, **extra)


def arithmetic(rng: random.Random) -> str:
    size = rng.choice((9, 9, 20, 99))
    a, b = rng.randint(0, size), rng.randint(0, size)
    sign, word, result = rng.choice((("+", "plus", a + b), ("-", "minus", a - b), ("*", "times", a * b)))
    if sign == "*" and size > 20:
        a, b = a % 13, b % 13
        result = a * b
    forms = (
        f"What is {a} {sign} {b}?", f"{a} {sign} {b} =", f"Calculate {a} {sign} {b}.",
        f"What is {a} {word} {b}?", f"How much is {a} {word} {b}?",
    )  # fmt: skip
    answers = (f"{result}", f"{a} {sign} {b} = {result}", f"The answer is {result}.")
    return _wrap(
        rng, rng.choice(forms), rng.choice(answers), f"I need to compute {a} {sign} {b}. That is {result}."
    )


def counting(rng: random.Random) -> str:
    start, step = rng.randint(0, 60), rng.choice((1, 1, 1, 2, 5, 10))
    numbers = [str(start + step * i) for i in range(rng.randint(4, 14))]
    by = "" if step == 1 else f" in steps of {step}"
    ask = rng.choice(
        (
            "Count from {a} to {b}{by}.",
            "Please count from {a} to {b}{by}.",
            "List the numbers from {a} to {b}{by}.",
        )
    )
    return _wrap(rng, ask.format(a=numbers[0], b=numbers[-1], by=by), ", ".join(numbers))


def echo(rng: random.Random) -> str:
    slots = cast(rng)
    line = fill(rng.choice(words.ENDINGS + words.ASIDES + words.MORALS), slots)
    form = rng.randrange(4)
    if form == 0:
        return _wrap(rng, f"Repeat after me: {line}", line)
    if form == 1:
        return _wrap(rng, f'Say "{line}"', line)
    chosen = rng.sample([w for w in (*words.COLOURS, *words.ANIMALS, *words.SEASONS)], rng.randint(2, 6))
    if form == 2:
        return _wrap(rng, "Sort these words: " + ", ".join(chosen), ", ".join(sorted(chosen)))
    return _wrap(rng, "Write these words in capital letters: " + " ".join(chosen), " ".join(chosen).upper())


def json_plain(rng: random.Random) -> str:
    """A bare JSON document, compact or indented: the model must close what it opens."""
    source = rng.choice(
        (_person, _order, lambda r: _value(r, 3), lambda r: [_person(r) for _ in range(r.randint(1, 3))])
    )
    value = source(rng)
    if not isinstance(value, (dict, list)):
        value = {rng.choice(_KEYS): value}
    style = rng.randrange(3)
    if style == 0:
        return json.dumps(value, indent=2)
    return json.dumps(value) if style == 1 else json.dumps(value, indent=4)


_PERSON_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
}


def extraction(rng: random.Random) -> str:
    person = _person(rng)
    name, age, city, job = person["name"], person["age"], person["city"], person["job"]
    text = rng.choice((
        f"{name} is {age} years old and lives in {city}.",
        f"My name is {name}, I am {age} and I work as a {job} in {city}.",
        f"The {job} {name}, {age}, moved to {city} last year.",
        f"In {city} we met {name}, a {job} who is {age} years old.",
    ))  # fmt: skip
    keys = ["name", "age", "city"]
    if job in text and rng.random() < 0.5:
        keys.append("job")
    answer = json.dumps({k: person[k] for k in keys}, indent=2 if rng.random() < 0.3 else None)
    if rng.random() < 0.4 and len(keys) == 3:
        schema: Any = _PERSON_SCHEMA if rng.random() < 0.6 else {"type": "json_object"}
        return _wrap(rng, f"Extract the person as JSON. {text}", answer, schema=schema)
    ask = rng.choice((
        f"Extract {', '.join(keys)} as JSON: {text}",
        f"{text}\n\nReturn a JSON object with the keys {', '.join(keys)}.",
    ))  # fmt: skip
    return _wrap(rng, ask, answer, f"The text names {', '.join(keys)}.")


def json_request(rng: random.Random) -> str:
    kind = rng.randrange(3)
    if kind == 0:
        value: Any = _order(rng)
        ask = f"Write an order as a JSON object. The customer is {value['customer']}."
    elif kind == 1:
        value = rng.sample(words.COLOURS, rng.randint(2, 5))
        ask = f"Give me a JSON array with {len(value)} colours."
    else:
        value = _person(rng)
        ask = f"Describe a {value['job']} from {value['city']} as JSON."
    schema = {"type": "json_object"} if rng.random() < 0.3 and isinstance(value, dict) else None
    return _wrap(rng, ask, json.dumps(value, indent=2 if rng.random() < 0.3 else None), schema=schema)


def _tool(
    name: str, description: str, properties: dict[str, dict[str, str]], required: list[str]
) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": description, "parameters": parameters}


_STRING, _INTEGER, _BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_WEATHER = _tool("get_weather", "Get the weather", {"city": _STRING, "days": _INTEGER}, ["city"])
_SEARCH = _tool("search", "Search the web", {"query": _STRING, "limit": _INTEGER}, ["query"])
_ADD = _tool("add", "Add two numbers", {"a": _INTEGER, "b": _INTEGER}, ["a", "b"])
_ALARM = _tool(
    "set_alarm",
    "Set an alarm",
    {"hour": _INTEGER, "minute": _INTEGER, "repeat": _BOOLEAN},
    ["hour", "minute"],
)
_ORDER = _tool(
    "order", "Order a product", {"product": _STRING, "quantity": _INTEGER}, ["product", "quantity"]
)
_MAIL = _tool("send_mail", "Send a mail", {"to": _STRING, "text": _STRING}, ["to", "text"])
_TOOLS = (_WEATHER, _SEARCH, _ADD, _ALARM, _ORDER, _MAIL)


def _tool_request(rng: random.Random, tool: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
    """(user text, arguments, tool result)."""
    name = tool["name"]
    if name == "get_weather":
        city, days = rng.choice(_CITIES), rng.randint(1, 7)
        if rng.random() < 0.5:
            return (
                f"What is the weather in {city}?",
                {"city": city},
                rng.choice(("sunny", "rain", "snow", "cloudy")),
            )
        return f"Weather in {city} for the next {days} days?", {"city": city, "days": days}, "sunny"
    if name == "search":
        query = f"{rng.choice(words.COLOURS)} {rng.choice(_PRODUCTS)}"
        return (
            rng.choice((f"Search for {query}.", f"Please find a {query}.")),
            {"query": query},
            f"3 results for {query}",
        )
    if name == "add":
        a, b = rng.randint(1, 500), rng.randint(1, 500)
        return f"Use the tool to add {a} and {b}.", {"a": a, "b": b}, str(a + b)
    if name == "set_alarm":
        hour, minute = rng.randint(0, 23), rng.choice((0, 15, 30, 45))
        arguments: dict[str, Any] = {"hour": hour, "minute": minute}
        if rng.random() < 0.4:
            arguments["repeat"] = True
            return f"Wake me at {hour}:{minute:02d} every day.", arguments, "ok"
        return f"Set an alarm for {hour}:{minute:02d}.", arguments, "ok"
    if name == "order":
        product, quantity = rng.choice(_PRODUCTS), rng.randint(1, 9)
        return f"Order {quantity} {product}s for me.", {"product": product, "quantity": quantity}, "ordered"
    to, slots = rng.choice(words.GIRLS + words.BOYS), cast(rng)
    text = fill(rng.choice(("See you on {day}.", "I will bring {food}.", "Meet me at {outdoor}.")), slots)
    return f"Tell {to} by mail: {text}", {"to": to, "text": text}, "sent"


def tool_call(rng: random.Random) -> str:
    """A tool prompt and the call; sometimes the result comes back and is answered."""
    tools = rng.sample(_TOOLS, rng.choice((1, 1, 2, 2, 3)))
    tool = rng.choice(tools)
    user, arguments, result = _tool_request(rng, tool)
    call = calls_block([(tool["name"], arguments)])
    reasoning = f"I should call {tool['name']}."
    if rng.random() < 0.6:
        return _wrap(rng, user, call, reasoning, tools=tools)
    turns = [(user, call), (f"<tool_result>{result}</tool_result>", f"The result is: {result}.")]
    return conversation(turns, system=_system(rng), tools=tools)


def story_request(rng: random.Random) -> str:
    animal = rng.choice(words.ANIMALS)
    slots = cast(rng, animal)
    ask = fill(rng.choice((
        "Tell me a story about a {x}.", "Write a short story about a {x}.",
        "Can you tell me a story about a {x} named {hero}?",
        "Please tell me a bedtime story about a {x}.",
    )), {**slots, "x": animal})  # fmt: skip
    return _wrap(rng, ask, story(rng, slots))


_SMALL_TALK: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("Hello", "Hi", "Hi there!", "Hello!", "Good morning", "Hey"),
        ("Hello! How can I help you?", "Hi! What can I do for you?"),
    ),
    (
        ("How are you?", "How are you today?"),
        ("I am fine, thank you. How can I help you?", "Very well, thank you. And you?"),
    ),
    (
        ("Who are you?", "What is your name?", "What are you?"),
        ("I am Stepahead's small built-in model. I can tell stories and do little tasks.",),
    ),
    (
        ("Thank you", "Thanks!", "Thank you very much."),
        ("You are welcome!", "You are welcome. Is there anything else?"),
    ),
    (("Goodbye", "Bye!", "See you tomorrow."), ("Goodbye!", "Goodbye, and have a nice day!")),
    (
        ("What can you do?", "Can you help me?"),
        ("I can tell short stories, count, add numbers and write JSON. What would you like?",),
    ),
    (
        ("Tell me a joke.", "Do you know a joke?"),
        ("Why did the bicycle fall over? Because it was two tired.", "What is brown and sticky? A stick."),
    ),
)


def small_talk(rng: random.Random) -> str:
    turns = []
    for questions, answers in rng.sample(_SMALL_TALK, rng.randint(1, 3)):
        turns.append((rng.choice(questions), rng.choice(answers)))
    return conversation(turns, system=_system(rng))


def facts(rng: random.Random) -> str:
    """Questions about the words themselves: opposites, plurals, days, seasons, first letters."""
    kind = rng.randrange(4)
    if kind == 0:
        index = rng.randrange(7)
        user, answer = f"Which day comes after {words.DAYS[index]}?", f"{words.DAYS[(index + 1) % 7]}."
    elif kind == 1:
        index = rng.randrange(4)
        user, answer = (
            f"Which season comes after {words.SEASONS[index]}?",
            f"{words.SEASONS[(index + 1) % 4].title()}.",
        )
    elif kind == 2:
        word = rng.choice((*words.ANIMALS, *words.COLOURS, *words.JOBS))
        user, answer = f"How many letters has the word {word}?", f"The word {word} has {len(word)} letters."
    else:
        word = rng.choice((*words.ANIMALS, *words.COLOURS, *words.JOBS))
        user, answer = f"Spell the word {word}.", "-".join(word)
    return _wrap(rng, user, answer)


TASKS: tuple[tuple[Callable[[random.Random], str], float], ...] = (
    (arithmetic, 2.0), (counting, 1.0), (echo, 1.0), (json_plain, 2.0), (extraction, 2.0),
    (json_request, 1.0),
    (tool_call, 0.8), (story_request, 2.0), (small_talk, 0.7), (facts, 0.7),
)  # fmt: skip


def task(rng: random.Random) -> str:
    functions, weights = zip(*TASKS, strict=True)
    return rng.choices(functions, weights)[0](rng)  # type: ignore[no-any-return]
