"""The LLM gateway: proxies chat and embedding calls to providers, with budgets, fallbacks and a record of each call.

`service` is the entry, and `routes.chat_router` sends chats to it or to agents; `calls.call_guard` wraps every call;
`providers` and `formats` talk to the providers; `openai_api` and `anthropic_api` have the routes under `/v1`.
"""
