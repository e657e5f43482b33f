"""The gateway as an OpenAI-compatible API.

`api` has the routes. `chat` has the requests for chat completions and `chat_output` their replies, `completions` both
for text completions and embeddings; those of /v1/responses are in `responses_request`, `responses_input` and
`responses_output`.
"""
