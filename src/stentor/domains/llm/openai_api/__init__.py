"""The gateway in the dialect of OpenAI's clients."""
