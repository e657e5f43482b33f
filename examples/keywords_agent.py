"""An agent in ten lines: python examples/keywords_agent.py http://127.0.0.1:8080 KEY"""

import re
import sys
from collections import Counter

from stentor_worker import Task, Worker

url, key = sys.argv[1:] if len(sys.argv) == 3 else sys.exit(__doc__)
worker = Worker.register(url, key, "keywords", ["keywords"])


@worker.handler
def keywords(task: Task) -> list[str]:
    words = re.findall(r"[a-z]{5,}", task.input["text"].lower())
    return [word for word, _ in Counter(words).most_common(task.input.get("top", 5))]


worker.run()
