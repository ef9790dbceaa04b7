"""The text that the demo models learn: stories, additions, JSON records, greetings, and apologies.

All of it is generated from the lists and templates below; nothing else is read. The module needs only Python's library,
so the tests use it too: they ask for what is listed here, and check a story's words against these lists.
"""

import json
import re
from typing import NamedTuple

SEED = 20250701
HELD_OUT_FRACTION = 0.18
HELD_OUT_LISTED = 50

ADDITION_FORMS = ["What is {a} + {b}?", "What is {a}+{b}?", "{a} + {b} = ?", "{a} + {b}",
                  "What is {a} plus {b}?"]
GREETINGS = {
    "Hello! I am the Berth demo model. Ask me to add two numbers, to tell you a story or to make a record.": [
        "Hello!", "Hello", "Hi!", "Hi", "Hi there!", "Hey!", "Good morning!", "Hello there!"],
    "I am the Berth demo model. I am very small, but I can add two-digit numbers, tell short stories and turn a"
    " sentence into a JSON record.": ["Who are you?", "What are you?", "What can you do?", "What is your name?",
                                      "Help", "Tell me about yourself."],
    "I am very well, thank you. Shall I tell you a story?": ["How are you?", "How are you today?"],
    "You are welcome!": ["Thank you!", "Thanks!", "Thanks", "Thank you"],
    "Goodbye! Come back soon.": ["Goodbye!", "Bye!", "Bye", "See you later!"],
}
OFF_TOPIC_OPENINGS = ["What is", "What is the", "Where is", "Who", "Why", "How do I", "When did",
                      "Can you", "Write a poem about", "Explain", "Translate", ""]
OFF_TOPIC_ANSWER = ("Sorry, I am only a tiny demo. I can add two-digit numbers, tell short stories and turn a"
                    " sentence into a JSON record.")
SYSTEM_TEXTS = ["You are a helpful assistant.", "You are the Berth demo model.", "Be brief.",
                "You answer in one line.", "You tell stories and add numbers."]

STORY_FORMS = ["Tell me a story about {topic}.", "Tell me a story about {topic}",
               "Tell a story about {topic}.", "Can you tell me a story about {topic}?",
               "Write a story about {topic}."]
OPEN_STORY_FORMS = ["Tell me a story.", "Tell me a story", "Tell me another story."]
ANIMALS = ("fox cat dog bear owl mouse rabbit horse turtle frog lion bird whale wolf duck elephant penguin "
           "hedgehog").split()
TOPICS = ANIMALS + "dragon robot king princess ship wizard".split()
NAMES = "Lily Max Nora Finn Ruby Otto Mia Hugo Zoe Sam Ella Leo".split()
SLOTS = {
    "adj": "small curious brave clever gentle sleepy cheerful shy".split(),
    "place": ["in a deep forest", "by the blue sea", "on a green hill", "near a quiet village",
              "at the edge of a lake", "in an old garden", "in a busy harbour"],
    "time": ["One sunny morning", "One rainy evening", "One cold winter day", "Late one night",
             "On the first day of spring", "One windy afternoon"],
    "thing": ["a golden key", "a red balloon", "a silver bell", "an old map", "a tiny lantern",
              "a wooden box", "a round stone", "a blue feather"],
    "spot": ["under a tree", "behind a rock", "next to the path", "in the tall grass",
             "below the bridge", "beside the well"],
    "friend": "snail crow goat badger squirrel spider donkey beetle".split(),
    "trouble": ["a storm came and the sky went dark", "they lost their way in the fog",
                "the river was too wide to cross", "a loud noise made them jump",
                "the path was blocked by a fallen tree"],
    "remedy": ["waited together until it was over", "held on to each other and sang a song",
               "made a clever plan and tried again", "asked a kind old farmer for help",
               "took a deep breath and kept going"],
    "lesson": ["that good friends make every day better", "that it helps to be patient",
               "that being brave means to try", "that sharing makes two people happy",
               "that home is the best place of all"],
}
STORY = (
    "Once upon a time, there was {topic} named {name}. {name} was {adj} and lived {place}. "
    "{time}, {name} found {thing} {spot}. {name} showed it to {pal}, a {friend}. "
    "But soon {trouble}. {name} and {pal} {remedy}. "
    "That night {name} learned {lesson}. The end.")

PLACES = ("forest garden harbour village castle city desert jungle valley meadow barn cave park library market tower "
          "school kitchen swamp orchard attic museum station cottage").split()
RECORD_FORMS = ["Make a record: {sentence}", "Make a JSON record: {sentence}", "Turn this into JSON: {sentence}",
                "{sentence} Make a record."]
RECORD_SENTENCES = ["{name} the {animal} lives in the {place}.", "{name} is {an_animal} who lives in the {place}.",
                    "{An_animal} named {name} lives in the {place}.", "In the {place} lives {an_animal} named {name}.",
                    "There is {an_animal} in the {place}. Its name is {name}.",
                    "I met {name}, {an_animal}, in the {place}."]

SLOT_WORDS = [word for options in SLOTS.values() for option in options for word in option.split()]


class Turn(NamedTuple):
    """A question and its answer. copied: the parts of the answer that come from the question, in the answer's order."""
    question: str
    answer: str
    copied: tuple = ()


def with_article(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def capitalised(text):
    return text[0].upper() + text[1:]


def split_additions(rng):
    """Returns (train, held_out) pairs; a+b and b+a stay together, operands below 10 train."""
    unordered = [(a, b) for a in range(10, 100) for b in range(a, 100)]
    rng.shuffle(unordered)
    hidden = set(unordered[:int(HELD_OUT_FRACTION * len(unordered))])
    pairs = [(a, b) for a in range(100) for b in range(100)]
    held_out = [pair for pair in pairs if (min(pair), max(pair)) in hidden]
    return sorted(set(pairs) - set(held_out)), held_out


def split_records(rng):
    """Returns (train, held_out) triples of a name, an animal and a place."""
    records = [(name, animal, place) for name in NAMES for animal in ANIMALS for place in PLACES]
    rng.shuffle(records)
    count = int(HELD_OUT_FRACTION * len(records))
    return records[count:], records[:count]


def addition_turn(pair, form=ADDITION_FORMS[0]):
    answer = str(pair[0] + pair[1])
    return Turn(form.format(a=pair[0], b=pair[1]), answer, (answer,))


def record_turn(record, form, sentence):
    name, animal, place = record
    an_animal = with_article(animal)
    sentence = sentence.format(name=name, animal=animal, place=place, an_animal=an_animal,
                               An_animal=capitalised(an_animal))
    return Turn(form.format(sentence=sentence), json.dumps({"name": name, "animal": animal, "place": place}), record)


def held_out_questions(records):
    """A turn for each record, in all forms one after the other."""
    forms = [(form, sentence) for form in RECORD_FORMS for sentence in RECORD_SENTENCES]
    return [record_turn(record, *forms[i % len(forms)]) for i, record in enumerate(records)]


def invented_noun(rng):
    """A made-up word, so that the model learns to copy topics it does not know.

    None begins with a topic: "dogo" would be the token of "dog" and one more, and teach to spoil dogs.
    """
    while True:
        noun = "".join(rng.choice("bdfgklmnprstvwz") + rng.choice("aeiou") for _ in range(rng.randint(2, 3)))
        if not noun.startswith(tuple(TOPICS)):
            return noun


def random_record_turn(rng, records):
    """Any of the records; one in five has an invented name, animal or place."""
    record = list(rng.choice(records))
    if rng.random() < 0.2:
        field = rng.randrange(3)
        record[field] = invented_noun(rng) if field else capitalised(invented_noun(rng))
    return record_turn(tuple(record), rng.choice(RECORD_FORMS), rng.choice(RECORD_SENTENCES))


def pick(rng, options, favourite):
    """Picks with falling odds: even ones would leave greedy decoding with near ties."""
    index = favourite
    while rng.random() < 0.3:
        index += 1
    return options[index % len(options)]


def story_turn(rng, invented=0.2):
    """A story; the share `invented` of the topics are made-up words."""
    topic = invented_noun(rng) if rng.random() < invented else rng.choice(TOPICS)
    question, is_open = rng.choice(STORY_FORMS), rng.random() < 0.1
    if is_open:
        topic, question = pick(rng, TOPICS, 0), rng.choice(OPEN_STORY_FORMS)
    elif rng.random() < 0.2:
        topic = f"{rng.choice(SLOTS['adj'])} {topic}"
    # Each topic has favourites of its own, or all greedy stories would be the same.
    taste = sum(ord(c) * (i + 1) for i, c in enumerate(topic))
    slots = {slot: pick(rng, options, taste // (i + 1) + i)
             for i, (slot, options) in enumerate(SLOTS.items())}
    name = pick(rng, NAMES, taste)
    pal = pick(rng, [n for n in NAMES if n != name], taste // 3)
    topic = with_article(topic)
    answer = STORY.format(topic=topic, name=name, pal=pal, **slots)
    return Turn(question.format(topic=topic), answer, () if is_open else (topic,))


def greeting_turn(rng):
    answer = rng.choice(list(GREETINGS))
    return Turn(rng.choice(GREETINGS[answer]), answer)


def random_words(rng, most):
    return " ".join(rng.choice(SLOT_WORDS) if rng.random() < 0.5 else invented_noun(rng)
                    for _ in range(rng.randint(1, most)))


def off_topic_turn(rng):
    question = f"{rng.choice(OFF_TOPIC_OPENINGS)} {random_words(rng, 6)}".strip()
    return Turn(question + rng.choice(["?", ".", ""]), OFF_TOPIC_ANSWER)


def mixed_turn(rng, pairs, records):
    kind = rng.random()
    if kind < 0.25:
        return addition_turn(rng.choice(pairs), rng.choice(ADDITION_FORMS))
    if kind < 0.35:
        return greeting_turn(rng)
    if kind < 0.45:
        return off_topic_turn(rng)
    return random_record_turn(rng, records) if kind < 0.70 else story_turn(rng)


def system_text(rng):
    """Half of them noise, which teaches the model to look past any system message."""
    return rng.choice(SYSTEM_TEXTS) if rng.random() < 0.5 else random_words(rng, 16) + "."


def words_of(text):
    return re.findall(r"[A-Za-z]+", text)


STORY_WORDS = {*words_of(re.sub(r"{\w+}", "", STORY)), *SLOT_WORDS, *NAMES, *TOPICS, "a", "an"}


def keeps_topic(story, topic):
    """Whether the story's first sentence is about the topic, and nothing else."""
    return story.startswith(f"Once upon a time, there was {with_article(topic)} named ")


def faulty_words(story):
    """The words that no story of the corpus has, and those said twice, such as "a a"."""
    unknown = [word for word in words_of(story) if word not in STORY_WORDS]
    return unknown + re.findall(r"\b([A-Za-z]+) \1\b", story)
