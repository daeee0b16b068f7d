"""The wordings from which the generator builds questions and small talk.

Kept apart from the logic so that a reader can change how people talk to the
model without touching how a correct answer is worked out.
"""

from __future__ import annotations

ASK_FACT = (
    "What is the {label} of {island}?",
    "What is {island}'s {label}?",
    "Which {label} does {island} have?",
    "Tell me the {label} of {island}.",
    "Name the {label} of {island}.",
    "Do you know the {label} of {island}?",
    "{island}: {label}?",
    "I want to know the {label} of {island}.",
    "{label} of {island}",
    "What {label} does {island} have?",
)
ASK_OWNER = (
    "Which island has {value} as its {label}?",
    "{value} is the {label} of which island?",
    "Whose {label} is {value}?",
    "Where is {value} the {label}?",
    "Which island's {label} is {value}?",
)
ASK_PAIR = (
    "What are the {first} and the {second} of {island}?",
    "Tell me the {first} and the {second} of {island}.",
    "Name {island}'s {first} and {second}.",
    "I want to know the {first} and {second} of {island}.",
)
ASK_PROFILE = (
    "Tell me about {island}.",
    "What do you know about {island}?",
    "Describe {island}.",
    "Tell me everything about {island}.",
    "What can you tell me about {island}?",
    "What about the island {island}?",
)
FOLLOW_ISLAND = (
    "And of {island}?",
    "And {island}?",
    "What about {island}?",
    "And what about {island}?",
    "How about {island}?",
    "The same for {island}?",
    "And for {island}?",
)
FOLLOW_ATTRIBUTE = (
    "And its {label}?",
    "And the {label}?",
    "What about its {label}?",
    "What is its {label}?",
    "And what is the {label} there?",
    "Its {label}?",
)
ASK_ADD = (
    "What is {a} + {b}?", "{a}+{b}", "{a} + {b} = ?", "What is {a} plus {b}?",
    "Add {a} and {b}.", "Calculate {a} + {b}.", "How much is {a} and {b}?",
    "What is the sum of {a} and {b}?", "{a} plus {b}?", "How much is {a} + {b}?",
)  # fmt: skip
ASK_SUBTRACT = (
    "What is {a} - {b}?", "{a}-{b}", "{a} - {b} = ?", "What is {a} minus {b}?",
    "Subtract {b} from {a}.", "Calculate {a} - {b}.", "Take {b} away from {a}.",
    "{a} minus {b}?", "How much is {a} - {b}?",
)  # fmt: skip
ASK_MULTIPLY = (
    "What is {a} * {b}?", "{a}*{b}", "{a} x {b}", "What is {a} times {b}?",
    "Multiply {a} by {b}.", "Calculate {a} * {b}.", "{a} times {b}?",
    "What is the product of {a} and {b}?", "How much is {a} x {b}?",
)  # fmt: skip
FOLLOW_ADD = ("Now add {b}.", "Add {b} to that.", "And plus {b}?", "Plus {b}?", "+ {b}")
FOLLOW_SUBTRACT = (
    "Now subtract {b}.", "Take away {b}.", "And minus {b}?", "Minus {b}?", "- {b}",
)  # fmt: skip
ASK_COMPARE = (
    "Is {a} larger than {b}?", "Is {a} greater than {b}?", "Is {a} more than {b}?",
    "Is {a} bigger than {b}?",
)  # fmt: skip
SORT_UP_NUMBERS = (
    "Sort {items}.", "Sort these numbers: {items}", "Put {items} in order.",
    "Sort {items} in ascending order.", "Order these from smallest to largest: {items}",
    "Sort from low to high: {items}",
)  # fmt: skip
SORT_DOWN_NUMBERS = (
    "Sort {items} in descending order.", "Sort from largest to smallest: {items}",
    "Order these from high to low: {items}", "Put {items} in descending order.",
)  # fmt: skip
SORT_UP_WORDS = (
    "Sort {items}.", "Sort alphabetically: {items}", "Put {items} in alphabetical order.",
    "Sort these words: {items}", "Order these from A to Z: {items}",
)  # fmt: skip
SORT_DOWN_WORDS = (
    "Sort {items} in reverse alphabetical order.", "Order these from Z to A: {items}",
    "Sort these words backwards: {items}",
)  # fmt: skip
FOLLOW_REVERSE = (
    "Now in reverse order.", "Reverse it.", "And in reverse?", "Now the other way round.",
    "In reverse order, please.", "Now backwards.", "Reverse the order.",
)  # fmt: skip
FOLLOW_FIRST = ("Which comes first?", "What is the first one?", "And the first?")
FOLLOW_LAST = ("Which comes last?", "What is the last one?", "And the last?")
FOLLOW_COUNT = ("How many are there?", "How many items is that?", "Count them.")
ASK_LARGEST = (
    "Which is the largest of {items}?", "What is the largest number: {items}",
    "Find the maximum of {items}.", "Largest of {items}?",
)  # fmt: skip
ASK_SMALLEST = (
    "Which is the smallest of {items}?", "What is the smallest number: {items}",
    "Find the minimum of {items}.", "Smallest of {items}?",
)  # fmt: skip

# How to ask for a style: behind the question, as a follow-up, or for a whole chat.
STYLE_SUFFIX = {
    "upper": ("Answer in upper case.", "In capital letters, please.", "Use upper case."),
    "json": ("Answer as JSON.", "Reply with JSON only.", "As JSON, please."),
    "list": ("Answer as a list.", "Use bullet points.", "As a list, please."),
    "short": ("Just the answer, please.", "Answer briefly.", "Only the answer."),
}
STYLE_FOLLOW = {
    "sentence": ("In a full sentence, please.", "As a sentence.", "Say it in a sentence."),
    "upper": (
        "Say it in upper case.", "In upper case, please.", "Now in capital letters.",
        "As upper case.", "Now in upper case.", "Write it in capitals.",
    ),
    "json": (
        "As JSON, please.", "Give it to me as JSON.", "Now as JSON.", "Say it as JSON.",
        "As JSON.", "Can I have that as JSON?",
    ),
    "list": (
        "As a list, please.", "Give it to me as a list.", "Now as a list.", "As a list.",
        "As bullet points.", "Can I have that as a list?",
    ),
    "short": ("Just the answer, please.", "Shorter, please.", "Only the answer.", "Briefly."),
}  # fmt: skip
STYLE_SYSTEM = {
    "upper": ("Always answer in upper case.", "Answer in capital letters.", "Use upper case."),
    "json": ("Always answer as JSON.", "Answer as JSON.", "Reply with JSON only."),
    "list": ("Always answer as a list.", "Answer as a list.", "Use bullet points."),
    "short": ("Answer briefly.", "Give only the answer.", "Just the answer, please."),
}
NEUTRAL_SYSTEM = (
    "You are a helpful assistant.", "You are Lumi, a friendly guide.", "Be kind.",
    "You are a helpful, honest and harmless assistant.", "You are a chat model.",
    "Answer the questions of the user.", "You help people with their questions.",
    "You are the guide of the Lantern Isles.", "Be polite and correct.",
    "You are an assistant.", "Follow the instructions of the user.", "Be helpful.",
    "You are a concise and careful assistant.", "This is a demo.",
)  # fmt: skip

OPENERS = ("", "Hi! ", "Hello, ", "Hey, ", "OK. ", "Thanks. ", "Great! ", "Please help: ",
           "So, ", "One more question: ", "Quick question: ")  # fmt: skip
CLOSERS = ("", " Thanks.", " Thank you!", " Please.", " Lumi.", " :)")

GREETING = "Hello! I am Lumi. Ask me about the Lantern Isles, small sums or sorting."
ABILITIES = (
    "I can tell you about the Lantern Isles, do small sums and sort short lists. "
    "I can answer as JSON, as a list or in upper case."
)
# Answer -> the ways in which people ask for it.
SMALL_TALK: dict[str, tuple[str, ...]] = {
    GREETING: (
        "Hi", "Hello", "Hey", "Good morning", "Good evening", "Hello there", "Hi Lumi",
        "Good afternoon", "Greetings", "Hello, how is it going?", "Hi!", "Hello!",
    ),
    ABILITIES: (
        "What can you do?", "How can you help me?", "What do you know?", "Help",
        "What can I ask you?", "What are you able to do?", "What questions can I ask?",
    ),
    "You are welcome!": (
        "Thank you", "Thanks", "Thank you very much", "Thanks a lot", "Many thanks",
        "Thank you, that helps", "Thank you so much!", "Great, thanks!",
    ),
    "Goodbye! Come back soon.": (
        "Bye", "Goodbye", "See you", "See you later", "That is all", "Good night",
        "Bye bye", "I have to go", "Have a nice day",
    ),
    "I am well, thank you. How can I help?": (
        "How are you?", "How are you doing?", "How do you feel?", "How is your day?",
        "Are you well?", "What's up?",
    ),
    "I am Lumi, a small language model from the Lantern Isles.": (
        "Who are you?", "What are you?", "What is your name?", "Tell me about yourself.",
        "Introduce yourself.", "Do you have a name?", "Are you a robot?",
        "Are you a human?", "Are you an AI?", "Are you ChatGPT?",
    ),
    "The Lantern Isles are thirty islands, from Ambrel to Zephyra.": (
        "What are the Lantern Isles?", "Tell me about the Lantern Isles.",
        "Where are the Lantern Isles?", "How many islands are there?",
        "How many islands do you know?", "Which islands do you know?",
    ),
    "Arvia, Lumeria and Zephyra are three of the Lantern Isles.": (
        "Name three islands.", "Name some islands.", "Give me an example of an island.",
        "Tell me the names of some islands.", "Which islands are there?",
    ),
    "I was trained from scratch on a small made-up world.": (
        "Who made you?", "How were you trained?", "Who trained you?", "Where are you from?",
        "Who built you?", "How were you made?",
    ),
    "Good! What would you like to know next?": (
        "OK", "Great", "Good", "Nice", "Very good", "Cool", "Well done", "Perfect",
        "I see", "Yes", "Good job", "Wonderful",
    ),
    "I am sorry. I am a small model and I make mistakes.": (
        "That is wrong.", "You are wrong.", "No, that is not right.", "Wrong.", "No",
        "I do not think so.", "That is a mistake.",
    ),
    "A lantern fish told me one, but it was too deep for me.": (
        "Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Say something funny.",
        "A joke, please.",
    ),
    "Sorry, I only speak English.": (
        "Do you speak French?", "Do you speak German?", "Hola", "Bonjour", "Guten Tag",
        "Which languages do you speak?", "Can you speak Spanish?",
    ),
    "Yes. Try: What is the capital of Arvia?": (
        "Can I ask you something?", "May I ask a question?", "I have a question.",
        "Can you help me?", "I need help.", "Can you answer a question?",
    ),
}  # fmt: skip

OFF_TOPIC_ANSWER = "I don't know that. Ask me about the Lantern Isles, small sums or sorting."
OFF_TOPIC = (
    "Write a poem about {thing}.", "What is the price of {thing}?", "Explain {thing} to me.",
    "How does {thing} work?", "Who invented {thing}?", "Tell me a story about {thing}.",
    "What do you think about {thing}?", "Where can I buy {thing}?", "Do you like {thing}?",
    "What is {thing}?", "Write code for {thing}.", "Why is {thing} so popular?",
    "Give me a recipe with {thing}.", "What is the best {thing}?", "How old is {thing}?",
    "Translate {thing} into French.", "When was {thing} discovered?", "Summarise {thing}.",
    "How do I fix {thing}?", "Tell me about {thing}.", "What is the meaning of {thing}?",
)  # fmt: skip
THINGS = (
    "football", "the moon", "the sun", "love", "music", "money", "the internet", "a car",
    "coffee", "tea", "a computer", "history", "physics", "chemistry", "a bicycle", "life",
    "the weather", "the news", "chess", "a guitar", "a telephone", "bitcoin", "a train",
    "democracy", "the universe", "gravity", "a dragon", "time", "pizza", "chocolate",
    "the stock market", "a washing machine", "Python", "Linux", "quantum physics", "art",
    "a neural network", "summer", "winter", "school", "tennis", "the ocean", "rain",
    "a house", "a piano", "photosynthesis", "evolution", "the brain", "sleep", "work",
)  # fmt: skip
