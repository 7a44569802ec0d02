# ruff: noqa: E501 -- a template is one line, so that it reads as the text it becomes
"""The vocabulary of the little stories: who, where, what and how. Plain words a child knows."""

from __future__ import annotations

GIRLS = [
    "Anna", "Mia", "Lily", "Rosa", "Ella", "Sara", "Nora", "Ivy", "Lucy", "Emma", "Zoe", "Ruby", "Clara",
    "Maya", "Hana", "Lena", "Tina", "Amy", "June", "Molly", "Eva", "Nina", "Kate", "Daisy", "Sophie",
    "Olive", "Grace", "Pearl", "Wendy", "Alice",
]  # fmt: skip
BOYS = [
    "Tom", "Ben", "Sam", "Leo", "Max", "Jack", "Finn", "Omar", "Theo", "Hugo", "Noah", "Luke", "Oscar",
    "Paul", "Peter", "Dan", "Milo", "Adam", "Kai", "Felix", "Tim", "Bob", "Henry", "Charlie", "Ravi",
    "Ivan", "Otto", "Jonas", "Simon", "Will",
]  # fmt: skip
ANIMALS = [
    "fox", "rabbit", "bear", "mouse", "duck", "owl", "cat", "dog", "squirrel", "hedgehog", "frog", "turtle",
    "lamb", "pony", "badger", "otter", "beaver", "goat", "crow", "sparrow", "hen", "donkey", "puppy",
    "kitten", "deer", "mole", "pig", "goose", "wolf", "lion",
]  # fmt: skip
PET_NAMES = [
    "Rusty", "Pip", "Bramble", "Coco", "Dot", "Fern", "Hazel", "Biscuit", "Pepper", "Willow", "Tansy",
    "Button", "Mossy", "Nibbles", "Bella", "Sunny", "Fluff", "Patch", "Ginger", "Toffee", "Clover",
    "Pebble", "Misty", "Scout", "Bean", "Honey", "Ash", "Pickle", "Maple", "Snow",
]  # fmt: skip
LITTLE = (
    "little", "small", "young", "tiny", "brave", "kind", "quiet", "curious", "clever", "cheerful", "shy",
    "happy",
)  # fmt: skip
PLACES = (
    "a small village by the sea",
    "a quiet village near the hills",
    "a little house at the edge of the forest",
    "a big old house on a hill",
    "a busy town with narrow streets",
    "a farm with a red barn",
    "a cottage beside a river",
    "a tall house in the middle of the city",
    "a green valley between two mountains",
    "a warm little house near the lake",
    "a stone house by the bridge",
    "a small town at the foot of a mountain",
)
OUTDOORS = (
    "the forest", "the garden", "the park", "the meadow", "the beach", "the river", "the hill",
    "the old mill", "the orchard", "the pond", "the market", "the village square",
)  # fmt: skip
TOYS = (
    "red ball", "blue kite", "wooden train", "little drum", "toy boat", "yellow bucket", "soft teddy bear",
    "silver whistle", "paper plane", "green scarf", "music box", "striped hat", "shiny bell",
    "wooden horse", "picture book", "purple balloon", "tin robot", "rag doll",
)  # fmt: skip
TREASURES = (
    "a golden key", "an old map", "a small silver coin", "a shiny blue stone", "a tiny glass bottle",
    "a locked box", "a round white shell", "a golden feather", "a rusty lantern", "a letter in a bottle",
    "a strange green seed", "a little brass bell",
)  # fmt: skip
FOODS = (
    "apple pie", "warm soup", "fresh bread", "pancakes with honey", "strawberry cake", "carrot stew",
    "sweet berries", "cheese and bread", "hot chocolate", "ginger cookies", "a bowl of porridge",
    "roasted nuts", "plum jam", "vegetable soup", "blueberry muffins",
)  # fmt: skip
COLOURS = (
    "red", "blue", "green", "yellow", "white", "golden", "silver", "purple", "orange", "pink", "brown",
    "grey",
)  # fmt: skip
GROWN_UPS = (
    "mother", "father", "grandmother", "grandfather", "aunt", "uncle", "teacher", "neighbour",
)  # fmt: skip
JOBS = (
    "baker", "farmer", "fisherman", "shoemaker", "gardener", "miller", "postman", "blacksmith", "librarian",
    "tailor", "carpenter", "clockmaker", "painter", "beekeeper", "shepherd", "ferryman",
)  # fmt: skip
WEATHER = (
    "The sun was shining and the sky was blue.",
    "It was a cold morning and frost lay on the grass.",
    "Soft rain was falling on the roof.",
    "The wind was blowing and leaves danced in the air.",
    "Snow had fallen in the night and everything was white.",
    "It was a warm summer day and the bees were humming.",
    "Grey clouds hung low over the trees.",
    "The air smelled of flowers and fresh grass.",
    "A thin mist covered the fields.",
    "The evening was calm and the first stars came out.",
    "It was so hot that even the birds were quiet.",
    "A rainbow stood over the hills.",
)
SEASONS = ("spring", "summer", "autumn", "winter")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
HAPPY = ("happy", "glad", "proud", "excited", "cheerful", "delighted", "pleased")
SAD = ("sad", "worried", "lonely", "afraid", "tired", "upset", "nervous")
ENDINGS = (
    "From that day on, {hero} and {friend} were the best of friends.",
    "And {hero} never forgot that day.",
    "That night, {hero} slept well and dreamed of {outdoor}.",
    "{Hero} smiled. It had been a good day.",
    "And they all lived happily ever after.",
    "{Hero} went home with a warm heart.",
    "Then they all sat down together and ate {food}.",
    "Everyone was {happy}, and {hero} was the most {happy2} of all.",
    '"What a day!" said {hero}, and {he} laughed.',
    "When the moon came up, {hero} was already fast asleep.",
    "And if you go to {outdoor} today, you may still see {hero} and {friend} there.",
    "{Hero} told the story to everyone at home, and they listened until it was dark.",
    "After that, {hero} was never {sad} about it again.",
    "The next morning, {hero} woke up early and could not wait to tell {his} {grown}.",
    "It was the best {day} of the whole {season}.",
    "{Hero} and {friend} walked home side by side, singing a little song.",
)
MORALS = (
    "{Hero} learned that it is good to share.",
    "{Hero} learned that it is always better to tell the truth.",
    "{Hero} had learned that a small friend can be a great help.",
    "{Hero} learned that you can do hard things if you do not give up.",
    "{Hero} learned to ask for help when something is too hard to do alone.",
    "{Hero} now knew that being brave does not mean that you are never afraid.",
    "{Hero} learned to listen before saying no.",
    "{Hero} learned that patience is worth more than hurry.",
    "{Hero} understood that saying sorry can mend almost anything.",
    "{Hero} learned to look after {his} things.",
)
OPENINGS = (
    "Once upon a time, there was {a_kind} named {hero}. {Hero} lived in {place}.",
    "Once upon a time, there lived {a_kind} named {hero} in {place}.",
    "Once upon a time, in {place}, there lived {a_kind} named {hero}.",
    "Once upon a time there was {a_kind} called {hero} who loved {outdoor}.",
    "One day, {a_kind} named {hero} went to {outdoor}.",
    "There was once {a_kind} named {hero}, who lived in {place}.",
    "Long ago, {a_kind} called {hero} lived in {place}.",
    "{Hero} was {a_kind}. {He} lived in {place} with {his} {grown}.",
    "One {season} morning, {hero} woke up early. {He} was {a_kind} who lived in {place}.",
    "In {place} lived {a_kind} whose name was {hero}.",
    "It was a {day} in {season}. {Hero}, {a_kind}, was looking out of the window.",
    "Every day, {a_kind} named {hero} walked to {outdoor}.",
    "Once, {hero} and {friend} were playing near {outdoor}. {Hero} was {a_kind}, and {friend} was {his} friend.",
    "A long time ago, in {place}, {a_kind} named {hero} had a {toy}.",
)
ASIDES = (
    "A bird sang in a tree nearby.",
    "{Hero} took a deep breath.",
    "Somewhere, a dog was barking.",
    '"Do not worry," said {friend}.',
    "{Hero} thought about it for a while.",
    "{friend} nodded slowly.",
    "For a moment nobody said a word.",
    '"Are you sure?" asked {friend}. "Yes," said {hero}, "I am sure."',
    "{Hero} counted to ten and tried again.",
    "The {grown} of {hero} always said that good things take time.",
    "They stopped to eat {food}, and then they went on.",
    "{Hero} felt a little {sad}, but {he} did not stop.",
    "{Weather}",
)
