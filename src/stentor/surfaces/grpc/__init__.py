"""gRPC: tasks, ATP messages and the LLM stream, with the rules of the HTTP gateway. Imported only when it is served."""
