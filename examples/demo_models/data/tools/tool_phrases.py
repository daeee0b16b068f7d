"""What users and the demo with tools say apart from what tools can do."""

from __future__ import annotations

NO_TOOL = "I have no tool for that."
ABOUT_ME = "I am a small model that calls tools and fills in JSON."
SYSTEM = (
    *("You are a helpful assistant.", "You are a helpful assistant that uses tools.", "Use the tools.", "Be brief."),
    *("You are an assistant. Call tools when they help.", "Answer the user. Use tools if you need them."),
)
OPENERS = ("Please: ", "Hi! ", "Hello. ", "One question: ", "Tell me: ", "Hey, ", "Quick: ", "Please, ")
GREETINGS = ("Hello!", "Hi", "Good morning!", "Hey there", "Hello", "Hi!", "Good evening.")
THANKS = ("Thanks!", "Thank you.", "Great, thanks.", "Thank you very much!", "That helps, thanks.", "Perfect.")
WHO = ("Who are you?", "What are you?", "What is your name?", "Are you a human?", "Tell me about yourself.")
WHICH_TOOLS = ("Which tools do you have?", "What can you do?", "List your tools.", "What tools are there?", "Help")
OFF_TOPIC = (
    *("Tell me a joke.", "Write a poem.", "Who won the match?", "What is the meaning of life?", "Sing a song."),
    *("Write a story about a dragon.", "How old is the universe?", "Who wrote this book?", "Draw a picture of a cat."),
    *(
        "What is your favourite film?",
        "Explain gravity.",
        "Why is the sky blue?",
        "Play some music.",
        "Am I beautiful?",
    ),
)
ERRORS = (
    *("not found", "no connection", "timeout", "unknown place", "access denied", "not available", "too many requests"),
    *("invalid value", "service is down", "no such entry", "closed today", "try again later"),
)
FILL = (
    *("Answer with JSON that fits this schema:", "Extract the data as JSON. Schema:", "Fill in this JSON schema:"),
    *("Reply only with JSON that follows the schema", "Give me a JSON object of this schema:", "JSON schema:"),
    *("Write what the text says as JSON. The schema is", "Return JSON according to this schema:"),
)
