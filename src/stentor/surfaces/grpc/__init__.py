"""gRPC: tasks, ATP messages and the LLM stream, by the rules of the gateway. Imported only when it is served."""
