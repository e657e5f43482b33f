"""The program of the process that `pattern_process` starts. Uses the standard library only, so that it starts fast.

Reads lines of JSON. The first has the patterns, pairs of a mark and a regular expression, and is answered by their
number once they are compiled; each further one has texts, and is answered by a line with the redacted texts.
"""

import json
import re
import sys


def main() -> None:
    patterns = [(mark, re.compile(pattern)) for mark, pattern in json.loads(sys.stdin.readline())]
    _answer(len(patterns))
    for line in sys.stdin:
        texts = json.loads(line)
        for mark, pattern in patterns:
            # Backslashes are doubled because they would refer to the pattern's groups.
            replacement = mark.replace("\\", r"\\")
            texts = [pattern.sub(replacement, text) for text in texts]
        _answer(texts)


def _answer(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
