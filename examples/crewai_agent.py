"""A crew of CrewAI as an agent: python examples/crewai_agent.py http://127.0.0.1:8080 KEY"""

import os
import sys

os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")

from crewai import LLM, Agent, Crew
from crewai import Task as Step

from stentor_worker import Task, Worker

url, key = sys.argv[1:] if len(sys.argv) == 3 else sys.exit(__doc__)
name = os.environ.get("MODEL", "openai/gpt-5-mini")
model = LLM(model=name, provider="openai", base_url=f"{url}/v1", api_key=key)  # the gateway speaks OpenAI's API
worker = Worker.register(url, key, "crewai-writer", ["summarize-short"])


@worker.handler
def summarize(task: Task) -> str:
    # A crew for each task: one holds the input of its run, and refuses a second run meanwhile.
    writer = Agent(role="writer", goal="Write short summaries.", backstory="You write for busy people.", llm=model)
    step = Step(description="Summarize this text:\n{text}", expected_output="One sentence.", agent=writer)
    return Crew(agents=[writer], tasks=[step]).kickoff(inputs={"text": task.input}).raw


worker.run()
