"""The gateway as an API for Anthropic's clients, such as Claude Code: POST /v1/messages.

`api` has the routes, `messages_request` the requests, `messages_output` the replies and the events of a stream.
"""
