# ruff: noqa: E501 -- a template is one line, so that it reads as the text it becomes
"""Little English stories from plots, word lists and shared openings and endings: licence-free and
deterministic.

The shipped model should continue "Once upon a time" with grammatical, connected sentences. No story
collection is available under a licence that suits a permissive project, so the stories are written here:
every plot is a chain of beats, told for a randomly cast hero, friend, place and things. A plot's variants
are parallel tellings, so one story follows one column; mixing columns would break the thread.
"""

from __future__ import annotations

import random
import re

from . import story_words as words
from .story_plots import plots

_SLOT = re.compile(r"\{(\w+)\}")
_PLOTS = plots()
_CLOTHES = ("hat", "scarf", "coat", "cap", "glove", "apron")
_SYNONYMS = {
    " big ": (" big ", " big ", " large ", " great "),
    " looked at ": (" looked at ", " looked at ", " stared at "),
    "At last, ": ("At last, ", "Finally, ", "In the end, "),
    "Then ": ("Then ", "Then ", "After that, ", "Soon "),
    " began to cry": (" began to cry", " started to cry"),
    " very ": (" very ", " very ", " so ", " really "),
    "One day, ": ("One day, ", "One morning, ", "One afternoon, ", "Some days later, "),
    " ran to ": (" ran to ", " hurried to ", " rushed to "),
    " small ": (" small ", " little ", " tiny "),
    " asked {hero}": (" asked {hero}", " said {hero}"),
}


def _article(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def cast(rng: random.Random, animal: str | None = None) -> dict[str, str]:
    """Everything a plot may name. Pronouns agree with the hero, `he2` and `his2` with the friend."""
    female = rng.random() < 0.5
    hero_is_animal = animal is not None or rng.random() < 0.35
    friend_female = rng.random() < 0.5
    name = rng.choice(words.PET_NAMES if hero_is_animal else words.GIRLS if female else words.BOYS)
    pool = (words.GIRLS if friend_female else words.BOYS) + list(words.PET_NAMES)
    friend = rng.choice([n for n in pool if n != name])
    kind = animal or rng.choice(words.ANIMALS) if hero_is_animal else ("girl" if female else "boy")
    season = rng.choice(words.SEASONS)
    happy = rng.sample(words.HAPPY, 2)
    job_female = rng.random() < 0.3
    return {
        "hero": name, "friend": friend, "a_kind": _article(f"{rng.choice(words.LITTLE)} {kind}"),
        "he": "she" if female else "he", "his": "her" if female else "his", "him": "her" if female else "him",
        "himself": "herself" if female else "himself", "he2": "she" if friend_female else "he",
        "his2": "her" if friend_female else "his", "my": "my",
        "place": rng.choice(words.PLACES), "outdoor": rng.choice(words.OUTDOORS), "toy": rng.choice(words.TOYS),
        "treasure": rng.choice(words.TREASURES), "food": rng.choice(words.FOODS),
        "colour": rng.choice(words.COLOURS), "grown": rng.choice(words.GROWN_UPS), "job": rng.choice(words.JOBS),
        "jobhis": "her" if job_female else "his", "job2": "she" if job_female else "he",
        "season": season, "season2": rng.choice([s for s in words.SEASONS if s != season]),
        "day": rng.choice(words.DAYS), "happy": happy[0], "happy2": happy[1], "sad": rng.choice(words.SAD),
        "animal2": rng.choice([a for a in words.ANIMALS if a != kind]), "pet": rng.choice(words.PET_NAMES),
        "clothing": rng.choice(_CLOTHES), "weather": rng.choice(words.WEATHER),
    }  # fmt: skip


def fill(template: str, slots: dict[str, str]) -> str:
    """`{name}` becomes the slot, `{Name}` the slot with a capital letter; sentences start with capitals."""

    def value(match: re.Match[str]) -> str:
        key = match.group(1)
        if key in slots:
            return slots[key]
        text = slots[key[0].lower() + key[1:]]
        return text[0].upper() + text[1:]

    text = _SLOT.sub(value, template)
    return re.sub(r"(^|[.!?] )([a-z])", lambda m: m.group(1) + m.group(2).upper(), text)


def _vary(text: str, rng: random.Random) -> str:
    for plain, options in _SYNONYMS.items():
        if plain in text and rng.random() < 0.5:
            text = text.replace(plain, rng.choice(options), 1)
    return text


def story(rng: random.Random, slots: dict[str, str] | None = None) -> str:
    """One story of 80 to 300 words, in paragraphs or as one block."""
    slots = slots or cast(rng)
    plot = rng.choice(_PLOTS)
    column = rng.randrange(max(len(variants) for _, variants in plot))
    parts = [rng.choice(words.OPENINGS)]
    if rng.random() < 0.3:
        parts.append("{Weather}")
    for optional, variants in plot:
        if optional and rng.random() < 0.5:
            continue
        parts.append(_vary(variants[min(column, len(variants) - 1)], rng))
        if rng.random() < 0.12:
            parts.append(rng.choice(words.ASIDES))
    if rng.random() < 0.2:
        parts.append(rng.choice(words.MORALS))
    parts.append(rng.choice(words.ENDINGS))
    separator = rng.choice((" ", " ", "\n", "\n\n"))
    text = separator.join(fill(p, slots) for p in parts)
    if rng.random() < 0.15:
        text = f"{_title(slots, rng)}\n\n{text}"
    return text + ("\n\nThe end." if rng.random() < 0.15 else "")


def _title(slots: dict[str, str], rng: random.Random) -> str:
    forms = (
        "{Hero} and {friend}", "The Story of {hero}", "{Hero} and the {toy}", "A Day in {season}", "{Hero}'s Big Day",
        "The {job} and {hero}",
    )  # fmt: skip
    return fill(rng.choice(forms), slots)


_DESCRIPTIONS = (
    "{Hero} lives in {place}. In the morning, {he} eats {food} and looks out of the window. {Weather} Then {he} walks "
    "to {outdoor}, where {friend} is already waiting.",
    "In {season}, {outdoor} is full of life. The {animal2} looks for food, the birds sing, and the children play with "
    "a {toy} until it gets dark.",
    "The {job} opens the shop at seven. First {job2} sweeps the floor, then {job2} makes a cup of tea. At eight, the "
    "first people come in. Most of them want {food}.",
    "There are many things on the table: a {colour} cup, {treasure}, a {toy} and a plate of {food}. {Hero} takes the "
    "cup and leaves the rest for {friend}.",
    "My name is {hero}. I am {a_kind}. I live in {place} with my {grown}. I like {food}, and I like to play with my "
    "{toy}. My best friend is {friend}.",
    "Dear {friend}, how are you? I am fine. {Weather} Yesterday I went to {outdoor} with my {grown}. We saw a "
    "{animal2}, and it was not afraid of us. Please write back soon. Your friend, {hero}",
    "{Day}. {Weather} I got up late and had {food} for breakfast. Then {friend} came, and we went to {outdoor}. I found "
    "{treasure} there. Tomorrow we will go again.",
    "A {animal2} is sitting near {outdoor}. It is {colour} and not very big. It looks left, it looks right, and then "
    "it runs away as fast as it can.",
    '"Good morning, {hero}!" said the {job}. "Good morning!" said {hero}. "What would you like today?" "{Food}, please," '
    'said {hero}. "Here you are." "Thank you. Goodbye!" "Goodbye, and say hello to your {grown}."',
    "How do you make {food}? {Hero} asked {his} {grown}. First you wash your hands. Then you put everything on the "
    "table. You mix it slowly, you wait, and at the end you share it with {friend}.",
    "In {place} there is a house with a {colour} door. A {job} lives there, and a {animal2} sleeps in front of the "
    "door. When {season} comes, you can smell {food} in the whole street.",
    "{Hero} has a {toy}, and {friend} has a {colour} box. They often swap them. On {day} {hero} plays with the box, and "
    "on {day} evening {friend} brings the {toy} back.",
    "The {season} was long that year. Every morning {hero} went to {outdoor} to see if anything had changed. "
    "{Weather} {Hero} waited, and {friend} waited with {him}.",
    "Why is the {animal2} so quiet? {Hero} looks at it for a long time. Perhaps it is {sad}. Perhaps it is only tired. "
    "{Hero} gives it a little of {his} {food}, and it closes its eyes.",
)


def description(rng: random.Random) -> str:
    """One or two short paragraphs of everyday prose: present tense, letters, diaries, dialogue."""
    count = rng.choice((1, 1, 2))
    return "\n\n".join(fill(t, cast(rng)) for t in rng.sample(_DESCRIPTIONS, count))
