"""The gateway as an OpenAI-compatible API.

`api` has the routes. `chat` and `completions` have the requests and responses of an endpoint each; those of
/v1/responses are in `responses_request`, `responses_input` and `responses_output`.
"""
