"""The gateway as an OpenAI-compatible API.

`api` has the routes; `wire` and `responses_request` parse requests; `completions` and `responses_output` build
responses.
"""
